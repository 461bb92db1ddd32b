"""A model in Vertex AI's Model Registry: its versions, and the alias of the champion.

Versions have labels, which the service can search:

    tpu_pipelines_digest   digest of the trained model and the exported files
    tpu_pipelines_model    digest of the trained model
    tpu_pipelines_parent   version that the model was compared with
    tpu_pipelines_turn_A   number of the promotion in which the gate gave the version the alias A, counted from 1, with
                           the ending `-rolled-back` if somebody has since moved A to an earlier version by hand

The service keeps no history of aliases, so rollbacks are detected from these promotion numbers: a version was rolled
back if its promotion number is higher than that of the version that has the alias now.

The `artifact_uri` is the folder `export/` of a version on gs://, which has the same layout as in a registry folder.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, MissingError, OutageError, PlatformError
from tpu_components.core.files.location import Location
from tpu_components.core.files.vertex_clients import VertexService
from tpu_components.core.registry.reference import CHAMPION, EXPORT_DIR, GATE, as_label, check_registry
from tpu_components.core.registry.versions import Move, check_promotable

DIGEST_LABEL, MODEL_LABEL, PARENT_LABEL = "tpu_pipelines_digest", "tpu_pipelines_model", "tpu_pipelines_parent"
_TURN_LABEL = "tpu_pipelines_turn"
# Alias of the version that clients get by default. The service sets it on the first version and does not move it:
# model.proto, version_aliases, "there must be exactly one default version alias for a model".
_DEFAULT = "default"
_ROLLED_BACK = "rolled-back"
_POLL_SECONDS = 10
_OPERATION_SECONDS = 3600  # Four times the duration of the slowest operation, a deployment.


@dataclasses.dataclass(frozen=True)
class VertexVersion:
    """A version of a model in Vertex AI's registry.

    Attributes:
        number: Version ID, `1` for the first.
        model_digest: Digest of the trained model, in the form of `as_label`. Empty if another tool created the version.
        parent: Version that the model was compared with. Empty if there was none.
        uri: Folder on gs:// with `model/` and `export/`.
        aliases: Aliases of the version.
        labels: All labels of the version.
    """

    number: str
    model_digest: str
    parent: str
    uri: Location
    aliases: tuple[str, ...]
    labels: Mapping[str, str]

    def turn(self, alias: str) -> int:
        """Return the number of the promotion in which the gate gave this version an alias, counted from 1.

        Return 0 if the version has no label with this number.
        """
        return int(self.labels.get(turn_label(alias), "").partition("-")[0] or 0)

    def is_rolled_back(self, alias: str, current: Self | None) -> bool:
        """Return whether somebody has moved an alias by hand from this version back to an earlier version.

        A version that has the alias now is not rolled back. Otherwise, this version is rolled back in these cases:

        - Its label for the alias ends with `-rolled-back`.
        - It has a promotion number (`turn`) that is higher than the promotion number of the current version.
        - It has a promotion number, and no version has the alias now.
        - It is newer than the current version, it once had the alias, and the current version has no promotion number.

        A version has no promotion number if it is the first version, or if it got the alias by hand or from an earlier
        release of this project. A version once had the alias if it has a promotion number or, for the alias `champion`,
        if it still has Vertex AI's alias `default`, which the gate moves together with `champion`.

        Args:
            alias: The alias.
            current: Version that has the alias now, or None if no version has it.
        """
        if alias in self.aliases:
            return False
        if self.labels.get(turn_label(alias), "").endswith(_ROLLED_BACK):
            return True
        turn = self.turn(alias)
        if current is None:
            return turn > 0
        if current.turn(alias):
            return turn > current.turn(alias)
        had_alias = turn > 0 or (alias == CHAMPION and _DEFAULT in self.aliases)
        return had_alias and int(self.number) > int(current.number)


class VertexRegistry:
    """Versions and aliases of one model on Vertex AI. Transient errors are retried.

    Args:
        root: `projects/PROJECT/locations/REGION/models`.
        model_name: ID of the model: lower-case letters, digits, `-` and `_`.
        service: Client of the service. None creates a client with the environment's credentials.
        backoff: Retry policy, for transient errors and long operations.

    Raises:
        InputError: If `root` or `model_name` is invalid.
    """

    def __init__(
        self, root: str, model_name: str, service: VertexService | None = None, backoff: Backoff | None = None
    ) -> None:
        check_registry(root, model_name)
        self.root = root
        self.model_name = model_name
        self.parent = root.removesuffix("/models")
        _, project, _, region, _ = root.split("/")
        self.service = service or VertexService(project, region)
        self.backoff = backoff or Backoff()

    @property
    def name(self) -> str:
        """Resource name of the model."""
        return f"{self.root}/{self.model_name}"

    def call(self, kind: str, method: str, request: Any) -> Any:
        """Call a method of the service `kind`, for example `ModelService`. Transient errors are retried."""
        return self.backoff(lambda: self.service.call(kind, method, request))

    def operate(self, kind: str, method: str, request: Any) -> None:
        """Call a method that starts a long operation, and wait for the operation. The call is not retried.

        Raises:
            OutageError: If the outcome is unknown. The caller must check the state before calling again.
            PlatformError: If the operation fails, with the service's message.
            InputError: If the service rejects the call.
        """
        operation = self.service.call(kind, method, request)
        if not self.backoff.until(lambda: self.service.is_done(operation, method), _POLL_SECONDS, _OPERATION_SECONDS):
            raise OutageError(f"Vertex AI did not finish {method.replace('_', ' ')} within {_OPERATION_SECONDS} s.")

    def find(self, version: str) -> VertexVersion | None:
        """Return a version by number or alias, or None if no version has the alias.

        Raises:
            InputError: If the version does not exist, or the service rejects the request.
        """
        try:
            return self.version(version)
        except MissingError:
            if version.isdecimal():
                raise
            return None

    def version(self, version: str) -> VertexVersion:
        """Return a version by number or alias.

        Raises:
            InputError: If the version does not exist, or the service rejects the request.
        """
        return _read(self.call("ModelService", "get_model", {"name": f"{self.name}@{version}"}))

    def versions(self, label: str = "", value: str = "") -> tuple[VertexVersion, ...]:
        """Return all versions, or the versions whose label `label` has the value `value`, oldest first.

        Return an empty tuple if the model does not exist.
        """
        request = {"name": self.name, "filter": f'labels.{label}="{value}"' if label else ""}
        try:
            models = self.backoff(lambda: self.service.list("ModelService", "list_model_versions", request))
        except MissingError:
            return ()
        return tuple(sorted(map(_read, models), key=lambda version: int(version.number)))

    def number_of(self, model_digest: str) -> str:
        """Return the number of the latest version with this trained model, or an empty string if there is none."""
        versions = self.versions(MODEL_LABEL, as_label(model_digest)) if model_digest else ()
        return versions[-1].number if versions else ""

    def alias_of(self, version: str) -> str:
        """Return an alias of a version, or an empty string if the version has no alias.

        The argument is a number or an alias. An alias is returned unchanged. The service's alias `default` does not
        count.
        """
        if not version.isdecimal():
            return version
        return next((alias for alias in self.version(version).aliases if alias != _DEFAULT), "")

    def champion(self, alias: str, digest: str) -> VertexVersion | None:
        """Return the version that a model must beat to get an alias.

        Usually, this is the version that has the alias. If an earlier evaluation has already promoted the model, that
        version contains the same model. In this case, the result is the version that the model was compared with then.

        Args:
            alias: Alias, for example `champion`, or the number of a version.
            digest: Digest of the model that would get the alias; see `versions.model_digest`.

        Returns:
            The version, or None if there is no version to beat.
        """
        current = self.find(alias)
        if current is None or current.model_digest != as_label(digest):
            return current
        return self.find(current.parent) if current.parent else None

    def promote(self, number: str, alias: str, reason: str, champion: str | None = None) -> Move:
        """Move an alias to a version that has passed the gate, unless the version has the alias already.

        With the alias `champion`, the service's alias `default` also moves, so that clients get the champion by
        default. The service cannot move an alias conditionally, so another process may move the alias after this
        function has checked which version has it. The arguments are the same as in `ModelRegistry.promote`.

        Raises:
            InputError: If the alias has moved since the comparison, or the version's model was rolled back.
        """
        current = check_promotable(self, number, alias, champion)
        versions = self.versions()
        previous, aliases = (current.number, current.aliases) if current else ("", ())
        if current and previous == number:
            previous = current.parent
        else:
            aliases = ()
            self._keep_rollbacks(versions, alias, current)
        wanted = [alias, _DEFAULT] if alias == CHAMPION else [alias]
        if not set(wanted) <= set(aliases):
            request = {"name": f"{self.name}@{number}", "version_aliases": wanted}
            self.call("ModelService", "merge_version_aliases", request)
        self._take_turn(versions, number, alias, previous)
        return Move(number, previous, GATE, reason)

    def find_rollback(self, number: str, alias: str) -> str:
        """Describe the rollback that keeps a version from getting an alias, and say what to do.

        The rollback is a manual move of the alias from this version, or from another version with the same trained
        model, back to an earlier version. Return an empty string if nobody has moved the alias in this way.
        """
        versions = self.versions()
        current = _holder(versions, alias)
        digest = next((each.model_digest for each in versions if each.number == number), "")
        same_model = [each for each in versions if each.number == number or (digest and each.model_digest == digest)]
        # A move between two versions of the model concerns only the export.
        suspects = [each for each in same_model if each.number == number or current not in same_model]
        rolled_back = [each.number for each in suspects if each.is_rolled_back(alias, current)]
        if not rolled_back:
            return ""
        what = "it" if number in rolled_back else f"version {rolled_back[-1]}, which has the same model,"
        return (
            f"{what} was rolled back (somebody moved the {alias} to {current.number if current else 'none'} by hand), "
            "and the model has not changed. Train a better model, or promote this version by hand: "
            f"aiplatform.models.ModelRegistry({self.model_name!r}).add_version_aliases([{alias!r}], {number!r})."
        )

    def _keep_rollbacks(self, versions: Sequence[VertexVersion], alias: str, current: VertexVersion | None) -> None:
        """Add `-rolled-back` to the turn labels of the versions that lost an alias by a rollback.

        This must happen before the alias moves again. A version that has got the alias again loses the ending.
        """
        for version in versions:
            turn = str(version.turn(alias))
            if version.is_rolled_back(alias, current):
                self._label(version, alias, f"{turn}-{_ROLLED_BACK}")
            elif alias in version.aliases and version.labels.get(turn_label(alias), "").endswith(_ROLLED_BACK):
                self._label(version, alias, turn)

    def _take_turn(self, versions: Sequence[VertexVersion], number: str, alias: str, previous: str) -> None:
        """Set a version's turn label: the number of the promotion in which it took over an alias.

        If the alias did not move from another version, the label is not set.

        The alias has already moved, so an error is only logged. Repeating the promotion writes the label.
        """
        version = next(each for each in versions if each.number == number)
        latest = max(each.turn(alias) for each in versions)
        if not previous or (alias in version.aliases and version.turn(alias)):
            return
        try:
            self._label(version, alias, str(latest + 1))
        except (InputError, PlatformError) as error:
            progress.say(
                "deploy_model",
                f"version {number} is now the {alias}. If you roll it back, its rollback could go unnoticed, because "
                f"writing its label {turn_label(alias)} failed: {error}",
            )

    def _label(self, version: VertexVersion, alias: str, value: str) -> None:
        """Set a version's turn label for an alias, if it changes. The version keeps its other labels."""
        if version.labels.get(turn_label(alias)) != value:
            model = {"name": f"{self.name}@{version.number}", "labels": {**version.labels, turn_label(alias): value}}
            self.call("ModelService", "update_model", {"model": model, "update_mask": {"paths": ["labels"]}})


def turn_label(alias: str) -> str:
    """Return the name of the label with a version's promotion number for an alias; see `VertexVersion.turn`."""
    return f"{_TURN_LABEL}_{alias.lower()}"[:63]


def _holder(versions: Sequence[VertexVersion], alias: str) -> VertexVersion | None:
    return next((version for version in versions if alias in version.aliases), None)


def _read(model: Any) -> VertexVersion:
    export = Location(model.artifact_uri)
    return VertexVersion(
        number=model.version_id,
        model_digest=model.labels.get(MODEL_LABEL, ""),
        parent=model.labels.get(PARENT_LABEL, ""),
        uri=export.parent if export.name == EXPORT_DIR else export.folder,
        aliases=tuple(model.version_aliases),
        labels=dict(model.labels),
    )
