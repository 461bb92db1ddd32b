"""The ASGI application: routes and limits. Every response is JSON, including errors."""

import asyncio
import contextlib
import importlib.metadata
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h11
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tpu_components.core.base.cpus import available_cpus
from tpu_components.core.base.errors import InputError
from tpu_components.serving.batching import Batcher
from tpu_components.serving.bodies import HeldBytes, is_gzip, read_body, unpack
from tpu_components.serving.exported import ExportedModel
from tpu_components.serving.instances import (
    BINARY_HEADER,
    PredictRequest,
    TooLargeError,
    describe_model,
    parse_infer,
    parse_request,
    render_infer,
    render_predictions,
)
from tpu_components.serving.metrics import Metrics
from tpu_components.serving.params import ServeParams

_MAX_THREADS = 4  # Largest number of threads that parse requests and decode small images.
_RENDERED_AT_ONCE = 100  # Largest number of probabilities that the event loop renders itself.
_CLIENT_LEFT = 499  # nginx's status for a client that has disconnected. Only the log shows it.
# Largest number of bodies that may arrive in chunks at the same time. h11 needs about 7 µs for a chunk, so a body in
# chunks of one byte takes seconds.
_MAX_CHUNKED = 4
_STATUSES = {InputError: 400, TooLargeError: 413, ClientDisconnect: _CLIENT_LEFT}

Parse = Callable[[bytes | bytearray], PredictRequest]
Render = Callable[[np.ndarray, PredictRequest], bytes]


class Application:
    """An ASGI application that serves one model. It responds with 503 until the model is loaded.

    Args:
        params: Routes and limits.
    """

    def __init__(self, params: ServeParams) -> None:
        self._params = params
        self._model: ExportedModel | None = None
        self._num_requests = 0
        self._num_chunked = 0
        self._held = HeldBytes(params.max_held_bytes)
        self._metrics = Metrics(
            {
                "requests_in_flight": lambda: self._num_requests,
                "held_bytes": lambda: self._held.total,
                "is_ready": lambda: self._model is not None,
            }
        )
        # The name of a route labels the metrics.
        routes = [
            Route(params.health_route, self._health, name="health"),
            Route(params.predict_route, self._predict, methods=["POST"], name="predict"),
            Route("/metrics", self._show_metrics, name="metrics"),
            # KServe's routes, see tpu_components.serving.instances.
            Route("/", self._is_alive, name="health"),
            Route("/v1/models", self._list_models, name="health"),
            Route("/v1/models/{name}:predict", self._predict, methods=["POST"], name="predict"),
            Route("/v1/models/{name}", self._is_ready, name="health"),
            Route("/v2", self._describe_server, name="health"),
            Route("/v2/health/live", self._is_live, name="health"),
            Route("/v2/health/ready", self._is_ready, name="health"),
            Route("/v2/models/{name}", self._describe_model, name="health"),
            Route("/v2/models/{name}/ready", self._is_ready, name="health"),
            Route("/v2/models/{name}/infer", self._infer, methods=["POST"], name="predict"),
        ]
        self._route_names: Mapping[Any, str] = {route.endpoint: route.name for route in routes}
        handlers = {Exception: _fail, **dict.fromkeys((HTTPException, *_STATUSES), self._refuse)}
        self._starlette = Starlette(routes=routes, exception_handlers=handlers)
        self._starlette.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request, count it, and log it as one JSON line on stderr.

        The log does not contain the content of requests, because it may be private.
        """
        start = time.perf_counter()
        status = _CLIENT_LEFT
        state = scope.setdefault("state", {})
        is_chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            with contextlib.suppress(h11.LocalProtocolError):  # uvicorn has answered 400 to the rest of the request.
                await send(message)

        try:
            if refusal := self._refuse_chunks(scope) if is_chunked else None:
                await refusal(scope, receive, watch)
            else:
                self._num_chunked += is_chunked
                try:
                    await self._starlette(scope, receive, watch)
                finally:
                    self._num_chunked -= is_chunked
        finally:
            seconds = time.perf_counter() - start
            instances = state.get("instances", 0)
            self._metrics.count(self._route_names.get(scope.get("endpoint"), "other"), status, seconds, instances)
            line = {
                "severity": "ERROR" if status == 500 else "INFO",
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": round(seconds * 1e3, 2),
                "instances": instances,
            }
            print(json.dumps(line), file=sys.stderr, flush=True)

    def _refuse_chunks(self, scope: Scope) -> Response | None:
        """Return the error response to a request with a chunked body, or None if the body is accepted.

        A body is rejected if its end is ambiguous, or if too many other chunked bodies are arriving. Two servers may
        interpret an ambiguous end differently: https://www.rfc-editor.org/rfc/rfc9112#section-11.2
        """
        has_length = any(name == b"content-length" for name, _ in scope["headers"])
        if has_length or scope["http_version"] != "1.1":
            error = "Cannot read a body with both Transfer-Encoding and Content-Length, or with chunks in HTTP/1.0."
            return JSONResponse(
                {"error": f"{error} Send only one of these headers, with HTTP/1.1."}, 400, {"Connection": "close"}
            )
        if self._num_chunked >= _MAX_CHUNKED:
            error = f"The server is busy: {self._num_chunked} bodies are arriving in chunks. Try again later."
            headers = {"Connection": "close", "Retry-After": "1"}
            return JSONResponse(
                {"error": f"{error} This limit does not apply to requests with Content-Length."}, 503, headers
            )
        return None

    @contextlib.asynccontextmanager
    async def ready(self, model: ExportedModel) -> AsyncIterator[None]:
        """While the `async with` block runs, respond to requests with predictions of `model`."""
        self._metrics.add_model(model)
        self._batcher = Batcher(model.predict, self._params.max_batch_size, self._params.max_wait_ms / 1e3)
        with (
            ThreadPoolExecutor(min(available_cpus(), _MAX_THREADS), "parse") as self._threads,
            # Large images have a thread of their own, so that small requests need not wait for them.
            ThreadPoolExecutor(1, "images") as self._image_thread,
        ):
            async with self._batcher.running():
                self._model = model
                yield

    async def _health(self, request: Request) -> Response:
        is_ready = self._model is not None
        return JSONResponse({"status": "ready" if is_ready else "loading"}, 200 if is_ready else 503)

    async def _show_metrics(self, request: Request) -> Response:
        content, content_type = self._metrics.render(request.headers.get("accept", ""))
        return Response(content, media_type=content_type)

    async def _is_alive(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def _is_live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _is_ready(self, request: Request) -> Response:
        """Respond with 200 if the server, or the model that the path names, is ready, otherwise with 503.

        Once the model is loaded, a path that names another model gets 404.
        """
        is_ready = self._model is not None
        name = self._named_model(request)[0] if is_ready else request.path_params.get("name", "")
        return JSONResponse({"name": name, "ready": is_ready, "live": True}, 200 if is_ready else 503)

    async def _list_models(self, request: Request) -> Response:
        return JSONResponse({"models": [self._named_model(request)[0]] if self._model else []})

    async def _describe_server(self, request: Request) -> Response:
        version = "unknown"  # In images the package is not installed.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version("tpu-pipelines")
        return JSONResponse({"name": "tpu-pipelines", "version": version, "extensions": []})

    async def _describe_model(self, request: Request) -> Response:
        return JSONResponse(describe_model(*self._named_model(request)))

    def _named_model(self, request: Request) -> tuple[str, ExportedModel]:
        """Return the name of the model, and the model.

        Respond with 503 before the model is loaded, and with 404 if the path of the request names another model.
        """
        if self._model is None:
            raise HTTPException(503, "The server is loading. Try again later.")
        name = self._params.model_name or self._model.name
        asked = request.path_params.get("name", name)
        if asked != name:
            raise HTTPException(404, f"There is no model {asked[:40]!r}. Expected {name!r}, the value of --model-name.")
        return name, self._model

    async def _predict(self, request: Request) -> Response:
        """Respond to a prediction request in the protocol of Vertex AI, which is KServe's V1 protocol."""
        _, model = self._named_model(request)
        content_type = request.headers.get("content-type", "")
        top = request.query_params.get("top")
        return await self._answer(
            request,
            model,
            lambda body: parse_request(body, model.reader, self._params, content_type, top),
            lambda outputs, asked: render_predictions(model, outputs, asked.top),
        )

    async def _infer(self, request: Request) -> Response:
        """Respond to an inference request in KServe's V2 protocol."""
        name, model = self._named_model(request)
        binary_length = request.headers.get(BINARY_HEADER)
        return await self._answer(
            request,
            model,
            lambda body: parse_infer(body, model, self._params, binary_length),
            lambda outputs, asked: render_infer(name, model, outputs, asked),
        )

    async def _answer(self, request: Request, model: ExportedModel, parse: Parse, render: Render) -> Response:
        self._check_number()
        packed = is_gzip(request)
        with self._held.holding() as hold:
            body: bytes | bytearray = await read_body(request, self._params.max_body_bytes, hold)
            self._check_number()
            self._num_requests += 1  # After the body: an unfinished body takes no request slot.
            try:
                run = asyncio.get_running_loop().run_in_executor
                if packed:
                    body = await run(self._threads, unpack, body, self._params.max_body_bytes)
                    hold(len(body))
                # In a thread: a large body or image would block the event loop.
                asked = await run(self._threads, parse, body)
                hold(asked.num_bytes)
                for number in list(asked.waiting):
                    if await request.is_disconnected():
                        raise ClientDisconnect
                    await run(self._image_thread, asked.decode, number)
                outputs = await self._batcher.predict(asked.inputs)
                if outputs.size > _RENDERED_AT_ONCE:  # Smaller outputs take about 50 µs, as long as a thread switch.
                    content = await run(self._threads, render, outputs, asked)
                else:
                    content = render(outputs, asked)
                self._metrics.count_predictions(outputs)
                request.state.instances = len(asked.inputs)
                return Response(content, media_type="application/json")
            finally:
                self._num_requests -= 1

    def _check_number(self) -> None:
        if self._num_requests >= self._params.max_requests:
            raise HTTPException(
                503, f"The server is busy: it is processing {self._num_requests} requests. Try again later."
            )

    async def _refuse(self, request: Request, error: Exception) -> Response:
        status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 500)
        message = str(error) or "The client closed the connection."
        headers = {}
        if isinstance(error, HTTPException):
            status = error.status_code
            message = error.detail
            headers = {**(error.headers or {})}
        if message in ("Not Found", "Method Not Allowed"):
            message = (
                f"There is no {request.method} {request.scope['path']}. Expected GET {self._params.health_route} or "
                f"POST {self._params.predict_route}."
            )
        if status == 503:
            headers["Retry-After"] = "1"
        return JSONResponse({"error": message}, status, headers)


async def _fail(request: Request, error: Exception) -> Response:
    """Respond with 500 to an unexpected error. The server writes the stack trace to stderr."""
    return JSONResponse({"error": "The server failed. See its log for the reason."}, 500)
