"""The process: listens, loads the model meanwhile, answers, and ends without cutting an answer short."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import uvicorn

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.terminal import printable
from tpu_components.core.examples.interface import ImageInput
from tpu_components.core.registry.reference import EXPORT_DIR, MODEL_NAME, VERSIONS_DIR
from tpu_components.core.registry.signing import fetch_verified
from tpu_components.core.registry.versions import fetch_folder
from tpu_components.serving.application import Application
from tpu_components.serving.connections import Connection, Places, connection_limit
from tpu_components.serving.exported import ExportedModel, load_model
from tpu_components.serving.params import ServeParams
from tpu_components.serving.prediction_log import PredictionLog

# Longer than Google's load balancers keep theirs (600 s), which would otherwise meet connections just closed:
# https://cloud.google.com/load-balancing/docs/https#timeouts_and_retries
# An idle connection costs nobody anything: it is the first to go where its place is needed.
_KEEP_ALIVE_SECONDS = 620
_QUEUED_CONNECTIONS = 2048  # By the system, before they are accepted.
# asyncio accepts as many at once before it looks at anything else; what is above the limit must be closed in between.
_ACCEPTED_AT_ONCE = 16
_SHUTDOWN_SECONDS = 25  # Kubernetes kills what has not ended after 30.


def serve(export_uri: str, params: ServeParams, version: str = "") -> None:
    """Serve an export until SIGTERM or SIGINT (Ctrl-C), then finish what has begun.

    Prints one line once it can answer, and a JSON line on stderr per request.

    Args:
        export_uri: The folder that export_model wrote, local or on gs://.
        params: Address to listen on, and the load to take.
        version: Name of the version that it must be of, where its signature is asked for; see `verify_version`.

    Raises:
        InputError: If it cannot listen there, the export is missing or damaged, or a signature does not hold.
    """
    if not params.model_name:
        params = dataclasses.replace(params, model_name=version or _name_by_place(export_uri))
    with (
        _listen(params.host, params.port) as listener,
        _open_log(params, export_uri) as log,
        tempfile.TemporaryDirectory(prefix="serving-") as work,
    ):
        load = functools.partial(_load, export_uri, params, Path(work), version)
        asyncio.run(_serve(listener, load, params, log))


def _registered(export_uri: str) -> tuple[str, str]:
    """Return name and number of the version that an export is of, by its place in a registry; else two empty texts."""
    *_, model_name, versions, number, _ = ("", "", "", *Path(export_uri).absolute().parts)
    return (model_name, number) if versions == VERSIONS_DIR else ("", "")


def _name_by_place(export_uri: str) -> str:
    """Return the name that an export is known by: its registered model's, or its run's; else nothing.

    Example:
        >>> _name_by_place("runs/registry/shoes/versions/0003/export"), _name_by_place("runs/bags/export")
        ('shoes', 'bags')
        >>> _name_by_place("/export"), _name_by_place("/somewhere/else")
        ('', '')
    """
    *_, run, folder = ("", *Path(export_uri).absolute().parts)
    name = _registered(export_uri)[0] or (run if folder == EXPORT_DIR else "")
    return name if re.fullmatch(MODEL_NAME, name) else ""


@contextlib.contextmanager
def _open_log(params: ServeParams, export_uri: str) -> Iterator[PredictionLog | None]:
    """Open the log of predictions, if there is to be one; a version is known by its place in a registry's folder."""
    if not params.log:
        yield None
        return
    log = PredictionLog(params.log, params.log_share, params.log_content, _registered(export_uri))
    try:
        yield log
    finally:
        log.close()


async def _serve(
    listener: socket.socket, load: Callable[[], ExportedModel], params: ServeParams, log: PredictionLog | None
) -> None:
    application = Application(params, log)
    connection = functools.partial(Connection, Places(connection_limit(params.max_connections)))
    server = _Server(
        uvicorn.Config(
            application.asgi,
            http=cast(type[asyncio.Protocol], connection),
            backlog=_ACCEPTED_AT_ONCE,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
    )
    asyncio.get_running_loop().set_exception_handler(_AcceptErrors())
    is_loaded = False

    def stop() -> None:
        if not is_loaded:
            os._exit(0)  # There is nothing to finish, and a download would go on.
        application.stop()
        server.force_exit = server.should_exit  # The second Ctrl-C.
        server.should_exit = True

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        model = await asyncio.to_thread(load)
        is_loaded = True
        async with application.ready(model):
            print(printable(_announce(model, listener, params)), flush=True)
            await serving
    finally:
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """uvicorn, but the signals are ours: its own handlers raise them again at the end, and no exit code is 0 then."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(_QUEUED_CONNECTIONS)  # `backlog` sets this too, and is small for another reason.

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _AcceptErrors:
    """Logs once that connections cannot be accepted: asyncio tries again and again, and tells each time."""

    def __init__(self) -> None:
        self._is_known = False

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or "accept" not in context["message"]:
            loop.default_exception_handler(context)
        elif not self._is_known:
            self._is_known = True
            message = f"Cannot accept connections: {error.strerror}. Raise the limit (ulimit -n); told once."
            print(json.dumps({"severity": "ERROR", "message": message}), file=sys.stderr, flush=True)


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"Cannot listen on {host}:{port}: {reason}. Choose another --port (0 takes a free one) or --host."
        ) from error
    # Connections inherit it. asyncio sets it only where a socket names its protocol, and this one does not; without,
    # the body of every answer waits 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _load(export_uri: str, params: ServeParams, work: Path, version: str = "") -> ExportedModel:
    if params.verify:
        export_dir = fetch_verified(export_uri, params.verify, work, version)
    else:
        export_dir = fetch_folder(export_uri, work)
    return load_model(export_dir, params.int8, params.num_threads)


def _announce(model: ExportedModel, listener: socket.socket, params: ServeParams) -> str:
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{params.predict_route}"
    body = r"""echo "{\"instances\": [{\"b64\": \"$(base64 < IMAGE | tr -d '\n')\"}]}" """
    if not isinstance(model.input, ImageInput):
        body = """echo '{"instances": [{"text": "TEXT"}]}' """
    return f"{model.name} answers on {url} now. Try: {body}| curl -d @- {url}"
