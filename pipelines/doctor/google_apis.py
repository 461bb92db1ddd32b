"""A read-only client of Google Cloud's APIs: REST, where this project installs no client library of Google's."""

import functools
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import MissingError
from tpu_components.core.files.vertex_clients import sign_in
from tpu_pipelines.doctor.findings import CannotAskError

_TIMEOUT_SECONDS = 20


class GoogleApis:
    """Client of Google Cloud's APIs, with the credentials of the signed-in user.

    Args:
        project: Google Cloud project.
        address: URL of every API, in which `{host}` is replaced by the API's host; empty is https://{host}.
        credentials: Google's credentials; by default the environment's.
    """

    def __init__(self, project: str, address: str = "", credentials: Any = None) -> None:
        self.project, self._address, self._given = project, address or "https://{host}", credentials

    @functools.cached_property
    def credentials(self) -> Any:
        """Google's credentials of the signed-in user.

        Raises:
            InputError: If there is none.
        """
        return self._given or sign_in()

    @functools.cached_property
    def _session(self) -> Any:
        from google.auth.transport.requests import AuthorizedSession

        return AuthorizedSession(self.credentials)

    def address(self, host: str) -> str:
        """Return the URL of a host."""
        return self._address.replace("{host}", host)

    def refresh(self) -> None:
        """Sign in.

        Raises:
            InputError: If there is no sign-in, or it is not valid.
            CannotAskError: If the service that knows cannot be reached.
        """
        from google.auth import exceptions
        from google.auth.transport.requests import Request

        try:
            if not self.credentials.valid:
                self.credentials.refresh(Request())
        except exceptions.TransportError as error:
            raise CannotAskError(f"the sign-in cannot be renewed now: {error}") from error
        except exceptions.GoogleAuthError as error:
            raise InputError(f"it is not, or no longer, valid: {error}") from error

    def principal(self) -> str:
        """Return the signed-in user as a member of IAM policies; empty where the credentials do not say."""
        email = str(getattr(self.credentials, "service_account_email", "") or "")
        if "@" in email:
            return f"serviceAccount:{email}"
        if self._given is None:  # A user's own sign-in: with all that it was consented to, not with our scope alone.
            import google.auth
            from google.oauth2.credentials import Credentials

            if not isinstance(self.credentials, Credentials):
                return ""
            apis = GoogleApis(self.project, self._address, google.auth.default()[0])
        else:
            apis = self
        try:
            # https://openid.net/specs/openid-connect-core-1_0.html#UserInfo, for who consented to tell the address.
            email = str(apis.get("openidconnect.googleapis.com", "v1/userinfo").get("email", ""))
        except (CannotAskError, MissingError):
            return ""
        return f"{'serviceAccount' if email.endswith('gserviceaccount.com') else 'user'}:{email}" if email else ""

    def get(self, host: str, path: str, **query: Any) -> dict[str, Any]:
        """Send a GET and return the JSON of the answer; errors as in `send`."""
        return dict(self.send("GET", host, path, params=query).json())

    def post(self, host: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST that changes nothing and return the JSON of the answer; errors as in `send`."""
        return dict(self.send("POST", host, path, json=body).json())

    def send(self, method: str, host: str, path: str, **options: Any) -> Any:
        """Send one request and return the response.

        Raises:
            MissingError: If there is no such thing.
            CannotAskError: If the answer is another error, or none comes; repeats the service's message.
        """
        import requests
        from google.auth import exceptions

        try:
            url = f"{self.address(host)}/{path}"
            response = self._session.request(method, url, timeout=_TIMEOUT_SECONDS, **options)
        except (requests.RequestException, exceptions.GoogleAuthError) as error:
            raise CannotAskError(f"{host} does not answer: {error}") from error
        if response.ok:
            return response
        text = _message(response)
        if response.status_code == 404:
            raise MissingError(text)
        raise CannotAskError(f"{host} does not say: {response.status_code} {text}")

    @functools.cached_property
    def storage(self) -> Any:
        """Cloud Storage's client library, at this client's address."""
        import os

        import google.cloud.storage as gcs
        from google.auth.credentials import AnonymousCredentials

        if os.environ.get("STORAGE_EMULATOR_HOST"):
            return gcs.Client(project=self.project, credentials=AnonymousCredentials())
        options = {"api_endpoint": self.address("storage.googleapis.com")}
        return gcs.Client(project=self.project, credentials=self.credentials, client_options=options)

    def of_bucket(self, name: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of a bucket once, by Cloud Storage's client library.

        Raises:
            MissingError: If there is no such bucket.
            CannotAskError: If the answer is another error, or none comes.
        """
        import requests
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError

        bucket = self.storage.bucket(name)
        try:
            result = getattr(bucket, method)(*arguments, **options, timeout=_TIMEOUT_SECONDS, retry=None)
        except exceptions.NotFound as error:
            raise MissingError(str(error.message)) from error
        except exceptions.GoogleAPICallError as error:
            message = error.message.partition(": ")[2] or error.message  # Without the URL.
            raise CannotAskError(f"Cloud Storage does not say: {error.code} {message}") from error
        except (requests.RequestException, GoogleAuthError) as error:
            raise CannotAskError(f"Cloud Storage does not answer: {error}") from error
        return bucket if result is None else result


def _message(response: Any) -> str:
    """Return the first line of an API's error message."""
    try:
        return str(response.json()["error"]["message"]).splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError):
        return str(response.reason)
