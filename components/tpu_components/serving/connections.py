"""Limits for client connections: timeouts, number of connections, strict HTTP syntax."""

import asyncio
import http
import json
from typing import Any, NoReturn

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # Time limit for the head of a request, from its first byte or the start of the connection.
# A chunk costs some 5 µs, whatever its size. A body may have this many chunks, and one more for each kibibyte.
_MOST_SMALL_CHUNKS, _SMALL_CHUNK_BYTES = 100, 1024
_PIECE_BYTES = 1 << 15
ANSWER_SECONDS = 30.0  # Time limit for a client that reads nothing of its response while the system's buffers are full.
# Open files besides connections: the model, libraries, the event loop, connections that are being accepted.
_SPARE_FILES = 128


def connection_limit(max_connections: int) -> int:
    """Return the limit of connections: `max_connections`, or fewer if the system's limit of open files is lower."""
    try:
        import resource
    except ImportError:  # On Windows, which has no such limit.
        return max_connections
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return max_connections
    return min(max_connections, max(files - _SPARE_FILES, files // 2))


class _StrictParser(h11.Connection):
    """h11's parser with strict rules for heads, trailers and chunks. `fault` describes why a request was rejected.

    Servers and proxies interpret some requests differently, which allows request smuggling. h11 alone would accept
    them: https://www.rfc-editor.org/rfc/rfc9112#section-11.2
    """

    fault = "its head or its framing is malformed"
    _num_chunks = _num_bytes = 0  # In the current body.
    _lines = b""  # Bytes since the last data: the head, or the trailers.

    def next_event(self) -> Any:
        before = self.trailing_data[0]
        event: Any = super().next_event()
        if isinstance(event, h11.Data):
            self._lines = b""
            self._num_chunks += event.chunk_start
            self._num_bytes += len(event.data)
            if self._num_chunks > _MOST_SMALL_CHUNKS + self._num_bytes // _SMALL_CHUNK_BYTES:
                mean = self._num_bytes // self._num_chunks
                self._refuse(f"its body comes in chunks of {mean} bytes. Expected larger")
            return event
        self._lines += before[: len(before) - len(self.trailing_data[0])]
        if isinstance(event, h11.Request | h11.EndOfMessage):
            lines = self._lines
            self._lines = b""
            self._num_chunks = self._num_bytes = 0
            if lines.count(b"\n") != lines.count(b"\r\n"):
                self._refuse("a line ends in a line feed alone. Expected a carriage return before it")
            if b"\r\n " in lines or b"\r\n\t" in lines:
                self._refuse("a header goes on in the next line. Expected a line for each")
            if dict(event.headers).keys() >= {b"content-length", b"transfer-encoding"}:
                self._refuse("it has both Content-Length and Transfer-Encoding. Expected one of them")
        return event

    def _refuse(self, fault: str) -> NoReturn:
        self.fault = fault
        raise h11.RemoteProtocolError(fault)


class ConnectionSlots:
    """Slots for a limited number of connections.

    If all slots are taken, a new connection replaces the one whose client has been silent for the longest time. Clients
    that open connections without sending requests therefore cannot block others.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: dict[Connection, bool] = {}  # Whether the client must send next; least recently changed first.

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def enter(self, connection: "Connection") -> bool:
        """Take a slot; returns False if all slots are taken by connections with a running request."""
        if len(self._open) >= self.limit:
            oldest = next((other for other, is_waiting in self._open.items() if is_waiting), None)
            if oldest is None:
                return False
            self.leave(oldest)
            oldest.transport.abort()
        self._open[connection] = True
        return True

    def leave(self, connection: "Connection") -> None:
        """Release the slot of a connection."""
        self._open.pop(connection, None)

    def note(self, connection: "Connection", is_waiting: bool) -> None:
        """Record whether the server waits for the client of a connection (True) or the client for the server."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = is_waiting


class Connection(H11Protocol):
    """uvicorn's connection with timeouts, a limited number of slots, and a JSON response to invalid HTTP."""

    def __init__(self, places: ConnectionSlots, **options: Any) -> None:
        super().__init__(**options)
        self.conn: _StrictParser = _StrictParser(h11.SERVER)
        self._places = places
        self._turn: tuple[bool, bool] | None = None  # Whether the server waits for the client, and for a head.
        self._patience: asyncio.TimerHandle | None = None  # Timeout for a client that sends too little.
        self._stalled: asyncio.TimerHandle | None = None  # Timeout for a client that does not read its response.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a slot, or respond 503 if there is none."""
        super().connection_made(transport)
        if self._places.enter(self):
            self._look()
        else:
            self._refuse(503, f"The server is busy: it answers on {self._places.limit} connections. Try again later.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the slot."""
        self._places.leave(self)
        _cancel(self._patience)
        _cancel(self._stalled)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client, in pieces, because the parser copies its whole buffer at each event."""
        for start in range(0, len(data), _PIECE_BYTES):
            if not self.transport.is_closing():  # As after invalid HTTP.
                super().data_received(data[start : start + _PIECE_BYTES])
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request, or process it if it has arrived."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read its response."""
        super().pause_writing()
        self._stalled = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timeout of `pause_writing`: the client reads again."""
        super().resume_writing()
        _cancel(self._stalled)

    def handle_events(self) -> None:
        """Process the requests that have arrived."""
        try:
            super().handle_events()
        except h11.LocalProtocolError:  # Invalid HTTP after the response was sent.
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Respond 400 to invalid HTTP, with the fault."""
        self._refuse(400, f"Cannot read the request: {self.conn.fault}.")

    def _refuse(self, status: int, message: str) -> None:
        content = json.dumps({"error": message}).encode()
        length = str(len(content)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
        if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append((b"retry-after", b"1"))
        reason = http.HTTPStatus(status).phrase.encode()
        response = h11.Response(status_code=status, headers=headers, reason=reason)
        for event in (response, h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        if self.cycle is not None:  # Ends the application's wait for the rest of the body.
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _look(self) -> None:
        """Record whether client or server must send next, and set the timeout of the client.

        The timeout limits the time for the head of a request, and for the rest of a body that the application does not
        read.
        """
        is_asked = self.cycle is not None and not self.cycle.response_complete
        is_waiting = not is_asked or self.cycle.more_body  # The application limits the time of a body that it reads.
        has_begun = self.cycle is None or self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]
        turn = is_waiting, not is_asked and bool(has_begun)
        if turn == self._turn:
            return
        self._turn = turn
        self._places.note(self, is_waiting)
        _cancel(self._patience)
        if turn == (True, True):
            self._patience = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
