"""The server process: it listens while it loads the model, and finishes running requests when it stops."""

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
from typing import Any, cast

import uvicorn

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.terminal import printable
from tpu_components.core.examples.interface import ImageInput
from tpu_components.core.registry.reference import EXPORT_DIR, MODEL_NAME, version_at
from tpu_components.core.registry.signing import fetch_verified
from tpu_components.core.registry.versions import fetch_folder
from tpu_components.serving.application import Application
from tpu_components.serving.connections import Connection, ConnectionSlots, connection_limit
from tpu_components.serving.exported import ExportedModel, load_model
from tpu_components.serving.params import ServeParams
from tpu_components.serving.prediction_log import PredictionLog, report_once

# Longer than the keep-alive of Google's load balancers (600 s), which would otherwise use connections that are closed:
# https://cloud.google.com/load-balancing/docs/https#timeouts_and_retries
# Idle connections do no harm: they are the first to be closed when all slots are taken.
_KEEP_ALIVE_SECONDS = 620
_QUEUED_CONNECTIONS = 2048  # Connections that the system queues before they are accepted.
# asyncio accepts this many connections before other work; those above the limit must be closed in between.
_ACCEPTED_AT_ONCE = 16
SHUTDOWN_SECONDS = 25  # Kubernetes kills the container after 30.


def serve(export_uri: str, params: ServeParams, version: str = "") -> None:
    """Serve an export until SIGTERM or SIGINT (Ctrl-C), then finish running requests.

    Prints one line when the model is ready, and a JSON line on stderr per request.

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
        contextlib.ExitStack() as stack,
    ):
        log = None
        if params.log:
            log = PredictionLog(params.log, params.log_share, params.log_content, version_at(place))
            stack.callback(log.close)
        load = functools.partial(load_export, export_uri, params, Path(work), version)
        asyncio.run(_serve(listener, load, params, log))


def _name_by_place(place: str) -> str:
    """Return the name in an export's path: of the registered model, or of the run; empty for other paths.

    Example:
        >>> _name_by_place("/runs/registry/shoes/versions/0003/export"), _name_by_place("/runs/bags/export")
        ('shoes', 'bags')
        >>> _name_by_place("/export"), _name_by_place("/somewhere/else")
        ('', '')
    """
    run, folder = ("", *Path(place).parts)[-2:]
    name = version_at(place)[0] or (run if folder == EXPORT_DIR else "")
    return name if re.fullmatch(MODEL_NAME, name) else ""


async def _serve(
    listener: socket.socket, load: Callable[[], ExportedModel], params: ServeParams, log: PredictionLog | None
) -> None:
    application = Application(params, log)
    connection = functools.partial(Connection, ConnectionSlots(connection_limit(params.max_connections)))
    server = Server(
        uvicorn.Config(
            application,
            http=cast(type[asyncio.Protocol], connection),
            backlog=_ACCEPTED_AT_ONCE,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
    )
    asyncio.get_running_loop().set_exception_handler(handle_error)
    is_loaded = False

    def stop() -> None:
        if not is_loaded:
            os._exit(0)  # No request is running, and a download would delay the exit.
        application.stop()
        server.force_exit = server.should_exit  # True at the second Ctrl-C.
        server.should_exit = True

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        model = await asyncio.to_thread(load)
        is_loaded = True
        gc.collect()
        gc.freeze()  # A full collection stops all threads, and would look through all that was imported: some 30 ms.
        async with application.ready(model):
            print(printable(_announce(model, listener, params)), flush=True)
            await serving
    finally:
        server.should_exit = True
        await serving


class Server(uvicorn.Server):
    """uvicorn with our signal handlers. Its own handlers raise the signal again at the end: the exit code is not 0."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with a long queue."""
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(_QUEUED_CONNECTIONS)  # Overrides `backlog`, which must be small for accepting.

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers of uvicorn; ours stay in place."""
        yield


def handle_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report only the first failure to accept connections: asyncio retries, and would report every failure."""
    error = context.get("exception")
    if isinstance(error, OSError) and "accept" in context["message"]:
        report_once("Cannot accept connections", f"{error.strerror}. Raise the limit (ulimit -n)")
    else:
        loop.default_exception_handler(context)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: Address of an interface of this machine, IPv4 or IPv6, or its name.
        port: Port; 0 takes a free one.

    Raises:
        InputError: If the address cannot be used.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"Cannot listen on {host}:{port}: {reason}. Choose another --port (0 takes a free one) or --host."
        ) from error
    # Connections inherit TCP_NODELAY. asyncio sets it only for sockets with an explicit protocol. Without it, the body
    # of every response waits 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def load_export(export_uri: str, params: ServeParams, work: Path, version: str = "") -> ExportedModel:
    """Load the model of an export. If `params` has a key to verify, a verified copy of the export is loaded.

    Args:
        export_uri: Folder that export_model wrote, local or on gs://.
        params: Key, format and number of threads.
        work: Folder for the copy, and for a download.
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
    return f"{params.model_name or model.name} answers on {url} now. Try: {body}| curl -d @- {shlex.quote(url)}"
