"""Reads the body of a request, within limits of time and memory."""

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Iterator

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tpu_components.core.base.errors import InputError
from tpu_components.serving.instances import TooLargeError

BODY_TIMEOUT_SECONDS = 30.0

Hold = Callable[[int], None]  # Counts more bytes that a request holds; responds 503 or 413 above the limit.


class HeldBytes:
    """Limits the bytes that all requests together keep in memory. `total` is the current number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.total = 0

    @contextlib.contextmanager
    def holding(self) -> Iterator[Hold]:
        """Yield a function that reserves bytes for one request. The bytes are released when the `with` block ends."""
        own = 0

        def hold(num_bytes: int) -> None:
            nonlocal own
            if own + num_bytes > self._limit:
                raise TooLargeError(
                    f"All requests together may take {self._limit:,} bytes of memory (--max-held-bytes). Received: a "
                    f"request that takes {own + num_bytes:,} bytes. Send its instances in several requests."
                )
            if self.total + num_bytes > self._limit:
                raise HTTPException(
                    503, f"The server is busy: its requests take {self.total:,} bytes of memory. Try again later."
                )
            own += num_bytes
            self.total += num_bytes

        try:
            yield hold
        finally:
            self.total -= own


async def read_body(request: Request, limit: int, hold: Hold) -> bytearray:
    """Read the body of a request, without decompressing it.

    Raises:
        HTTPException: If the body is too large, or does not arrive in time.
        ClientDisconnect: If the client closes the connection.
    """
    body = bytearray()
    _check_size(int(request.headers.get("content-length", 0)), limit)  # Before reading the body.
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                _check_size(len(body) + len(chunk), limit)
                hold(len(chunk))
                body += chunk
    except TimeoutError as error:
        raise HTTPException(
            408, f"The body did not arrive within {BODY_TIMEOUT_SECONDS:.0f} s. Send the request again."
        ) from error
    return body


def is_gzip(request: Request) -> bool:
    """Return whether the body of a request is compressed with gzip. Respond with 415 to other encodings.

    Names of encodings are not case-sensitive, and x-gzip means gzip:
    https://www.rfc-editor.org/rfc/rfc9110#section-8.4.1
    """
    named = ", ".join(request.headers.getlist("content-encoding")).strip().lower()
    if named in ("", "identity"):
        return False
    if named not in ("gzip", "x-gzip"):
        raise HTTPException(
            415,
            f"Cannot read a body with Content-Encoding {named[:40]!r}. Expected gzip, or an uncompressed body.",
            {"Accept-Encoding": "gzip"},
        )
    return True


def unpack(body: bytes | bytearray, limit: int) -> bytes | bytearray:
    """Decompress a body that is compressed with gzip. Decompression stops above `limit` bytes.

    Raises:
        InputError: If the body is not exactly one gzip member.
        HTTPException: If the content has more than `limit` bytes.
    """
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)  # 16 stands for gzip.
    try:
        content = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise InputError(
            f"The body is not compressed with gzip, although its Content-Encoding is gzip: {error}. Compress the body, "
            "or remove the header."
        ) from error
    _check_size(len(content), limit)
    if not stream.eof:
        raise InputError("The body ends before its gzip data are complete. Send the whole body.")
    if stream.unused_data:
        raise InputError("The body continues after the end of its gzip data. Expected only one gzip member.")
    return content


def _check_size(num_bytes: int, limit: int) -> None:
    if num_bytes > limit:
        raise HTTPException(
            413,
            f"A body may have at most {limit:,} bytes (--max-body-bytes). Received: {num_bytes:,} bytes or more. "
            "Send fewer or smaller images.",
        )
