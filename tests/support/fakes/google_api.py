"""An HTTP server for Google APIs, which maps requests to methods by the client library's annotations.

`GoogleApiServer` knows every method of its services, parses requests with their types, and calls its own method of the
same name: `create_pipeline_job(request) -> response`. Missing methods are answered as unimplemented. Tests can inject
faults, require bearer tokens, and make tokens expire.
"""

import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import random
import re
import threading
import time
import traceback
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

import proto
from google.protobuf import json_format, message
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.rpc import code_pb2

from tests.support.fakes.local_server import LocalServer

# https://cloud.google.com/apis/design/errors#handling_errors
HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
}


class ServiceError(Exception):
    """An error of the service; `status` is a canonical code such as NOT_FOUND."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code_pb2.Code.Value(status)


@dataclasses.dataclass
class Fault:
    """A fault of the next `times` requests of a method (of any method if it is empty), after `skip` others.

    `status` is the error of the response. `drop` closes the connection: `before` the request is processed, `after` it
    without a response, or `halfway` through the response. `late_seconds` delays the response.
    """

    times: int
    status: str = ""
    drop: str = ""
    method: str = ""
    skip: int = 0
    late_seconds: float = 0


@dataclasses.dataclass(frozen=True)
class Call:
    """A request that arrived: the method, the parsed request, the HTTP status of the response (0: none), the token."""

    method: str
    request: Any
    status: int
    token: str


@dataclasses.dataclass(frozen=True)
class _Route:
    verb: str
    path: re.Pattern[str]
    fields: tuple[str, ...]
    body: str
    method: str
    request_type: type[proto.Message]


@functools.cache
def _routes(services: tuple[str, ...]) -> tuple[_Route, ...]:
    """Return all routes of some services; cached."""
    return tuple(_read_routes(services))


def _read_routes(services: tuple[str, ...]) -> Iterator[_Route]:
    for service in services:
        package, name = service.rsplit(".", 1)
        base = importlib.import_module(f"{package}.services.{name}.transports.rest_base")
        types = importlib.import_module(f"{package}.types.{name}")
        (transport,) = (kind for kind in vars(base).values() if getattr(kind, "__module__", "") == base.__name__)
        for key, annotated in vars(transport).items():
            method = key.removeprefix("_Base")
            if hasattr(annotated, "_get_http_options") and hasattr(types, f"{method}Request"):
                for option in annotated._get_http_options():  # noqa: SLF001 (the only list of them)
                    path, fields = _compile_template(option["uri"])
                    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()
                    request_type = getattr(types, f"{method}Request")
                    yield _Route(option["method"].upper(), path, fields, option.get("body", ""), snake, request_type)


def _compile_template(template: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """Return a template such as `/v1/{name=projects/*}:cancel` as a pattern, and the fields that its groups fill."""
    fields = []
    pattern = ""
    for text, field, value in re.findall(r"([^{]*)(?:\{([\w.]+)=([^}]*)\})?", template):
        pattern += re.escape(text)
        if field:
            fields.append(field)
            pattern += "(" + re.escape(value).replace(r"\*\*", ".+").replace(r"\*", r"[^/:]+") + ")"
    return re.compile(pattern), tuple(fields)


def _set_field(request: message.Message, path: str, values: list[str]) -> None:
    """Set a field from path or query text; `path` is dotted, of either JSON or proto names."""
    *parents, last = path.split(".")
    for parent in parents:
        request = getattr(request, _field(request.DESCRIPTOR, parent).name)
    field = _field(request.DESCRIPTOR, last)
    plain = [value == "true" if field.type == FieldDescriptor.TYPE_BOOL else value for value in values]
    value = plain if field.is_repeated else plain[-1]
    json_format.ParseDict({field.json_name: value}, request)


def _field(descriptor: Descriptor, name: str) -> FieldDescriptor:
    field = descriptor.fields_by_camelcase_name.get(name) or descriptor.fields_by_name.get(name)
    if field is None:
        raise ServiceError("INVALID_ARGUMENT", f'Invalid JSON payload received. Unknown name "{name}".')
    return field


class GoogleApiServer(LocalServer):
    """A server of Google's methods, for a `with` block.

    Args:
        services: Modules of the client library, for example `google.cloud.aiplatform_v1.pipeline_service`.

    Attributes:
        calls: Every request of a method that arrived, in order.
        lock: Held while a method runs, so that each sees a consistent state.
        latency_seconds: Delay before a request is processed.
    """

    def __init__(self, *services: str) -> None:
        self._all_routes = _routes(services)
        self._faults: list[Fault] = []
        self._weather: Callable[[], Fault] = lambda: Fault(0)
        self._valid_tokens: set[str] | None = None
        self._token_lifetime_seconds = 3600
        self._token_numbers = itertools.count(1)
        self.calls: list[Call] = []
        self.lock = threading.RLock()
        self.latency_seconds = 0.0
        super().__init__(type("Handler", (_Handler,), {"api": self}))

    def fail_next(self, times: int, status: str, method: str = "", skip: int = 0) -> None:
        """Answer the next requests with an error, such as UNAVAILABLE."""
        self._faults.append(Fault(times, status=status, method=method, skip=skip))

    def drop_next(self, times: int, when: str, method: str = "", skip: int = 0) -> None:
        """Close the connection of the next requests: `before`, `after`, or `halfway` through the answer."""
        self._faults.append(Fault(times, drop=when, method=method, skip=skip))

    def fail_while(self, condition: Callable[[], bool], status: str) -> None:
        """Answer every request with an error, such as UNAVAILABLE, as long as the condition holds."""
        self._weather = lambda: Fault(0, status=status) if condition() else Fault(0)

    def storm(self, share: float, seed: int = 0, late_seconds: float = 1.0) -> None:
        """From now on, give this share of all requests a fault: lost, cut off, late, 429 or 503, all equally often."""
        faults = [
            *(Fault(0, drop=when) for when in ("before", "after", "halfway")),
            *(Fault(0, status=status) for status in ("RESOURCE_EXHAUSTED", "UNAVAILABLE")),
            Fault(0, late_seconds=late_seconds),
        ]
        dice = random.Random(seed)
        self._weather = lambda: dice.choice(faults) if dice.random() < share else Fault(0)

    def recover(self) -> None:
        """Stop all faults."""
        self._faults.clear()
        self._weather = lambda: Fault(0)

    def require_tokens(self, lifetime_seconds: int = 3600) -> None:
        """From now on, accept only tokens from POST /token, an OAuth token exchange."""
        self._valid_tokens, self._token_lifetime_seconds = set(), lifetime_seconds

    def expire_tokens(self) -> None:
        """From now on, refuse all tokens that were issued so far."""
        self._valid_tokens = set()

    def called(self, method: str) -> list[Call]:
        """Return the requests of a method that were processed without an error."""
        return [call for call in self.calls if call.method == method and call.status in (0, 200)]

    def exchange_token(self) -> dict[str, Any]:
        """Issue a new token."""
        with self.lock:
            token = f"token-{next(self._token_numbers)}"
            if self._valid_tokens is not None:
                self._valid_tokens.add(token)
        return {
            "access_token": token,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": self._token_lifetime_seconds,
        }

    def answer(self, verb: str, target: str, body: bytes, token: str) -> tuple[int, dict[str, Any], str]:
        """Return the HTTP status and JSON of a response, and how to drop the connection, if at all."""
        path, _, query = target.partition("?")
        if path == "/token":
            return 200, self.exchange_token(), ""
        time.sleep(self.latency_seconds)
        method, request, drop = "", None, ""
        try:
            method, request = self._parse(verb, urllib.parse.unquote(path), query, body)
            fault = self._take_fault(method)
            drop = fault.drop
            if drop == "before":
                self.calls.append(Call(method, request, 503, token))
                return 503, {}, drop
            if fault.status:
                raise ServiceError(fault.status, f"Injected into {method}.")
            if self._valid_tokens is not None and token not in self._valid_tokens:
                raise ServiceError("UNAUTHENTICATED", "Request had invalid authentication credentials.")
            with self.lock:
                handler = getattr(self, method, None)
                if handler is None:
                    raise ServiceError("UNIMPLEMENTED", f"This fake has no {method}.")
                content = self.encode(handler(request))
            time.sleep(fault.late_seconds)
            self.calls.append(Call(method, request, 0 if drop else 200, token))
            return 200, content, drop
        except ServiceError as error:
            status = HTTP_STATUS[error.status]
            self.calls.append(Call(method, request, status, token))
            return status, {"error": {"code": status, "message": str(error), "status": error.status}}, drop
        except Exception as error:  # A defect of the fake: let the client see it.
            traceback.print_exc()
            return 500, {"error": {"code": 500, "message": repr(error), "status": "INTERNAL"}}, drop

    def encode(self, response: Any) -> dict[str, Any]:
        """Return a response as JSON."""
        return json_format.MessageToDict(
            type(response).pb(response) if isinstance(response, proto.Message) else response
        )

    def _parse(self, verb: str, path: str, query: str, body: bytes) -> tuple[str, Any]:
        for route in self._all_routes:
            match = route.path.fullmatch(path)
            if route.verb != verb or not match:
                continue
            wrapped = route.request_type()
            request = route.request_type.pb(wrapped)
            try:
                if route.body:
                    target = request if route.body == "*" else getattr(request, route.body)
                    target.SetInParent()
                    json_format.Parse(body or b"{}", target)
                for field, value in zip(route.fields, match.groups(), strict=True):
                    _set_field(request, field, [value])
                for field, values in urllib.parse.parse_qs(query).items():
                    if not field.startswith("$"):
                        _set_field(request, field, values)
            except json_format.ParseError as error:
                raise ServiceError("INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from error
            return route.method, wrapped
        raise ServiceError("UNIMPLEMENTED", f"No method at {verb} {path}.")

    def _take_fault(self, method: str) -> Fault:
        with self.lock:
            for fault in self._faults:
                if not fault.times or fault.method not in ("", method):
                    continue
                if fault.skip:
                    fault.skip -= 1
                else:
                    fault.times -= 1
                    return fault
            return self._weather()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    api: GoogleApiServer

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        status, content, drop = self.api.answer(self.command, self.path, body, token)
        text = json.dumps(content).encode()
        if drop in ("before", "after"):
            self.close_connection = True
            return
        with contextlib.suppress(ConnectionError):  # The client may have ended.
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text[: len(text) // 2] if drop else text)
        self.close_connection = self.close_connection or bool(drop)

    do_GET = do_POST = do_PATCH = do_DELETE = _respond  # noqa: N815 (named by the standard library)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def every_one(calls: Sequence[Call]) -> list[int]:
    """Return the indices of all calls, to give each of them a fault in turn."""
    return list(range(len(calls)))


def first_of_each_kind(calls: Sequence[Call]) -> list[int]:
    """Return the indices of the first call of each method."""
    methods = [call.method for call in calls]
    return sorted(map(methods.index, set(methods)))


def select(items: Any, request: Any) -> tuple[list[Any], str]:
    """Return the items that a list request asks for, and the token of its next page.

    Understands `field="value"`, `field!="value"`, `labels.key="value"`, `labels.key:*` joined by AND, and one field to
    order by; anything else is refused, because an ignored filter would find too much.
    """
    parent = getattr(request, "parent", "")  # Versions are listed by the name of their model.
    found = [item for item in items if not parent or item.name.startswith(parent + "/")]
    for term in re.split(r"\s+AND\s+", request.filter.strip()) if request.filter else ():
        match = re.fullmatch(r'(labels\.)?(\w+)\s*(!=|=|:)\s*("[^"]*"|\S+)', term)
        if not match or (match[3] == ":" and not (match[1] and match[4] == "*")):
            raise ServiceError("INVALID_ARGUMENT", f"Invalid filter: {term!r}.")
        found = [item for item in found if _satisfies(item, *match.groups())]
    if order := getattr(request, "order_by", ""):
        field, _, direction = order.partition(" ")
        found.sort(key=lambda item: getattr(item, field), reverse=direction == "desc")
    start = int(request.page_token or 0)
    end = start + (request.page_size or 100)
    return found[start:end], str(end) if end < len(found) else ""


def _satisfies(item: Any, label: str | None, name: str, operator: str, value: str) -> bool:
    if operator == ":":
        return name in item.labels
    actual = item.labels.get(name) if label else getattr(item, name, None)
    equal = getattr(actual, "name", actual) == value.strip('"')
    return equal == (operator == "=")
