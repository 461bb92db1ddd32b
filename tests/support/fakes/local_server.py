"""A server in this process, which only this machine can reach."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class LocalServer:
    """A server on a free port, for a `with` block.

    Args:
        handler: Class that answers the requests.

    Attributes:
        url: Its address.
    """

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._handler = handler
        self._listen(0)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _listen(self, port: int) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler)
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def go_down(self) -> None:
        """Stop accepting connections."""
        LocalServer.__exit__(self)

    def come_back(self) -> None:
        """Accept connections again, at the same address."""
        self._listen(self._server.server_port)
        LocalServer.__enter__(self)
