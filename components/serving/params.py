"""What a server may be told, by flags and by Vertex's variables."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import (
    Amount,
    NotNegative,
    Pattern,
    Positive,
    Range,
    check_fields,
    read_by_hand,
)

_HIGHEST_PORT = 65535
_ROUTE = Pattern(r"/[^{}?#]*", "a path that starts with '/'")
# https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements#aip-variables
VERIFY_VARIABLE = "TPU_PIPELINES_VERIFY_KEY"
_VARIABLES = {"AIP_HTTP_PORT": "port", "AIP_HEALTH_ROUTE": "health_route", "AIP_PREDICT_ROUTE": "predict_route"}


@dataclasses.dataclass(frozen=True)
class ServeParams:
    """The address that the server listens on, and the load that it takes.

    Attributes:
        host: Address to listen on; 0.0.0.0 is every one of this machine.
        port: Port to listen on; 0 takes a free one.
        health_route: Path that answers GET with 200 while the model can answer, else with 503.
        predict_route: Path that answers POST with predictions.
        model_name: Name in the routes of KServe's protocols, as /v1/models/NAME:predict; empty is that of the
            registered model, else that of the run, which the export's folder says, else the export's own.
        int8: Serve the int8 model.
        num_threads: Threads for one batch; 0 is one per core.
        max_batch_size: Images that the model takes at once. Requests that wait for it are answered together.
        max_wait_ms: Milliseconds that an idle model waits for company to the first request. On a CPU an image of a
            batch costs what it costs alone, so waiting gains little.
        max_connections: Connections held at once, fewer where the system's limit of open files is lower. One more gets
            the place of the one that has kept the server waiting longest, or 503 if all are being answered.
        max_requests: Requests whose bodies have arrived that are held at once; one more gets 503 and Retry-After.
        max_instances: Instances in a request; more get 413.
        max_body_bytes: Size of a request's body; more gets 413. The default is Vertex's own limit.
        max_image_pixels: Pixels of an image file, which may be far more than its bytes; one with more gets 400, and is
            not decoded. A pixel takes 3 to 7 bytes while it is.
        max_request_pixels: Pixels of all image files of a request, each with at least those that the model takes; more
            get 413.
        max_decode_seconds: Processor time for the image files of a request; one that takes longer gets 400.
        max_held_bytes: Bytes of bodies and instances that all requests hold together. Where they do not suffice, the
            request whose body has been arriving for the longest time gets 503, else the one that needs more.
        log: File that gets a JSON line for a share of the predictions, without what was asked: time, model, version,
            class, confidence, milliseconds; `tpu-pipelines monitor` reads it. Empty logs none.
        log_share: Share of the predictions that are logged.
        log_content: Log also what was asked, but of KServe's second protocol.
        verify: File of a public key, here or on gs://, or the key itself in PEM: the export is loaded only if its
            signature holds, and that of the version that holds it. Without it TPU_PIPELINES_VERIFY_KEY is heeded, and
            without both no signature is asked for.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, _HIGHEST_PORT)] = 8080
    health_route: Annotated[str, _ROUTE] = "/health"
    predict_route: Annotated[str, _ROUTE] = "/predict"
    model_name: Annotated[str, Pattern(r"[\w.-]*", "letters, digits, '.', '-' and '_'")] = ""
    int8: bool = False
    num_threads: NotNegative = 0
    max_batch_size: Positive = 32
    max_wait_ms: Amount = 0.0
    max_connections: Positive = 1000
    max_requests: Positive = 256
    max_instances: Positive = 128
    max_body_bytes: Positive = 1_572_864
    max_image_pixels: Positive = 16_777_216
    max_request_pixels: Positive = 67_108_864
    max_decode_seconds: Annotated[float, Range(0)] = 2.0
    max_held_bytes: Positive = 134_217_728
    log: str = ""
    log_share: Annotated[float, Range(above=0, most=1)] = 0.1
    log_content: bool = False
    verify: str = ""

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            InputError: If one is out of range, or the routes are the same or no paths.
        """
        check_fields(self)
        if not self.log and (self.log_content or self.log_share != type(self).log_share):
            raise InputError("log_share and log_content say what is logged. Received: no log. Set log=FILE too.")
        if self.health_route == self.predict_route:
            raise InputError(f"The two routes must differ. Received: health_route=predict_route={self.health_route!r}.")


def vertex_defaults(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ServeParams that Vertex tells a container, which must listen on every address.

    Raises:
        InputError: If AIP_HTTP_PORT is no number.

    Example:
        >>> vertex_defaults({"AIP_HTTP_PORT": "8080", "AIP_PREDICT_ROUTE": "/v1/models/m:predict"})
        {'host': '0.0.0.0', 'port': 8080, 'predict_route': '/v1/models/m:predict'}
    """
    settings: dict[str, Any] = {field: environ[name] for name, field in _VARIABLES.items() if environ.get(name)}
    if "port" in settings:
        settings["port"] = read_by_hand(settings["port"], int, "AIP_HTTP_PORT")
    return {"host": "0.0.0.0", **settings}


def key_to_verify(flag: str | None, environ: Mapping[str, str]) -> str:
    """Return the public key that the flag `--verify` gives, else that of TPU_PIPELINES_VERIFY_KEY; empty without both.

    Raises:
        InputError: If it is given, and empty: a secret that did not arrive is no wish to do without.

    Example:
        >>> key_to_verify(None, {"TPU_PIPELINES_VERIFY_KEY": "signing.pub"}), key_to_verify(None, {})
        ('signing.pub', '')
    """
    name, key = ("--verify", flag) if flag is not None else (VERIFY_VARIABLE, environ.get(VERIFY_VARIABLE))
    if key is not None and not key.strip():
        raise InputError(f"{name} must be a public key. Received: an empty one. Set it, or take it away.")
    return key or ""
