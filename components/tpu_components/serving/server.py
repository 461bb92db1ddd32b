"""The server process.

The server already listens while it loads the model. Before it stops, it answers the requests in progress.
"""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import os
import re
import shlex
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.terminal import printable
from tpu_components.core.examples.interface import ImageInput
from tpu_components.core.registry.reference import EXPORT_DIR, MODEL_NAME, version_at
from tpu_components.core.registry.signing import fetch_verified
from tpu_components.core.registry.versions import fetch_folder
from tpu_components.serving.application import Application
from tpu_components.serving.exported import ExportedModel, load_model
from tpu_components.serving.params import ServeParams

# Longer than the keep-alive of Google's load balancers (600 s), which would otherwise use connections that are closed:
# https://cloud.google.com/load-balancing/docs/https#timeouts_and_retries
_KEEP_ALIVE_SECONDS = 620
# A client has between one and two times this long to send the head of a request, or to read its response.
SILENCE_SECONDS = 15.0
# Bytes that a connection passes to h11 at a time. In chunks of one byte, they take 2 ms, while other connections wait.
_READ_BYTES = 2048
SHUTDOWN_SECONDS = 25  # Kubernetes kills the container after 30.


def serve(export_uri: str, params: ServeParams, version: str = "") -> None:
    """Serve an export until SIGTERM or SIGINT (Ctrl-C), then answer the requests in progress.

    A line is printed to stdout when the model is ready. A JSON line is printed to stderr for each request.

    Args:
        export_uri: Folder that export_model wrote, local or on gs://.
        params: Address, routes and limits.
        version: Version that the export must belong to if its signature is verified; see `verify_version`.

    Raises:
        InputError: If the address cannot be used, the export is missing or damaged, or a signature is invalid.
    """
    place = os.path.abspath(export_uri)  # Also for a URI: only the end of the path matters.
    if not params.model_name:
        params = dataclasses.replace(params, model_name=version or _name_by_place(place))
    with (
        listen(params.host, params.port) as listener,
        tempfile.TemporaryDirectory(prefix="serving-") as work,
        _signals_ignored(),
    ):
        allow_many_connections()
        load = functools.partial(load_export, export_uri, params, Path(work), version)
        asyncio.run(_serve(listener, load, params))


def _name_by_place(place: str) -> str:
    """Return the name of the registered model or of the run in the path of an export.

    Return an empty string for other paths.

    Example:
        >>> _name_by_place("/runs/registry/shoes/versions/0003/export"), _name_by_place("/runs/bags/export")
        ('shoes', 'bags')
        >>> _name_by_place("/export"), _name_by_place("/somewhere/else")
        ('', '')
    """
    run, folder = ("", *Path(place).parts)[-2:]
    name = version_at(place)[0] or (run if folder == EXPORT_DIR else "")
    return name if re.fullmatch(MODEL_NAME, name) else ""


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore SIGTERM and SIGINT during the `with` block.

    uvicorn handles these signals while it serves, and raises them again when it has stopped. If they ended the process
    then, its exit code would not be 0.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _serve(listener: socket.socket, load: Callable[[], ExportedModel], params: ServeParams) -> None:
    application = Application(params)
    server = make_server(application)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = asyncio.create_task(asyncio.to_thread(load))
    watching = asyncio.create_task(close_silent_connections(server))
    try:
        await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            serving.result()  # Raises the error, unless a signal has ended the server.
            os._exit(0)  # The signal came while the model was loading; waiting for a download would delay the exit.
        model = loading.result()
        gc.collect()
        gc.freeze()  # A full collection stops all threads, and would inspect all imported objects, for about 30 ms.
        async with application.ready(model):
            print(printable(_announce(model, listener, params)), flush=True)
            await serving
    finally:
        watching.cancel()
        server.should_exit = True
        await serving


class Connection(H11Protocol):
    """A connection that reads at most 2,048 bytes at a time, so that parsing does not delay other connections."""

    def connection_made(self, transport: Any) -> None:
        """Limit the size of each read, and begin the connection."""
        transport.max_size = _READ_BYTES  # Buffer of recv(): asyncio/selector_events.py, _SelectorTransport.
        super().connection_made(transport)


def make_server(application: Application) -> uvicorn.Server:
    """Return a uvicorn server for an application. Its access log is off, and only errors are logged."""
    return uvicorn.Server(
        uvicorn.Config(
            application,
            http=Connection,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
    )


async def close_silent_connections(server: uvicorn.Server) -> None:
    """Close connections that have waited 15 to 30 s for the head of a request, or for the client to read a response.

    This function runs until its task is cancelled. uvicorn itself closes only connections that are idle after a
    response. The application limits the time for the body of a request.
    """
    before: set[Any] = set()
    while True:
        await asyncio.sleep(SILENCE_SECONDS)
        # Each with its current request, because a connection that sends one request after another is not silent.
        connections: set[Any] = server.server_state.connections
        silent = {(each, each.cycle) for each in connections if _is_silent(each)}
        for connection, _ in silent & before:
            connection.transport.abort()
        before = silent


def _is_silent(connection: Any) -> bool:
    """Return whether a connection of uvicorn waits for its client, and is not idle after a response."""
    if connection.cycle is None or connection.transport.get_write_buffer_size():
        return True
    has_begun = connection.conn.their_state is not h11.IDLE or bool(connection.conn.trailing_data[0])
    return connection.cycle.response_complete and has_begun


def allow_many_connections() -> None:
    """Raise the process's limit on open files to the maximum that the system allows.

    Clients may keep many idle connections open.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):  # On Windows, and where "unlimited" is not a number.
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: IPv4 or IPv6 address of a network interface of this machine, or a host name for this address.
        port: Port. 0 means any free port.

    Raises:
        InputError: If the address cannot be used.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"Cannot listen on {host}:{port}: {reason}. Choose another --port (0 takes a free port) or --host."
        ) from error
    # Connections inherit this option. asyncio sets it only for sockets with an explicit protocol. Without it, the body
    # of every response waits 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def load_export(export_uri: str, params: ServeParams, work: Path, version: str = "") -> ExportedModel:
    """Load the model of an export.

    If `params.verify` is set, the signature of the export is verified, and a verified copy of the export is loaded.

    Args:
        export_uri: Folder that export_model wrote, local or on gs://.
        params: Parameters of the server. Only the key, the format and the number of threads are used.
        work: Folder for the verified copy and for downloaded files.
        version: Version that the export must belong to if its signature is verified; see `verify_version`.

    Raises:
        InputError: If the export is missing or damaged, or its signature is invalid.
    """
    export_dir = (
        fetch_verified(export_uri, params.verify, work, version) if params.verify else fetch_folder(export_uri, work)
    )
    return load_model(export_dir, params.int8, params.num_threads)


def _announce(model: ExportedModel, listener: socket.socket, params: ServeParams) -> str:
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{params.predict_route}"
    body = r"""echo "{\"instances\": [{\"b64\": \"$(base64 < IMAGE | tr -d '\n')\"}]}" """
    if not isinstance(model.input, ImageInput):
        body = """echo '{"instances": [{"text": "TEXT"}]}' """
    return f"{params.model_name or model.name} now responds on {url}. Try: {body}| curl -d @- {shlex.quote(url)}"
