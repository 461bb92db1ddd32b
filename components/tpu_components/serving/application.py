"""The ASGI application: routes and limits. Every response is JSON, errors included."""

import asyncio
import base64
import contextlib
import enum
import functools
import importlib.metadata
import json
import re
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tpu_components.core.base.cpus import available_cpus
from tpu_components.core.base.errors import InputError
from tpu_components.serving.exported import ExportedModel
from tpu_components.serving.instances import (
    JSON_LENGTH,
    PredictRequest,
    TooLargeError,
    configure_model,
    describe_model,
    parse_image,
    parse_infer,
    parse_request,
    render_infer,
    render_predictions,
)
from tpu_components.serving.params import ServeParams
from tpu_components.serving.prediction_log import Content, PredictionLog
from tpu_components.serving.scheduling import Batcher, FairThreads, HeldBytes, Hold, NoRoomError

BODY_TIMEOUT_SECONDS = 30.0
_UNPACKED_BYTES = 1 << 16  # Size of a piece of a decompressed body.
_MAX_THREADS = 4  # Each may decode a small file to an image of `max_image_pixels`, 120 MB.
# Of the threads that decode large images: a higher niceness is a lower priority.
_NICENESS = 10
_RENDERED_AT_ONCE = 100  # Largest number of probabilities that the event loop renders itself.
_CLIENT_LEFT = 499  # nginx's status for a client that has disconnected. Only the log shows it.
_STATUSES = {InputError: 400, TooLargeError: 413, NoRoomError: 503, ClientDisconnect: _CLIENT_LEFT}

_PICTURE = re.compile(rb"\xff\xd8\xff|\x89PNG|RIFF|GIF8|BM")  # curl --data-binary names no type of content.
_EXTENSIONS = ("binary_tensor_data", "model_configuration")  # Triton's extensions of KServe's V2.
_METRIC_PREFIX = "tpu_pipelines"
_BUCKET_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

prometheus_client.disable_created_metrics()  # No creation time beside every counter.

Answer = Callable[[Request, bytearray, Hold], Awaitable[Response]]


class _State(enum.StrEnum):
    """What the server is doing; the health route tells it."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


class Application:
    """Serves one model, as an ASGI application. Responds 503 before the model is loaded and after `stop`.

    Args:
        params: Routes and limits.
        log: Prediction log; None disables it.
    """

    def __init__(self, params: ServeParams, log: PredictionLog | None = None) -> None:
        self._params = params
        self._log = log
        self._state = _State.LOADING
        self._num_requests = 0
        self._held = HeldBytes(params.max_held_bytes)
        self._metrics = Metrics(
            {
                "requests_in_flight": lambda: self._num_requests,
                "held_bytes": lambda: self._held.total,
                "is_ready": lambda: self._state is _State.READY,
            }
        )
        answer, infer = functools.partial(self._predict, self._answer), functools.partial(self._predict, self._infer)
        # The name of a route labels the metrics.
        routes = [
            Route(params.health_route, self._health, name="health"),
            Route(params.predict_route, answer, methods=["POST"], name="predict"),
            Route("/metrics", self._show_metrics, name="metrics"),
            # KServe's routes, see tpu_components.serving.instances.
            Route("/v1/models", self._list_models, name="health"),
            Route("/v1/models/{name}:predict", answer, methods=["POST"], name="predict"),
            Route("/v1/models/{name}", self._is_ready, name="health"),
            Route("/v2", self._describe_server, name="health"),
            Route("/v2/health/live", self._is_live, name="health"),
            Route("/v2/health/ready", self._is_ready, name="health"),
            Route("/v2/models/{name}", functools.partial(self._describe, describe_model), name="health"),
            Route("/v2/models/{name}/ready", self._is_ready, name="health"),
            Route("/v2/models/{name}/config", functools.partial(self._describe, configure_model), name="health"),
            Route("/v2/models/{name}/infer", infer, methods=["POST"], name="predict"),
        ]
        self._route_names: Mapping[Any, str] = {route.endpoint: route.name for route in routes}
        handlers = {Exception: _fail, **dict.fromkeys((HTTPException, *_STATUSES), self._refuse)}
        self._starlette = Starlette(routes=routes, exception_handlers=handlers)
        self._starlette.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, count it, and log it as one JSON line on stderr, without its content.

        The content of a request may be private.
        """
        start = time.perf_counter()
        status = _CLIENT_LEFT
        state = scope.setdefault("state", {})
        state["start"] = start

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._starlette(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - start
            instances = state.get("instances", 0)
            route = self._route_names.get(scope.get("endpoint"), "other")
            self._metrics.count(route, status, seconds, instances)
            line = {
                "severity": "ERROR" if status == 500 else "INFO",
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": round(seconds * 1e3, 2),
                "instances": instances,
            }
            print(json.dumps(line), file=sys.stderr, flush=True)

    @contextlib.asynccontextmanager
    async def ready(self, model: ExportedModel) -> AsyncIterator[None]:
        """Serve predictions of `model` while the block runs."""
        self._model = model
        self._batcher = Batcher(model.predict, self._params.max_batch_size, self._params.max_wait_ms / 1e3)
        num_threads = min(available_cpus(), _MAX_THREADS)
        with (
            FairThreads(num_threads, "json") as self._threads,
            # One processor stays free, since a thread of low priority may hold Python's lock.
            FairThreads(max(num_threads - 1, 1), "images", _NICENESS) as self._image_threads,
        ):
            async with self._batcher.running():
                if self._state is _State.LOADING:
                    self._state = _State.READY
                yield

    def stop(self) -> None:
        """Finish running requests and reject new ones."""
        self._state = _State.STOPPING

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": self._state}, 200 if self._state is _State.READY else 503)

    async def _show_metrics(self, request: Request) -> Response:
        content, content_type = self._metrics.render(request.headers.get("accept", ""))
        return Response(content, media_type=content_type)

    async def _is_live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _is_ready(self, request: Request) -> Response:
        """Respond whether the server, or the named model, is ready. While the model loads, the name is not checked."""
        is_ready = self._state is _State.READY
        name = self._name_asked(request) if is_ready else request.path_params.get("name", "")
        return JSONResponse({"name": name, "ready": is_ready, "live": True}, 200 if is_ready else 503)

    async def _list_models(self, request: Request) -> Response:
        return JSONResponse({"models": [self._name] if self._state is _State.READY else []})

    async def _describe_server(self, request: Request) -> Response:
        version = "unknown"  # In images the package is not installed.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version("tpu-pipelines")
        return JSONResponse({"name": "tpu-pipelines", "version": version, "extensions": _EXTENSIONS})

    async def _describe(self, describe: Callable[[str, ExportedModel], dict[str, Any]], request: Request) -> Response:
        return JSONResponse(describe(self._name_asked(request), self._model))

    @property
    def _name(self) -> str:
        return self._params.model_name or self._model.name

    def _name_asked(self, request: Request) -> str:
        """Return the model's name; responds 503 if no model is ready, and 404 if the path has another name."""
        if self._state is not _State.READY:
            raise HTTPException(503, f"The server is {self._state}. Try again later.")
        asked = request.path_params.get("name", self._name)
        if asked != self._name:
            raise HTTPException(404, f"There is no model {asked[:40]!r}. Expected {self._name!r} (--model-name).")
        return self._name

    async def _predict(self, answer: Answer, request: Request) -> Response:
        self._name_asked(request)
        self._check_number()
        with self._held.hold() as hold:
            body = await self._read_body(request, hold)
            self._check_number()
            self._num_requests += 1  # After the body: an unfinished body takes no request slot.
            try:
                return await answer(request, body, hold)
            finally:
                self._num_requests -= 1

    def _check_number(self) -> None:
        if self._num_requests >= self._params.max_requests:
            raise HTTPException(503, f"The server is busy: it holds {self._num_requests} requests. Try again later.")

    async def _answer(self, request: Request, body: bytearray, hold: Hold) -> Response:
        """Answer a prediction request in the protocol of Vertex AI, which is KServe's V1."""
        is_image = request.headers.get("content-type", "").startswith("image/") or bool(_PICTURE.match(body))
        parse: Any = (parse_request, body, self._model.reader, self._params)
        if is_image:
            parse = (parse_image, body, self._model.reader, request.query_params.get("top"), self._params)
        # In a thread: a large body or image would block the event loop.
        asked = await self._threads.run(len(body), *parse)
        outputs = await self._outputs(request, asked, hold, functools.partial(_content, body, is_image))
        content = await self._render(outputs, render_predictions, self._model, outputs, asked.top)
        return Response(content, media_type="application/json")

    async def _infer(self, request: Request, body: bytearray, hold: Hold) -> Response:
        """Answer an inference request in KServe's V2 protocol."""
        length = request.headers.get(JSON_LENGTH)
        if length is not None and not (length.isdecimal() and len(length) <= len(str(self._params.max_body_bytes))):
            raise InputError(f"{JSON_LENGTH} must be a number of bytes of the body. Received: {length[:40]!r}.")
        num_json_bytes = None if length is None else int(length)
        asked = await self._threads.run(len(body), parse_infer, body, self._model, self._params, num_json_bytes)
        outputs = await self._outputs(request, asked, hold)
        content, num_json_bytes = await self._render(outputs, render_infer, self._name, self._model, outputs, asked)
        if num_json_bytes == len(content):
            return Response(content, media_type="application/json")
        return Response(content, headers={JSON_LENGTH: str(num_json_bytes)}, media_type="application/octet-stream")

    async def _outputs(
        self, request: Request, asked: PredictRequest, hold: Hold, content: Content | None = None
    ) -> np.ndarray:
        if asked.num_bytes > self._held.limit:
            raise TooLargeError(
                f"All requests together may hold {self._held.limit:,} bytes (--max-held-bytes). Received: instances "
                f"that take {asked.num_bytes:,}. Send them in several requests."
            )
        hold.resize(asked.num_bytes)
        request.state.instances = len(asked.inputs)
        for num_pixels, numbers in asked.parts():
            if await request.is_disconnected():
                raise ClientDisconnect
            await self._image_threads.run(num_pixels, asked.decode, numbers)
        outputs = await self._batcher.predict(asked.inputs)
        if self._log:
            self._log.add(self._model, outputs, time.perf_counter() - request.state.start, content)
        return outputs

    async def _render(self, outputs: np.ndarray, render: Callable[..., Any], *arguments: Any) -> Any:
        if outputs.size <= _RENDERED_AT_ONCE:  # Takes some 50 µs, as a thread switch does.
            return render(*arguments)
        return await self._threads.run(outputs.size, render, *arguments)

    async def _read_body(self, request: Request, hold: Hold) -> bytearray:
        """Return the body of a request, decompressed.

        Raises:
            HTTPException: If it is too large, also after decompression; does not arrive in time; or has an unknown
                encoding.
            InputError: If it is not what its encoding says.
        """
        limit = self._params.max_body_bytes
        body = bytearray()
        unpacked = _Unpacked() if _is_gzip(request) else None
        try:
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS) as patience:
                with hold.arriving(lambda: patience.reschedule(0)):
                    _check_size(int(request.headers.get("content-length", 0)), limit)  # Before reading the body.
                    async for chunk in request.stream():
                        for piece in unpacked.pieces(chunk) if unpacked else (chunk,):
                            _check_size(len(body) + len(piece), limit)
                            hold.resize(len(body) + len(piece))
                            body += piece
                            if unpacked:
                                await asyncio.sleep(0)  # Let other requests go on: a bomb has many pieces.
        except TimeoutError as error:
            if hold.gave_way:
                raise self._held.no_room() from error
            raise HTTPException(408, f"The body did not arrive within {BODY_TIMEOUT_SECONDS:.0f} s.") from error
        if unpacked:
            unpacked.check_end()
        return body

    async def _refuse(self, request: Request, error: Exception) -> Response:
        status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 500)
        message = str(error) or "The client left."
        headers = {}
        if isinstance(error, HTTPException):
            status = error.status_code
            message = error.detail
            headers = {**(error.headers or {})}
        if message in ("Not Found", "Method Not Allowed"):
            message = (
                f"There is no {request.method} {request.scope['path']}. "
                f"Expected GET {self._params.health_route} or POST {self._params.predict_route}."
            )
        if status == 503:
            headers["Retry-After"] = "1"
        return JSONResponse({"error": message}, status, headers)


def _content(body: bytearray, is_image: bool) -> Sequence[Any]:
    """Return the instances of a body, which is JSON or the bytes of one image file."""
    if is_image:
        return [{"b64": base64.b64encode(body).decode()}]
    instances: Sequence[Any] = json.loads(body)["instances"]
    return instances


def _is_gzip(request: Request) -> bool:
    """Return whether a body is compressed with gzip; responds 415 to other encodings.

    https://www.rfc-editor.org/rfc/rfc9110#section-8.4.1: names of encodings ignore case, and x-gzip is gzip.
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


class _Unpacked:
    """Decompresses a body while it arrives, so that a small body cannot take much memory."""

    def __init__(self) -> None:
        # 16 stands for gzip: https://docs.python.org/3/library/zlib.html#zlib.decompressobj
        self._stream = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decompressed bytes of a chunk, in pieces of at most 64 KiB."""
        while chunk:
            if self._stream.eof:
                raise InputError("The body goes on after the end of its gzip data. Expected one gzip member.")
            try:
                yield self._stream.decompress(chunk, _UNPACKED_BYTES)
            except zlib.error as error:
                raise InputError(f"The body is not gzip, as its Content-Encoding says: {error}.") from error
            chunk = self._stream.unconsumed_tail or self._stream.unused_data

    def check_end(self) -> None:
        """Check that the gzip data are complete."""
        if not self._stream.eof:
            raise InputError("The body ends before its gzip data do. Send the whole body.")


def _check_size(num_bytes: int, limit: int) -> None:
    if num_bytes > limit:
        raise HTTPException(
            413,
            f"A body may have {limit:,} bytes (--max-body-bytes). Received: {num_bytes:,} or more. Send fewer or "
            "smaller images.",
        )


async def _fail(request: Request, error: Exception) -> Response:
    """Respond 500 to an unexpected error; the server writes the stack trace to stderr."""
    return JSONResponse({"error": "The server failed. Its log says why."}, 500)


class Metrics:
    """Counts requests by route and status, counts their instances, and measures their duration.

    Args:
        gauges: Functions that return current values, by name; called when the metrics are rendered.
    """

    def __init__(self, gauges: Mapping[str, Callable[[], float]]) -> None:
        self._all = CollectorRegistry()
        self._requests = Counter(
            "requests", "Requests that were answered.", ("route", "status"), _METRIC_PREFIX, registry=self._all
        )
        self._instances = Counter(
            "instances", "Instances that were answered.", namespace=_METRIC_PREFIX, registry=self._all
        )
        self._seconds = Histogram(
            "predict_seconds",
            "Time of requests with instances, from head to answer.",
            namespace=_METRIC_PREFIX,
            registry=self._all,
            buckets=_BUCKET_SECONDS,
        )
        for name, value in gauges.items():
            Gauge(name, "Now.", namespace=_METRIC_PREFIX, registry=self._all).set_function(value)

    def count(self, route: str, status: int, seconds: float, instances: int) -> None:
        """Count an answered request; `route` is one of a few names, never a path that a client has chosen."""
        self._requests.labels(route, status).inc()
        self._instances.inc(instances)
        if instances:
            self._seconds.observe(seconds)

    def render(self, accepted: str = "") -> tuple[bytes, str]:
        """Return all metrics and the content type, in a format that the header Accept names (default: Prometheus's)."""
        encode, content_type = choose_encoder(accepted)
        return encode(self._all), content_type
