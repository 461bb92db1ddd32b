"""Google's host names over TLS, for clients with a fixed address: TensorFlow's own client of Cloud Storage."""

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_HOSTS = ("www.googleapis.com", "storage.googleapis.com")


@contextlib.contextmanager
def google_over_tls(port: int, folder: Path) -> Iterator[dict[str, str]]:
    """Run a proxy that sends requests to Google's storage to a local HTTP server.

    Args:
        port: Port of the HTTP server.
        folder: Folder for the certificate and its key.

    Returns:
        Environment variables with which TensorFlow's client uses the proxy. It sends the token as it is, and libcurl
        reads proxy and certificates from them (tensorflow/core/platform/cloud/curl_http_request.cc and
        google_auth_provider.cc).
    """
    certificate = _write_certificate(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    tls.set_alpn_protocols(["http/1.1"])
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, tls, port), daemon=True).start()
    yield {
        "https_proxy": f"http://127.0.0.1:{listener.getsockname()[1]}",
        "CURL_CA_BUNDLE": str(certificate),
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
        "NO_GCE_CHECK": "true",
    }
    listener.close()


def _write_certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Tests")])
    now = datetime.datetime.now(datetime.UTC)
    names = [*map(x509.DNSName, _HOSTS), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "google.pem"
    path.write_bytes(secret + certificate.public_bytes(pem))
    return path


def _accept(listener: socket.socket, tls: ssl.SSLContext, port: int) -> None:
    with contextlib.suppress(OSError):  # The listener is closed.
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_connect, args=(client, tls, port), daemon=True).start()


def _connect(client: socket.socket, tls: ssl.SSLContext, port: int) -> None:
    """Answer CONNECT for any host (RFC 9110, 9.3.6), and pass on what the client sends then."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += client.recv(4096)
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    with (
        contextlib.suppress(OSError),
        tls.wrap_socket(client, server_side=True) as secure,
        socket.create_connection(("127.0.0.1", port)) as server,
    ):
        sending = threading.Thread(target=_pass_on, args=(secure, server), daemon=True)
        sending.start()
        _pass_on(server, secure)
        server.close()
        secure.close()
        sending.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(65536):
            target.sendall(content)
        target.shutdown(socket.SHUT_WR)
