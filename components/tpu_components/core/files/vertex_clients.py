"""Clients of Vertex AI's services.

Google's exceptions are converted to `InputError` and the exceptions of `core.base.retries`. The first call imports
Google's client library and signs in.
"""

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import ExistsError, MissingError, OutageError, PlatformError

# Environment variable with the address of Vertex AI, if it is not the regional one.
ADDRESS_VARIABLE = "TPU_PIPELINES_VERTEX_ENDPOINT"
_TIMEOUT_SECONDS = 60
# Part of the service's error message while another operation changes the resource. It is undocumented, so other
# messages count as refusals.
_CHANGING = "other operations running on the resource"
_ACT_AS = "permission to act as service_account"  # googleapis/python-aiplatform/issues/1073: no 403, but a 400.
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def join_errors(errors: Mapping[str, Any]) -> str:
    """Join the error messages of a pipeline job's tasks into one text, such as `train_model: …; evaluate_model: …`.

    Hyphens in the names of tasks become underscores. Empty messages are left out.

    Args:
        errors: Errors as {name of the task: error}. An error has the attribute `message`.
    """
    return "; ".join(f"{task.replace('-', '_')}: {error.message}" for task, error in errors.items() if error.message)


class VertexService:
    """The services of Vertex AI in one Google Cloud project.

    All calls use HTTP instead of gRPC, so that tests use the same transport as users. Expired tokens are renewed.

    Args:
        project: ID of the Google Cloud project.
        region: Default region of calls.
        address: Address of the service. If empty, it is the value of TPU_PIPELINES_VERTEX_ENDPOINT or, if that is not
            set, Vertex AI's address for the region of the call.
        credentials: Google credentials. With None, the credentials of the environment are used.
    """

    def __init__(self, project: str, region: str, address: str = "", credentials: Any = None) -> None:
        self.project = project
        self.region = region
        self._address = address or os.environ.get(ADDRESS_VARIABLE, "")
        self._given_credentials = credentials
        self._clients: dict[tuple[str, str], Any] = {}

    @property
    def parent(self) -> str:
        """Parent of listed and created resources: `projects/PROJECT/locations/REGION`, with the default region."""
        return f"projects/{self.project}/locations/{self.region}"

    @functools.cached_property
    def _credentials(self) -> Any:
        return self._given_credentials or sign_in()

    def _client(self, kind: str, region: str) -> Any:
        if (kind, region) not in self._clients:
            endpoint = self._address or f"{region}-aiplatform.googleapis.com"
            self._clients[kind, region] = getattr(types(), f"{kind}Client")(
                client_options={"api_endpoint": endpoint}, transport="rest", credentials=self._credentials
            )
        return self._clients[kind, region]

    def call(self, kind: str, method: str, request: Any, region: str = "") -> Any:
        """Call a method of a Vertex AI service, without retries.

        Args:
            kind: Name of the service, for example `PipelineService`.
            method: Name of the method.
            request: Request of the method.
            region: Region of the service. If empty, the default region is used.

        Raises:
            OutageError: If the same call may succeed later.
            MissingError: If the requested resource does not exist.
            ExistsError: If the resource exists already.
            InputError: If the service rejects the request for another reason. The message contains the service's
                message.
        """
        with self._translated(method):
            client = self._client(kind, region or self.region)
            return getattr(client, method)(request=request, retry=None, timeout=_TIMEOUT_SECONDS)

    def predict(self, request: Any, address: str = "") -> Any:
        """Request predictions from an endpoint, without retries. The exceptions are those of `call`.

        Args:
            request: The request, in the service's types.
            address: Address of the endpoint, with or without a scheme. If empty, the address of the service is used.
        """
        if not address:
            return self.call("PredictionService", "predict", request)
        import google.auth.transport.requests
        from google.api_core import exceptions

        url = f"{address if '://' in address else f'https://{address}'}/v1/{request.endpoint}:predict"
        body = json.loads(types().PredictRequest.to_json(request))
        with self._translated("predict"):
            session = google.auth.transport.requests.AuthorizedSession(self._credentials)
            answer = session.post(url, json={"instances": body["instances"]}, timeout=_TIMEOUT_SECONDS)
            if not answer.ok:
                raise exceptions.from_http_response(answer)
            return types().PredictResponse.from_json(answer.text, ignore_unknown_fields=True)

    def list(self, kind: str, method: str, request: Any, region: str = "") -> list[Any]:
        """Call a method that lists resources, and return the items of all pages. The arguments are those of `call`."""
        pages = self.call(kind, method, request, region)
        with self._translated(method):
            return list(pages)

    def is_done(self, operation: Any, method: str) -> bool:
        """Return whether a long-running operation has ended. This sends a single request and does not wait.

        Args:
            operation: The operation, which `call` returned.
            method: Method that started the operation, for messages.

        Raises:
            PlatformError: If the operation has failed. The message contains the service's message.
        """
        with self._translated(method):
            is_done: bool = operation.done(retry=None)
        if is_done and operation.operation.error.code:
            raise PlatformError(f"Vertex AI failed to {method.replace('_', ' ')}: {operation.operation.error.message}")
        return is_done

    def _translated(self, method: str) -> contextlib.AbstractContextManager[None]:
        advice = (
            "Give the account that runs this command the role roles/aiplatform.user, and iam.serviceAccountUser on the "
            "service account."
        )
        return google_errors("Vertex AI", method.replace("_", " "), f"{self.project}, {self.region}", advice)


@contextlib.contextmanager
def google_errors(service: str, doing: str, where: str, advice: str, hint: str = "") -> Iterator[None]:
    """Convert the exceptions that Google's clients raise in the `with` block to the exceptions below.

    Args:
        service: Name of the service, for the error messages.
        doing: What the service is asked to do, for the error messages, for example `list models`.
        where: Project and region of the request, for the error messages.
        advice: Advice to the user if the account lacks a permission.
        hint: Advice to the user if the service rejects the request for another reason.

    Raises:
        OutageError: If the same call may succeed later.
        MissingError: If the requested resource does not exist.
        ExistsError: If the resource exists already.
        InputError: If the service rejects the request for another reason. The message contains the service's message.
    """
    import requests
    from google.api_core import exceptions
    from google.auth import exceptions as auth

    def said(error: exceptions.GoogleAPICallError) -> str:
        return re.sub(r"^[A-Z]+ \S+: ", "", str(error.message))  # Without the method and URL at its start.

    broken = (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError)  # Cut off.
    refused = f"{service} refused to {doing} in {where}"
    try:
        yield
    except (exceptions.TooManyRequests, exceptions.ServerError) as error:
        raise OutageError(f"{service} cannot {doing} at the moment: {error.code} {said(error)}") from error
    except (requests.ConnectionError, requests.Timeout, *broken, auth.TransportError) as error:
        raise OutageError(f"Cannot reach {service} to {doing}: {error}") from error
    except exceptions.NotFound as error:
        raise MissingError(f"{refused}: {said(error)}. Check the name, the project and the region.") from error
    except exceptions.Conflict as error:
        raise ExistsError(f"{refused}: {said(error)}") from error
    except (exceptions.Unauthorized, auth.GoogleAuthError) as error:
        if getattr(error, "retryable", False):
            raise OutageError(f"The sign-in to Google Cloud cannot be renewed now: {error}") from error
        raise InputError(
            f"{refused}: the sign-in is missing or has expired ({error}). Run `gcloud auth application-default login`."
        ) from error
    except exceptions.Forbidden as error:
        raise InputError(f"{refused}: {said(error)} {advice}") from error
    except exceptions.GoogleAPICallError as error:
        if _CHANGING in str(error.message):
            raise OutageError(f"{service} cannot {doing} at the moment: {said(error)}") from error
        if _ACT_AS in str(error):
            hint = " Give this account the role roles/iam.serviceAccountUser on that service account."
        raise InputError(f"{refused}: {said(error)}{hint}") from error


def sign_in() -> Any:
    """Return Google's application default credentials.

    Raises:
        InputError: If there are no credentials.
    """
    import google.auth
    import google.auth.exceptions

    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise InputError(
            f"Cannot sign in to Google Cloud: {error} Run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to a credentials file."
        ) from error
    return credentials


def types() -> Any:
    """Return `google.cloud.aiplatform_v1`, the module with Vertex AI's clients and types."""
    import google.cloud.aiplatform_v1

    return google.cloud.aiplatform_v1
