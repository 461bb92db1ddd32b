"""A read-only REST client of Google Cloud's APIs, and a check of the roles that IAM policies grant directly."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import MissingError
from tpu_components.core.files.location import Location
from tpu_components.core.files.vertex_clients import sign_in
from tpu_pipelines.platforms.findings import CannotAskError, CommandOutput, LackError, ShellCommand, lacking

STORAGE, IAM, RESOURCES = "storage.googleapis.com", "iam.googleapis.com", "cloudresourcemanager.googleapis.com"
_EVERYONE = ("allUsers", "allAuthenticatedUsers")
# Prefixes of members that are one account; others, such as groups, are several.
_ACCOUNTS = ("user:", "serviceAccount:", "deleted:")
Policy = Mapping[str, Any]
TIMEOUT_SECONDS = 20


class GoogleApis:
    """Client of Google Cloud's APIs, with the credentials of the signed-in user.

    Args:
        address: URL template for all APIs. `{host}` is replaced with the host name of the API. Empty means
            https://{host}.
        credentials: Google's credentials. None means the credentials of the environment.
    """

    def __init__(self, address: str = "", credentials: Any = None) -> None:
        self._address = address or "https://{host}"
        self._given = credentials

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
            CannotAskError: If the service that renews the sign-in cannot be reached.
        """
        from google.auth import exceptions
        from google.auth.transport.requests import Request

        try:
            if not self.credentials.valid:
                self.credentials.refresh(Request())
        except exceptions.TransportError as error:
            raise CannotAskError(f"the sign-in cannot be renewed now: {error}") from error
        except exceptions.GoogleAuthError as error:
            raise InputError(f"the sign-in is not valid, or has expired: {error}") from error

    def principal(self) -> str:
        """Return the signed-in account as an IAM member: `user:EMAIL` or `serviceAccount:EMAIL`.

        Return an empty string if the account is unknown.
        """
        email = str(getattr(self.credentials, "service_account_email", "") or "")
        if "@" in email:
            return f"serviceAccount:{email}"
        apis = self
        if self._given is None:  # The user's own sign-in, with all scopes that the user has consented to.
            import google.auth
            from google.oauth2.credentials import Credentials

            if not isinstance(self.credentials, Credentials):
                return ""
            apis = GoogleApis(self._address, google.auth.default()[0])
        try:
            # Needs the user's consent: https://openid.net/specs/openid-connect-core-1_0.html#UserInfo
            email = str(apis.get("openidconnect.googleapis.com", "v1/userinfo").get("email", ""))
        except (CannotAskError, MissingError):
            return ""
        return f"{'serviceAccount' if email.endswith('gserviceaccount.com') else 'user'}:{email}" if email else ""

    def get(self, host: str, path: str, **query: Any) -> dict[str, Any]:
        """Send a GET request and return the JSON response. This raises the same exceptions as `send`."""
        return _content(self.send("GET", host, path, params=query), host)

    def find(self, host: str, path: str, name: str, remedy: str = "") -> dict[str, Any]:
        """Return the JSON of a resource that a run needs.

        Args:
            host: Host of the API.
            path: Path of the resource.
            name: Name of the resource in messages.
            remedy: Advice if the resource does not exist. Empty means the check's first command.

        Raises:
            LackError: If the resource does not exist.
            CannotAskError: If the service does not respond, or responds with another error.
        """
        with lacking(f"there is no {name}", remedy):
            return self.get(host, path)

    def post(self, host: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST request that changes nothing, and return the JSON response.

        This raises the same exceptions as `send`.
        """
        return _content(self.send("POST", host, path, json=body), host)

    def send(self, method: str, host: str, path: str, **options: Any) -> Any:
        """Send one request and return the response.

        Raises:
            MissingError: If the resource does not exist.
            CannotAskError: If the service does not respond, or responds with another error. The message contains the
                service's message.
        """
        import requests
        from google.auth import exceptions

        emulator = os.environ.get("STORAGE_EMULATOR_HOST") if host == STORAGE else None
        address = emulator or self._address.replace("{host}", host)
        try:
            session = requests if emulator else self._session  # An emulator needs no sign-in.
            response = session.request(method, f"{address}/{path}", timeout=TIMEOUT_SECONDS, **options)
        except (requests.RequestException, exceptions.GoogleAuthError) as error:
            raise CannotAskError(f"{host} does not respond: {error}") from error
        if response.ok:
            return response
        text = _message(response)
        if response.status_code == 404:
            raise MissingError(text)
        raise CannotAskError(f"{host} rejected the request: {response.status_code} {text}")


def create_bucket(place: Location, region: str, project: str) -> ShellCommand:
    """Return the command that creates a bucket. For an empty region or project, gcloud uses its default."""
    name = f"gs://{place.bucket}"
    options = {"location": region, "project": project}
    flags = [f"--{flag}={value}" for flag, value in options.items() if value]
    buckets = ("gcloud", "storage", "buckets")
    create = (*buckets, "create", name, *flags, "--uniform-bucket-level-access")
    return ShellCommand(create, unless=(*buckets, "describe", name))


def judge_quota(name: str, region: str, limit: int, needed: int, project: str) -> str:
    """Check that a quota is sufficient, and return the result as a sentence.

    Args:
        name: Name of the quota, for the error message.
        region: Region to which the quota applies.
        limit: Limit of the quota. A negative limit means unlimited.
        needed: Amount that the run needs, in the unit of the quota.
        project: ID of the Google Cloud project, for the link to its quotas.

    Raises:
        LackError: If the quota is too small.
    """
    if 0 <= limit < needed:
        remedy = f"request more: https://console.cloud.google.com/iam-admin/quotas?project={project}"
        raise LackError(f"the quota {name} in {region} is {limit}, but {needed} are needed", remedy)
    return f"the quota is {limit if limit >= 0 else 'unlimited'} in {region}, and {needed} are needed"


class Role(NamedTuple):
    """An IAM role.

    Attributes:
        name: Name of the role, for advice.
        needed: The permissions in this role that a run needs.
    """

    name: str
    needed: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Resource:
    """A project, or another resource with an IAM policy.

    Attributes:
        project: ID of the Google Cloud project of the resource.
        host: Host of the resource's API.
        path: Path of the resource in its API.
        kind: gcloud command group for this kind of resource, such as `storage buckets`.
        name: Name of the resource for gcloud.
        location: gcloud's flags for the location of the resource.
    """

    project: str
    host: str
    path: str
    kind: str
    name: str
    location: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Full resource name, which is unique across all APIs: https://cloud.google.com/iam/docs/full-resource-names."""
        if self.host == STORAGE:
            return f"//{STORAGE}/projects/_/buckets/{self.path.rpartition('/')[2]}"
        return f"//{self.host}/{self.path.partition('/')[2]}"  # Without the API's version.

    def bind(self, member: str, role: Role) -> ShellCommand:
        """Return the command that grants a role on the resource to a member.

        An empty member means the account that runs the command.
        """
        named = (
            f"--member={member}" if member else CommandOutput("--member=user:", ("gcloud", "config", "get", "account"))
        )
        # Without --condition, gcloud prompts if another binding of the policy has a condition.
        granted = (named, f"--role={role.name}", "--condition=None")
        kind = self.kind.split()
        return ShellCommand(("gcloud", *kind, "add-iam-policy-binding", self.name, *self.location, *granted))


class Permissions:
    """The permissions of the signed-in user, and the roles that IAM policies grant to other accounts.

    Args:
        apis: Client of Google Cloud's APIs.
    """

    def __init__(self, apis: GoogleApis) -> None:
        self._apis = apis
        self._policy = functools.cache(self._read_policy)
        self._parent = functools.cache(self._read_parent)
        self._of_role = functools.cache(self._read_permissions)

    def denied(self, role: Role, resource: Resource) -> list[str]:
        """Return the permissions in `role.needed` that the signed-in user does not have on a resource."""
        question = {"permissions": role.needed}
        if resource.host == STORAGE:
            answer = self._apis.get(STORAGE, f"{resource.path}/iam/testPermissions", **question)
        else:
            answer = self._apis.post(resource.host, f"{resource.path}:testIamPermissions", question)
        return [permission for permission in role.needed if permission not in answer.get("permissions", ())]

    def judge(self, member: str, role: Role, resource: Resource) -> str:
        """Check that the policy of a resource or its project directly grants a role to a member.

        Return the result as a sentence.

        Args:
            member: IAM member, such as `serviceAccount:trainer@my-project.iam.gserviceaccount.com`.
            role: The role. Another role with the same permissions is also accepted.
            resource: The resource. The policy of its project is also read.

        Raises:
            LackError: If the member lacks a permission. The message names the role.
            CannotAskError: If it is unknown whether the member has the permissions. Either a policy cannot be read, or
                a group, a condition, a folder or an organisation may grant them. In the second case, the remedy is a
                gcloud command that shows whether a permission is granted.
        """
        project = Resource(resource.project, RESOURCES, f"v3/projects/{resource.project}", "projects", resource.project)
        roles = set[str]()
        doubts: list[str] = []
        unread: list[str] = []
        for place in dict.fromkeys((project, resource)):
            try:
                for binding in self._policy(place).get("bindings", ()):
                    members = binding.get("members", ())
                    if binding.get("condition"):
                        doubts.append("a condition")
                    elif {member, *_EVERYONE}.intersection(members):
                        roles.add(binding["role"])
                    elif not all(other.startswith(_ACCOUNTS) for other in members):
                        doubts.append("a group")
            except (CannotAskError, MissingError) as error:
                unread.append(f"the policy of {place.name} cannot be read: {error}")
        name = member.partition(":")[2]
        denied = self._lacking(role.needed, roles)
        if not denied:
            return f"{name} has the required permissions of {role.name}"
        said = f"{name} is not directly granted {role.name} ({', '.join(denied)})"
        if unread:
            raise CannotAskError(f"{said}, but some policies could not be read: {'; '.join(unread)}")
        if parent := self._parent(resource.project):
            doubts.append(parent)
        if doubts:
            # https://cloud.google.com/sdk/gcloud/reference/policy-intelligence/troubleshoot-policy/iam
            words = ("gcloud", "policy-intelligence", "troubleshoot-policy", "iam", resource.full_name)
            tell = ShellCommand((*words, f"--principal-email={name}", f"--permission={denied[0]}"))
            raise CannotAskError(f"{said}, but {' or '.join(dict.fromkeys(doubts))} may grant it", str(tell))
        raise LackError(said)

    def _read_policy(self, resource: Resource) -> Policy:
        """Return the policy of a project or a resource.

        The request asks for version 3 of the policy, because older versions hide conditions:
        https://cloud.google.com/iam/docs/troubleshooting-withcond.
        """
        if resource.host == STORAGE:
            return self._apis.get(STORAGE, f"{resource.path}/iam", optionsRequestedPolicyVersion=3)
        if resource.host == RESOURCES:
            body = {"options": {"requestedPolicyVersion": 3}}
            return self._apis.post(RESOURCES, f"{resource.path}:getIamPolicy", body)
        verb = "POST" if resource.host == IAM else "GET"
        version = {"options.requestedPolicyVersion": 3}
        response = self._apis.send(verb, resource.host, f"{resource.path}:getIamPolicy", params=version)
        return _content(response, resource.host)

    def _read_parent(self, project: str) -> str:
        """Return the parent of a project: a folder or an organisation.

        Roles that are granted on the parent also apply to the project. Return an empty string if there is no parent.
        """
        return str(self._apis.get(RESOURCES, f"v3/projects/{project}").get("parent", ""))

    def _lacking(self, needed: Iterable[str], roles: Iterable[str]) -> list[str]:
        """Return the permissions that none of the roles contains."""
        held = frozenset[str]().union(*map(self._of_role, roles))
        return [permission for permission in needed if permission not in held]

    def _read_permissions(self, role: str) -> frozenset[str]:
        """Return the permissions of a role: google/iam/admin/v1/iam.proto, GetRole."""
        with contextlib.suppress(MissingError):
            return frozenset(self._apis.get(IAM, f"v1/{role}").get("includedPermissions", ()))
        return frozenset()


def _content(response: Any, host: str) -> dict[str, Any]:
    """Return the JSON object of a response.

    Raises:
        CannotAskError: If the response is not a JSON object, for example the page of a proxy.
    """
    try:
        return dict(response.json())
    except (ValueError, TypeError) as error:
        raise CannotAskError(
            f"{host} did not respond with JSON. Check for a proxy that responds in its place"
        ) from error


def _message(response: Any) -> str:
    """Return the first line of an API's error message."""
    try:
        return str(response.json()["error"]["message"]).splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError):
        return str(response.reason)
