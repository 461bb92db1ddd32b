"""A registry of images on this machine: as much of one as a push and a pull need.

Its rules: https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#endpoints
"""

import hashlib
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler

from tests.support.fakes.local_server import LocalServer


class Registry(LocalServer):
    """A registry on a free port; use it in a `with` block.

    Attributes:
        host: Its name, as names of images begin with it.
        manifests: What was pushed, by name and tag, and by name and digest.
    """

    def __init__(self) -> None:
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        manifests, blobs, uploads = self.manifests, dict[str, bytes](), dict[str, bytes]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def _content(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                content = b""
                while size := int(self.rfile.readline(), 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return content

            def do_GET(self) -> None:
                name, _, rest = self.path.removeprefix("/v2/").partition("/blobs/")
                if rest in blobs:
                    return self._answer(200, blobs[rest], Docker_Content_Digest=rest)
                name, _, rest = self.path.removeprefix("/v2/").partition("/manifests/")
                if (name, rest) in manifests:
                    kind, content = manifests[name, rest]
                    return self._answer(200, content, Content_Type=kind, Docker_Content_Digest=_digest(content))
                return self._answer(200 if self.path == "/v2/" else 404)

            do_HEAD = do_GET  # noqa: N815

            def do_POST(self) -> None:
                upload = str(uuid.uuid4())
                uploads[upload] = self._content()
                self._answer(202, Location=f"{self.path.rstrip('/')}/{upload}", Range="0-0")

            def do_PATCH(self) -> None:
                upload = self.path.rpartition("/")[2]
                uploads[upload] += self._content()
                self._answer(202, Location=self.path, Range=f"0-{max(len(uploads[upload]) - 1, 0)}")

            def do_PUT(self) -> None:
                content, address = self._content(), urllib.parse.urlsplit(self.path)
                if "/manifests/" in address.path:
                    name, _, tag = address.path.removeprefix("/v2/").partition("/manifests/")
                    for reference in (tag, _digest(content)):
                        manifests[name, reference] = self.headers["Content-Type"], content
                    return self._answer(201, Location=self.path, Docker_Content_Digest=_digest(content))
                blob = uploads.pop(address.path.rpartition("/")[2]) + content
                digest = urllib.parse.parse_qs(address.query)["digest"][0]
                if digest != _digest(blob):
                    return self._answer(400)
                blobs[digest] = blob
                return self._answer(201, Location=self.path, Docker_Content_Digest=digest)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(Handler)
        self.host = self.url.removeprefix("http://").replace("127.0.0.1", "localhost")


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
