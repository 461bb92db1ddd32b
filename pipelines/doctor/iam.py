"""Permissions of an account, computed from the IAM policies that the signed-in user may read."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tpu_components.core.base.retries import MissingError
from tpu_pipelines.doctor.findings import CannotAskError
from tpu_pipelines.doctor.google_apis import GoogleApis

IAM, RESOURCES = "iam.googleapis.com", "cloudresourcemanager.googleapis.com"
_EVERYONE = ("allUsers", "allAuthenticatedUsers")
# https://cloud.google.com/storage/docs/access-control/iam#convenience-values: who has these roles in the project.
_CONVENIENCE = {"projectOwner": "roles/owner", "projectEditor": "roles/editor", "projectViewer": "roles/viewer"}
Policy = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Granted:
    """Permissions that policies give to an account.

    Attributes:
        surely: Permissions that it has.
        maybe: Permissions that it has if it is in a group or if a condition holds; neither is visible.
        unread: Reason for which a policy that may grant more could not be read; empty if all policies were read.
    """

    surely: frozenset[str]
    maybe: frozenset[str]
    unread: str = ""

    def lacks(self, permissions: tuple[str, ...]) -> tuple[list[str], str]:
        """Return the permissions that are not certain, and why the account may have them.

        The reason is empty if the account certainly lacks them.
        """
        lacking = [permission for permission in permissions if permission not in self.surely]
        if lacking and set(lacking) <= self.maybe:
            return lacking, "a group or a condition may grant it, which cannot be seen"
        return lacking, self.unread if lacking else ""


class Policies:
    """The IAM policies of a project and of its resources.

    Args:
        apis: Client of Google Cloud's APIs.
        project: Google Cloud project, by id.
    """

    def __init__(self, apis: GoogleApis, project: str) -> None:
        self._apis, self._project = apis, project
        self._permissions: dict[str, frozenset[str]] = {}

    def granted(self, member: str, own: Callable[[], Policy] | None = None) -> Granted:
        """Return the permissions of a member.

        Args:
            member: Member, as `serviceAccount:trainer@my-project.iam.gserviceaccount.com`.
            own: Reads the resource's own policy. The policies of the project and above it are always included.
        """
        unread = [error for _, error in self._above if error]
        surely, maybe = _roles((policy for policy, _ in self._above), member, frozenset())
        if own:
            try:
                mine, may = _roles([own()], member, surely)
                surely, maybe = surely | mine, maybe | may
            except (CannotAskError, MissingError) as error:
                unread.append(str(error))
        return Granted(self._permissions_of(surely), self._permissions_of(maybe), "; ".join(unread))

    @functools.cached_property
    def _above(self) -> list[tuple[Policy, str]]:
        """The policies of the project, its folders and its organisation; or the reason for which one cannot be read.

        By google/cloud/resourcemanager/v3/projects.proto, GetIamPolicy leaves out what is inherited.
        """
        policies: list[tuple[Policy, str]] = []
        name = f"projects/{self._project}"
        while name:
            body = {"options": {"requestedPolicyVersion": 3}}
            try:
                policies.append((self._apis.post(RESOURCES, f"v3/{name}:getIamPolicy", body), ""))
                is_top = name.startswith("organizations/")
                name = "" if is_top else self._apis.get(RESOURCES, f"v3/{name}").get("parent", "")
            except (CannotAskError, MissingError) as error:
                policies.append(({}, f"the policy of {name} cannot be read: {error}"))
                break
        return policies

    def _permissions_of(self, roles: frozenset[str]) -> frozenset[str]:
        """Return the permissions of some roles: google/iam/admin/v1/iam.proto, GetRole."""
        for role in roles - self._permissions.keys():
            try:
                permissions = self._apis.get(IAM, f"v1/{role}").get("includedPermissions", ())
            except MissingError:
                permissions = ()
            self._permissions[role] = frozenset(permissions)
        return frozenset().union(*(self._permissions[role] for role in roles))


def _roles(policies: Iterable[Policy], member: str, held: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the roles that policies certainly bind to a member, and those that they may bind.

    Args:
        policies: IAM policies.
        member: Member, as in `Policies.granted`.
        held: Roles that the member has in the project.
    """
    surely, maybe = set(), set()
    for policy in policies:
        for binding in policy.get("bindings", ()):
            members = binding.get("members", ())
            is_named = member in members or any(other in members for other in _EVERYONE)
            is_named = is_named or any(_CONVENIENCE.get(other.partition(":")[0]) in held for other in members)
            if is_named and not binding.get("condition"):
                surely.add(binding["role"])
            elif is_named or any(other.startswith(("group:", "domain:", "principalSet:")) for other in members):
                maybe.add(binding["role"])
    return frozenset(surely), frozenset(maybe - surely)
