"""Limits for client connections: timeouts, number of connections, strict HTTP syntax."""

import asyncio
import enum
import http
import json
import re
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # Time limit for the head of a request, from its first byte or the start of the connection.
# A chunk costs some 5 µs, whatever its size. Chunks above this number must have a kibibyte on average.
_MOST_SMALL_CHUNKS, _SMALL_CHUNK_BYTES = 1000, 1024
ANSWER_SECONDS = 30.0  # Time limit for a client that reads nothing of its response while the system's buffers are full.
# Open files besides connections: the model, libraries, the event loop, connections that are being accepted.
_SPARE_FILES = 128


class _Phase(enum.Enum):
    """State of a connection: the side that must send next."""

    HEAD = "the client is sending the head of a request, or what is left of a body that nobody reads any more"
    BODY = "the client is sending a body, whose time the application watches"
    ANSWER = "the server is answering"
    IDLE = "nobody: the next request has not begun"


def connection_limit(max_connections: int) -> int:
    """Return the limit of connections: `max_connections`, or fewer if the system's limit of open files is lower."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return max_connections
    return min(max_connections, max(files - _SPARE_FILES, files // 2))


def head_fault(received: bytes) -> str:
    r"""Describe the first fault in the received part of a request's head; empty if there is none.

    Servers and proxies interpret these faults differently, which allows request smuggling:
    https://www.rfc-editor.org/rfc/rfc9112#section-11.2. The parser, h11, would accept all three.

    Example:
        >>> head_fault(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        ''
        >>> head_fault(b"GET / HTTP/1.1\nHost: x\n\n")
        'a line of the head ends in a line feed alone. Expected a carriage return before it'
    """
    head, end, _ = received.partition(b"\r\n\r\n")
    if fault := _line_fault(head, "the head"):
        return fault
    if end and len(set(re.findall(rb"\r\n(content-length|transfer-encoding)[ \t]*:", head.lower()))) == 2:
        return "it has both Content-Length and Transfer-Encoding. Expected one of them"
    return ""


def _line_fault(lines: bytes, name: str) -> str:
    """Describe the first line that servers interpret differently; empty if there is none."""
    if lines.count(b"\n") != lines.count(b"\r\n"):
        return f"a line of {name} ends in a line feed alone. Expected a carriage return before it"
    if b"\r\n " in lines or b"\r\n\t" in lines:
        return "a header goes on in the next line. Expected a line for each"
    return ""


class _StrictParser(h11.Connection):
    """h11's parser with strict rules for heads and chunks. `fault` describes why a request was rejected."""

    fault = "its head or its framing is malformed"
    _num_chunks = _num_bytes = 0  # In the current body.
    _is_between_chunks = False
    _between = b""  # Bytes since the last chunk, or since the head; they include the body's trailers.

    def next_event(self) -> Any:
        is_watched = self._is_between_chunks or self.their_state is h11.IDLE
        received = self.trailing_data[0] if is_watched else b""
        if self.their_state is h11.IDLE:
            self._refuse(head_fault(received))
        event: Any = super().next_event()
        if isinstance(event, h11.Request):
            self._num_chunks = self._num_bytes = 0
            self._is_between_chunks, self._between = True, b""
        elif isinstance(event, h11.Data):
            self._num_chunks += event.chunk_start
            self._num_bytes += len(event.data)
            self._is_between_chunks, self._between = event.chunk_end, b""
            if self._num_chunks > _MOST_SMALL_CHUNKS + self._num_bytes // _SMALL_CHUNK_BYTES:
                self._refuse(
                    f"its body comes in chunks of {self._num_bytes // self._num_chunks} bytes. Expected larger"
                )
        elif self._is_between_chunks:
            self._between += received[: len(received) - len(self.trailing_data[0])]
            if isinstance(event, h11.EndOfMessage):
                self._is_between_chunks = False
                self._refuse(_line_fault(self._between, "the trailers"))
        return event

    def _refuse(self, fault: str) -> None:
        if fault:
            self.fault = fault
            raise h11.RemoteProtocolError(fault)


class Places:
    """Slots for a limited number of connections.

    If all slots are taken, a new connection replaces the one whose client has been silent for the longest time. Clients
    that open connections without sending requests therefore cannot block others.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # Connections that wait for their client, the longest first.

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def enter(self, connection: "Connection") -> bool:
        """Take a slot; returns False if all slots are taken by connections with a running request."""
        if len(self._open) >= self.limit:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                return False
            self.leave(oldest)
            oldest.abort()
        self._open.add(connection)
        return True

    def leave(self, connection: "Connection") -> None:
        """Release the slot of a connection."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def note(self, connection: "Connection", is_waiting: bool) -> None:
        """Record whether the server waits for the client of a connection (True) or the client for the server."""
        self._waiting.pop(connection, None)
        if is_waiting and connection in self._open:
            self._waiting[connection] = None


class Connection(H11Protocol):
    """uvicorn's connection with timeouts, a limited number of slots, and a JSON response to invalid HTTP."""

    def __init__(self, places: Places, **options: Any) -> None:
        super().__init__(**options)
        self.conn: _StrictParser = _StrictParser(h11.SERVER)
        self._places = places
        self._phase: _Phase | None = None
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
        """Process bytes from the client."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request, or process it if it has arrived."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read its response."""
        super().pause_writing()
        self._stalled = self.loop.call_later(ANSWER_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """Stop that timeout: the client reads again."""
        super().resume_writing()
        _cancel(self._stalled)

    def abort(self) -> None:
        """Close at once and discard unsent data."""
        self.transport.abort()

    def handle_events(self) -> None:
        """Process the requests that have arrived."""
        try:
            super().handle_events()
        except h11.LocalProtocolError:  # Invalid HTTP after the response was sent.
            self.abort()

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
        """Update the phase of the connection and set the timeout of the phase."""
        phase = self._whose_turn()
        if phase is self._phase:
            return
        self._phase = phase
        self._places.note(self, phase is not _Phase.ANSWER)
        _cancel(self._patience)
        if phase is _Phase.HEAD:
            self._patience = self.loop.call_later(HEAD_SECONDS, self.abort)

    def _whose_turn(self) -> _Phase:
        if self.cycle is not None and not self.cycle.response_complete:
            return _Phase.BODY if self.cycle.more_body else _Phase.ANSWER
        has_begun = self.cycle is None or self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]
        return _Phase.HEAD if has_begun else _Phase.IDLE


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
