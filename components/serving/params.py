"""Parameters of the server, from flags and Vertex's environment variables."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import InputError

_LEAST = {
    "port": 0,
    "num_threads": 0,
    "max_batch_size": 1,
    "max_wait_ms": 0,
    "max_connections": 1,
    "max_requests": 1,
    "max_instances": 1,
    "max_body_bytes": 1,
    "max_image_pixels": 1,
    "max_request_pixels": 1,
    "max_decode_seconds": 0,
    "max_held_bytes": 1,
}
_HIGHEST_PORT = 65535
# https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements#aip-variables
VERIFY_VARIABLE = "TPU_PIPELINES_VERIFY_KEY"
_VARIABLES = {"AIP_HTTP_PORT": "port", "AIP_HEALTH_ROUTE": "health_route", "AIP_PREDICT_ROUTE": "predict_route"}


@dataclasses.dataclass(frozen=True)
class ServeParams:
    """Address, routes and limits of the server.

    Attributes:
        host: Address to listen on; 0.0.0.0 is all addresses of this machine.
        port: Port to listen on; 0 takes a free one.
        health_route: Path of the health check: GET returns 200 while the model is ready, else 503.
        predict_route: Path of predictions: POST.
        model_name: Name in the routes of KServe's protocols, as /v1/models/NAME:predict. Default: name of the
            registered model, else of the run (from the export's path), else of the exported model.
        int8: Serve the int8 model.
        num_threads: Threads for one batch; 0 is one per core.
        max_batch_size: Largest batch of the model. Waiting requests are batched together.
        max_wait_ms: Milliseconds that an idle model waits for more requests after the first. On a CPU an image costs
            the same in a batch and alone, so waiting gains little.
        max_connections: Largest number of connections; fewer if the system's limit of open files is lower. Another
            connection replaces the one whose client has been silent longest, or gets 503 if all have running requests.
        max_requests: Largest number of requests in flight with a complete body; another one gets 503 and Retry-After.
        max_instances: Instances in a request; more get 413.
        max_body_bytes: Size of a request's body; more gets 413. The default is Vertex's own limit.
        max_image_pixels: Pixels of an image file; a larger image gets 400 and is not decoded. Decoding takes 3 to 7
            bytes per pixel.
        max_request_pixels: Pixels of all image files of a request; more get 413. A smaller image counts as the model's
            input size.
        max_decode_seconds: Processor time to decode the image files of a request; a longer one gets 400.
        max_held_bytes: Memory of bodies and instances of all requests. Above it, the request whose body has been
            arriving longest gets 503, else the request that needs more memory.
        log: File for the prediction log: one JSON line for a share of the predictions, with time, model, version,
            class, confidence and milliseconds, without inputs. `tpu-pipelines monitor` reads it. Empty disables it.
        log_share: Share of the predictions to log.
        log_content: Log inputs too, except those of KServe's V2 protocol.
        verify: Public key in PEM, or its file, local or on gs://. The export is loaded only if its signature and that
            of its registered version are valid. Default: TPU_PIPELINES_VERIFY_KEY; without both, signatures are not
            checked.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    health_route: str = "/health"
    predict_route: str = "/predict"
    model_name: str = ""
    int8: bool = False
    num_threads: int = 0
    max_batch_size: int = 32
    max_wait_ms: float = 0.0
    max_connections: int = 1000
    max_requests: int = 256
    max_instances: int = 128
    max_body_bytes: int = 1_572_864
    max_image_pixels: int = 16_777_216
    max_request_pixels: int = 67_108_864
    max_decode_seconds: float = 2.0
    max_held_bytes: int = 134_217_728
    log: str = ""
    log_share: float = 0.1
    log_content: bool = False
    verify: str = ""

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            InputError: If a value is out of range, or the routes are equal or no paths.
        """
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not value >= least:  # Written so that NaN fails.
                raise InputError(f"{name} must be at least {least}. Received: {name}={value}.")
        if not 0 < self.log_share <= 1:
            raise InputError(f"log_share must be above 0 and at most 1. Received: log_share={self.log_share}.")
        if not self.log and (self.log_content or self.log_share != type(self).log_share):
            raise InputError("log_share and log_content say what is logged. Received: no log. Set log=FILE too.")
        if self.port > _HIGHEST_PORT:
            raise InputError(f"port must be at most {_HIGHEST_PORT}. Received: port={self.port}.")
        for name in ("health_route", "predict_route"):
            route = getattr(self, name)
            if not route.startswith("/") or set(route) & set("{}?#"):
                raise InputError(f"{name} must be a path that starts with '/'. Received: {name}={route!r}.")
        if not re.fullmatch(r"[\w.-]*", self.model_name):
            raise InputError(
                f"model_name must be letters, digits, '.', '-' and '_'. Received: model_name={self.model_name!r}."
            )
        if self.health_route == self.predict_route:
            raise InputError(f"The two routes must differ. Received: health_route=predict_route={self.health_route!r}.")


def vertex_defaults(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ServeParams that Vertex sets by variables; `host` is 0.0.0.0, as Vertex requires.

    Raises:
        InputError: If AIP_HTTP_PORT is not a number.

    Example:
        >>> vertex_defaults({"AIP_HTTP_PORT": "8080", "AIP_PREDICT_ROUTE": "/v1/models/m:predict"})
        {'host': '0.0.0.0', 'port': 8080, 'predict_route': '/v1/models/m:predict'}
    """
    settings: dict[str, Any] = {field: environ[name] for name, field in _VARIABLES.items() if environ.get(name)}
    if "port" in settings:
        try:
            settings["port"] = int(settings["port"])
        except ValueError as error:
            raise InputError(f"AIP_HTTP_PORT must be a number. Received: {settings['port']!r}.") from error
    return {"host": "0.0.0.0", **settings}


def key_to_verify(flag: str | None, environ: Mapping[str, str]) -> str:
    """Return the public key of the flag `--verify`, else of TPU_PIPELINES_VERIFY_KEY; empty without both.

    Raises:
        InputError: If the flag or variable is set but empty, as by a missing secret.

    Example:
        >>> key_to_verify(None, {"TPU_PIPELINES_VERIFY_KEY": "signing.pub"}), key_to_verify(None, {})
        ('signing.pub', '')
    """
    name, key = ("--verify", flag) if flag is not None else (VERIFY_VARIABLE, environ.get(VERIFY_VARIABLE))
    if key is not None and not key.strip():
        raise InputError(f"{name} must be a public key. Received: an empty one. Set it, or take it away.")
    return key or ""
