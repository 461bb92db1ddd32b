"""Parameters of the server, from flags and from Vertex AI's environment variables."""

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
    check_together,
    read_by_hand,
)

_HIGHEST_PORT = 65535
_ROUTE = Pattern(r"/[^{}?#]*", "a path that starts with '/'")
# https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements#aip-variables
VERIFY_VARIABLE = "TPU_PIPELINES_VERIFY_KEY"
_VARIABLES = {"AIP_HTTP_PORT": "port", "AIP_HEALTH_ROUTE": "health_route", "AIP_PREDICT_ROUTE": "predict_route"}

_METRICS = "was removed. Use Prometheus: the server's /metrics shows predictions by class, confidences and durations."
# Flags of earlier versions, each with the sentence that says what replaces it.
REMOVED_FLAGS: Mapping[str, str] = {
    "--max-connections": "--max-connections was removed. Use --max-requests, and the system's limit of open files "
    "(ulimit -n) for connections.",
    "--max-decode-seconds": "--max-decode-seconds was removed. Use --max-request-pixels.",
    **{flag: f"{flag} {_METRICS}" for flag in ("--log", "--log-share", "--log-content", "--no-log-content")},
}


@dataclasses.dataclass(frozen=True)
class ServeParams:
    """Address, routes and limits of the server.

    Attributes:
        host: Address to listen on. 0.0.0.0 means all addresses of this machine.
        port: Port to listen on. 0 means any free port.
        health_route: Path of the health check: GET returns 200 while the model is ready, otherwise 503.
        predict_route: Path for prediction requests, which use POST.
        model_name: Name of the model in the routes of KServe's protocols, as in /v1/models/NAME:predict. The default is
            the name of the registered model or of the run to which the export belongs, according to its path. If the
            path names neither, the default is the name that the export contains.
        int8: Serve the int8 model instead of the float model.
        num_threads: Threads for one batch. 0 means one per available CPU.
        max_batch_size: Largest number of instances in a batch. Waiting requests are batched together.
        max_wait_ms: Milliseconds that an idle model waits for more requests after the first. On a CPU, an image takes
            as long in a batch as by itself, so waiting gains little.
        max_requests: Largest number of requests in progress whose bodies have arrived completely. Further requests get
            503 with Retry-After.
        max_instances: Largest number of instances in a request. A request with more instances gets 413.
        max_body_bytes: Largest size of a request's body, in bytes. A larger body gets 413. The default is the limit of
            Vertex AI's public endpoints.
        max_image_pixels: Largest number of pixels of an image file. A larger image gets 400 and is not decoded.
            Decoding takes 3 to 7 bytes per pixel.
        max_request_pixels: Largest number of pixels of all image files of a request together. A request with more
            pixels gets 413. An image that is smaller than the model's input counts as many pixels as the model's input.
        max_held_bytes: Largest memory, in bytes, for the bodies and instances of all requests together. A request for
            which too little of this memory is free gets 503. A request that needs more than all of it gets 413.
        verify: Public key: PEM text, or the path of a PEM file, local or on gs://. The export is loaded only if its
            signature and the signature of its registered version are valid. The default is the value of
            TPU_PIPELINES_VERIFY_KEY. If neither is set, signatures are not checked.
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
    max_requests: Positive = 256
    max_instances: Positive = 128
    max_body_bytes: Positive = 1_572_864
    max_image_pixels: Positive = 16_777_216
    max_request_pixels: Positive = 67_108_864
    max_held_bytes: Positive = 134_217_728
    verify: str = ""

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            InputError: If a value is out of range, a route does not begin with a slash, or two routes are equal.
        """
        check_fields(self)
        check_together(
            (
                self.health_route == self.predict_route,
                f"health_route and predict_route must differ. Received: {self.health_route!r} for both.",
            ),
        )


def vertex_defaults(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ServeParams that Vertex AI sets through environment variables.

    `host` is 0.0.0.0, because Vertex AI requires it.

    Raises:
        InputError: If AIP_HTTP_PORT is not a number.

    Example:
        >>> vertex_defaults({"AIP_HTTP_PORT": "8080", "AIP_PREDICT_ROUTE": "/v1/models/m:predict"})
        {'host': '0.0.0.0', 'port': 8080, 'predict_route': '/v1/models/m:predict'}
    """
    settings: dict[str, Any] = {field: environ[name] for name, field in _VARIABLES.items() if environ.get(name)}
    if "port" in settings:
        settings["port"] = read_by_hand(settings["port"], int, "AIP_HTTP_PORT")
    return {"host": "0.0.0.0", **settings}


def key_to_verify(flag: str | None, environ: Mapping[str, str]) -> str:
    """Return the public key from the flag `--verify` or, without this flag, from TPU_PIPELINES_VERIFY_KEY.

    Return an empty string if neither is set.

    Raises:
        InputError: If the flag or variable is set but empty, for example because a secret is missing.

    Example:
        >>> key_to_verify(None, {"TPU_PIPELINES_VERIFY_KEY": "signing.pub"}), key_to_verify(None, {})
        ('signing.pub', '')
    """
    name, key = ("--verify", flag) if flag is not None else (VERIFY_VARIABLE, environ.get(VERIFY_VARIABLE))
    if key is not None and not key.strip():
        raise InputError(f"{name} must be a public key. Received: an empty value. Set it to a key, or remove it.")
    return key or ""
