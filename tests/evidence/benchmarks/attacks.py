"""What attackers send to a server: requests that cost it far more than their sender, or that are no HTTP."""

import base64
import io
import json
import lzma
import struct

from PIL import Image

MODEL = "digits"  # Name that the server is to give the model.
TIFF_TYPES = {1: "B", 3: "H", 4: "I", 8: "h", 16: "Q", 17: "q"}  # BYTE, SHORT, LONG, SSHORT, LONG8, SLONG8.


def tiled_tiff(side: int, tile_side: int, pixel: int = 0, first: tuple[tuple[int, int, int], ...] = ()) -> bytes:
    """Return a grey TIFF file whose only tile is compressed by LZMA, https://libtiff.gitlab.io/libtiff/.

    Args:
        side: Height and width of the image.
        tile_side: Height and width of the tile.
        pixel: Value of all pixels.
        first: Tag, type and value of entries that come before the others of the same tag.
    """
    compressor, row = lzma.LZMACompressor(preset=0), bytes([pixel]) * tile_side
    tile = b"".join([*(compressor.compress(row) for _ in range(tile_side)), compressor.flush()])
    own = {256: side, 257: side, 258: 8, 259: 34925, 262: 1, 277: 1, 322: tile_side, 323: tile_side, 325: len(tile)}
    rows = sorted([*first, *((tag, 4, value) for tag, value in own.items()), (324, 4, 0)], key=lambda row: row[0])
    place = 8 + 2 + 12 * len(rows) + 4
    entries, wide = b"", b""
    for tag, kind, value in rows:
        size = struct.calcsize(TIFF_TYPES[kind])
        packed = struct.pack("<" + TIFF_TYPES[kind], place if tag == 324 else value)
        if size > 4:
            packed, wide = struct.pack("<I", place + len(tile) + len(wide)), wide + packed
        entries += struct.pack("<HHI4s", tag, kind, 1, packed)
    return b"II*\0" + struct.pack("<IH", 8, len(rows)) + entries + bytes(4) + tile + wide


def post(body: bytes, length: int | None = None, path: str = "/predict") -> bytes:
    """Return a request with a body; `length` is what its head says of it."""
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def _in_chunks(body: bytes, end: bytes = b"\r\n") -> bytes:
    head = b"POST /predict HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n" + end


def _jpeg_of_scans(side: int, num_bytes: int) -> bytes:
    """A grey progressive JPEG file whose last scan, a pass over all pixels, is repeated until it has this size."""
    buffer = io.BytesIO()
    Image.new("L", (side, side)).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    end = content.rindex(b"\xff\xd9")
    scan = content[content.rindex(b"\xff\xda") : end]
    return content[:end] + scan * ((num_bytes - len(content)) // len(scan)) + content[end:]


def costly() -> dict[str, bytes]:
    """Return requests by what is costly about them."""
    infer = f"/v2/models/{MODEL}/infer"

    def tensor(shape: str, data: str, kind: str) -> bytes:
        return b'{"inputs": [{"name": "x", "shape": %s, "datatype": "%s", "data": %s}]}' % (
            shape.encode(),
            kind.encode(),
            data.encode(),
        )

    words = json.dumps(["x" * 1_400_000] + ["a"] * 450)
    bomb = {"b64": base64.b64encode(tiled_tiff(1, 32768)).decode()}
    return {
        "shape of 500,001 sizes": post(tensor(f"[1{',99' * 500_000}]", '["x"]', "BYTES"), path=infer),
        "sizes of 4,000 digits": post(tensor(f"[1{', ' + '9' * 4000}]", '["x"]', "BYTES"), path=infer),
        "words for pixels, V1": post(json.dumps({"instances": [json.loads(words)]}).encode()),
        "words for pixels, V2": post(tensor("[1, 8, 8, 1]", words, "UINT8"), path=infer),
        "TIFF tile of 32,768²": post(json.dumps({"instances": [bomb]}).encode()),
        "4 TIFF tiles of 32,768²": post(json.dumps({"instances": [bomb] * 4}).encode()),
        "JPEG of many scans": post(_jpeg_of_scans(4096, 1_500_000)),
        "1.5 MB in chunks of 1 byte": _in_chunks(b" " * 1_500_000),
    }


def _grey_png(size: int) -> str:
    buffer = io.BytesIO()
    Image.new("1", (size, size)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def hostile_requests() -> dict[str, bytes]:
    """Return what attackers send, by the name of the attack; each is small, or does not end."""
    top = json.dumps({"instances": [[[[0]] * 8] * 8], "parameters": {"top": "\ud800"}}).encode()
    top_of_digits = post(b"GIF89a", path=f"/predict?top={'9' * 5000}")
    one = {"b64": _grey_png(4096)}
    return {
        "says nothing": b"",
        "half a head": b"POST /predict HTTP/1.1\r\nHost: here",
        "withholds the end of a body": post(b" " * 1_000_000, 1_500_000),
        "few large images": post(json.dumps({"instances": [one] * 4}).encode()),
        "many large images": post(json.dumps({"instances": [one] * 128}).encode()),
        "deep JSON": post(b'{"instances": ' + b"[" * 100_000),
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "line feeds alone": b"GET /health HTTP/1.1\nHost: here\n\n",
        **costly(),
        "top of 5,000 digits": top_of_digits.replace(b"Host", b"Content-Type: image/gif\r\nHost", 1),
        "top of half a character": post(top),
        "a trailer's bare line feed": _in_chunks(b"{}", b"X: y\n\r\n") + b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n",
        "a folded trailer": _in_chunks(b"{}", b"X: y\r\n z\r\n\r\n") + b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n",
        "two lengths": b"POST /predict HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    }
