"""A read-only REST client of Google Cloud's APIs, for which no client libraries are installed."""

import functools
import os
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import MissingError
from tpu_components.core.files.vertex_clients import sign_in
from tpu_pipelines.doctor.findings import CannotAskError

STORAGE = "storage.googleapis.com"
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
            InputError: If nobody is signed in.
        """
        return self._given or sign_in()

    @functools.cached_property
    def _session(self) -> Any:
        from google.auth.transport.requests import AuthorizedSession

        return AuthorizedSession(self.credentials)

    def refresh(self) -> None:
        """Renew the sign-in if it has expired.

        Raises:
            InputError: If nobody is signed in, or the sign-in is not valid.
            CannotAskError: If the service that renews it cannot be reached.
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
        """Return the signed-in user as a member of IAM policies; empty if unknown."""
        email = str(getattr(self.credentials, "service_account_email", "") or "")
        if "@" in email:
            return f"serviceAccount:{email}"
        apis = self
        if self._given is None:  # The user's own sign-in, with all scopes that the user has consented to.
            import google.auth
            from google.oauth2.credentials import Credentials

            if not isinstance(self.credentials, Credentials):
                return ""
            apis = GoogleApis(self.project, self._address, google.auth.default()[0])
        try:
            # Needs the user's consent: https://openid.net/specs/openid-connect-core-1_0.html#UserInfo
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
            MissingError: If the resource does not exist.
            CannotAskError: If the service answers with another error, whose message is repeated, or not at all.
        """
        import requests
        from google.auth import exceptions

        address = self._address.replace("{host}", host)
        if host == STORAGE and (emulator := os.environ.get("STORAGE_EMULATOR_HOST")):
            address = emulator
        try:
            response = self._session.request(method, f"{address}/{path}", timeout=_TIMEOUT_SECONDS, **options)
        except (requests.RequestException, exceptions.GoogleAuthError) as error:
            raise CannotAskError(f"{host} does not answer: {error}") from error
        if response.ok:
            return response
        text = _message(response)
        if response.status_code == 404:
            raise MissingError(text)
        raise CannotAskError(f"{host} does not say: {response.status_code} {text}")


def _message(response: Any) -> str:
    """Return the first line of an API's error message."""
    try:
        return str(response.json()["error"]["message"]).splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError):
        return str(response.reason)
