"""A model in Vertex AI's Model Registry: its versions, and the alias that says which of them is the champion.

A version is known by its labels, which the service can search:

    tpu_pipelines_digest   what it is: the trained model and the files that serve it
    tpu_pipelines_model    the trained model alone
    tpu_pipelines_parent   the version that it was compared with

Its `artifact_uri` is the folder `export/` of a folder on gs:// that is laid out as a version of a registry in a folder.
"""

import dataclasses
import datetime
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, MissingError, OutageError
from tpu_components.core.files.vertex_clients import VertexService
from tpu_components.core.registry.reference import CHAMPION, EXPORT_DIR, GATE, check_alias, check_registry
from tpu_components.core.registry.versions import Move

DIGEST_LABEL, MODEL_LABEL, PARENT_LABEL = "tpu_pipelines_digest", "tpu_pipelines_model", "tpu_pipelines_parent"
# Of the version that is read where none is named. The service gives it to the first one, and moves it for nobody:
# model.proto, version_aliases, "there must be exactly one default version alias for a model".
_DEFAULT = "default"
_POLL_SECONDS = 10
_OPERATION_SECONDS = 3600  # The slowest, a deployment, takes a quarter of that.


def as_label(digest: str) -> str:
    """Return as much of a digest as a label holds: 63 of its 64 letters."""
    return digest[:63]


@dataclasses.dataclass(frozen=True)
class VertexVersion:
    """A version of a model in Vertex AI's registry.

    Attributes:
        number: Its id there: `1` is the first.
        digest: Digest of its files, as far as its label holds it.
        model_digest: Digest of its trained model, as far as its label holds it; empty if somebody else has uploaded it.
        parent: The version that it was compared with before; empty if there was none.
        uri: The folder on gs:// that holds its `model/` and `export/`.
        aliases: Those that stand there.
    """

    number: str
    digest: str
    model_digest: str
    parent: str
    uri: str
    aliases: tuple[str, ...]


class VertexRegistry:
    """The versions and aliases of one model, on Vertex AI.

    Whatever the service cannot answer now is asked again until it can.

    Args:
        root: `projects/PROJECT/locations/REGION/models`.
        model_name: The model's id there: lower-case letters, digits, `-` and `_`.
        service: That of the project and region, signed in as the environment says, if not given.
        backoff: Way to wait outages out, and to wait for what takes its time.

    Raises:
        InputError: If root or name cannot be one.
    """

    def __init__(
        self, root: str, model_name: str, service: VertexService | None = None, backoff: Backoff | None = None
    ) -> None:
        check_registry(root, model_name)
        self.root, self.model_name = root, model_name
        self.parent = root.removesuffix("/models")
        _, project, _, region, _ = root.split("/")
        self.service, self.backoff = service or VertexService(project, region), backoff or Backoff()

    @property
    def name(self) -> str:
        """The model's resource name."""
        return f"{self.root}/{self.model_name}"

    def call(self, kind: str, method: str, request: Any) -> Any:
        """Call a method of one of the services, as `ModelService`; outages are waited out."""
        return self.backoff(lambda: self.service.call(kind, method, request))

    def operate(self, kind: str, method: str, request: Any) -> None:
        """Call a method that takes its time, and wait until all is done. It is sent once: no outage is waited out here.

        Raises:
            OutageError: If nothing is known of what became of it: to be asked of the service before it is sent again.
            PlatformError: If the service fails at it; repeats its message.
            InputError: If the service refuses.
        """
        operation = self.service.call(kind, method, request)
        if not self.backoff.until(lambda: self.service.is_done(operation, method), _POLL_SECONDS, _OPERATION_SECONDS):
            raise OutageError(f"Vertex AI has not ended to {method.replace('_', ' ')} in {_OPERATION_SECONDS} s.")

    def find(self, version: str) -> VertexVersion | None:
        """Return the version of a number, which must be there, or where an alias stands, if anywhere.

        Raises:
            InputError: If there is no version of that number, or the service refuses.
        """
        try:
            return self.version(version)
        except MissingError:
            if version.isdecimal():
                raise
            return None

    def version(self, version: str) -> VertexVersion:
        """Return the version of a number, or where an alias stands.

        Raises:
            InputError: If there is none, or the service refuses.
        """
        return _read(self.call("ModelService", "get_model", {"name": f"{self.name}@{version}"}))

    def versions(self, label: str = "", value: str = "") -> tuple[VertexVersion, ...]:
        """Return all versions, or those with this label, the first one first; none where there is no such model."""
        request = {"name": self.name, "filter": f'labels.{label}="{value}"' if label else ""}
        try:
            models = self.backoff(lambda: self.service.list("ModelService", "list_model_versions", request))
        except MissingError:
            return ()
        return tuple(sorted(map(_read, models), key=lambda version: int(version.number)))

    def number_of(self, model_digest: str) -> str:
        """Return the latest version of a trained model; empty if there is none."""
        versions = self.versions(MODEL_LABEL, as_label(model_digest)) if model_digest else ()
        return versions[-1].number if versions else ""

    def champion(self, alias: str, digest: str) -> VertexVersion | None:
        """Return the version that a model has to beat for an alias.

        The one where the alias stands; or, if that is this very model, the one with which it was compared then.

        Args:
            alias: Alias, as `champion`; or the number of a version.
            digest: The model's; see `tpu_components.core.registry.model_digest`.

        Returns:
            None if there is nothing to beat.
        """
        current = self.find(alias)
        if current is None or current.model_digest != as_label(digest):
            return current
        return self.find(current.parent) if current.parent else None

    def check_promotable(self, number: str, alias: str, champion: str | None) -> VertexVersion | None:
        """Check that an alias may move to a version, the arguments as in `promote`; returns where it stands now.

        Raises:
            InputError: If the alias has moved since the comparison.
        """
        current, version = self.find(check_alias(alias)), self.version(number)
        current_digest = current.model_digest if current else ""
        if champion is not None and current_digest not in (as_label(champion), version.model_digest):
            raise InputError(
                f"Cannot promote version {number} of {self.model_name!r}: it was compared with "
                f"{self.number_of(champion) or 'none'}, and meanwhile the {alias} is "
                f"{current.number if current else 'none'}. Run again, to compare it with that."
            )
        return current

    def promote(self, number: str, alias: str, reason: str, champion: str | None = None) -> Move:
        """Move an alias to a version that the gate has let through; nothing happens where it stands there already.

        With `champion` goes the service's own alias `default`, so that whoever names no version reads the champion too.

        The service moves an alias without a condition: between the look at where it stands and the move lies one call.

        Args:
            number: The version.
            alias: Alias to move, as `champion`.
            reason: Why, in words.
            champion: Digest of the champion that it was compared with, empty for none; None if it was not the alias's.

        Raises:
            InputError: If the alias has moved since the comparison.
        """
        current = self.check_promotable(number, alias, champion)
        previous, aliases = (current.number, current.aliases) if current else ("", ())
        if current and previous == number:
            previous = current.parent
        else:
            aliases = ()
        wanted = [alias, _DEFAULT] if alias == CHAMPION else [alias]
        if not set(wanted) <= set(aliases):
            request = {"name": f"{self.name}@{number}", "version_aliases": wanted}
            self.call("ModelService", "merge_version_aliases", request)
        return Move(number, previous, GATE, reason, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))


def _read(model: Any) -> VertexVersion:
    return VertexVersion(
        number=model.version_id,
        digest=model.labels.get(DIGEST_LABEL, ""),
        model_digest=model.labels.get(MODEL_LABEL, ""),
        parent=model.labels.get(PARENT_LABEL, ""),
        uri=model.artifact_uri.rstrip("/").removesuffix(f"/{EXPORT_DIR}"),
        aliases=tuple(model.version_aliases),
    )
