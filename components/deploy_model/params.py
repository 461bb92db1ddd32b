"""What a user may set, and what comes back."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import Amount, Pattern, Positive, Range, check_fields
from tpu_components.core.examples.artifacts import DEPLOYMENT_FILE
from tpu_components.core.files import storage
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.registry.reference import CHAMPION, check_alias, check_model_name, check_registry, is_on_vertex
from tpu_components.core.registry.signing import is_key_itself

PUBLIC, DEDICATED, PRIVATE = ENDPOINT_ACCESS = ("public", "dedicated", "private")
PREFLIGHT = "preflight"  # In the lineage of a version: what its training takes of a machine.
VERTEX = "vertex"  # In a configuration: the registry of the settings' project and region.
# As SPDX's and Hugging Face's are.
_LICENCE = Pattern(
    r"([A-Za-z0-9]([A-Za-z0-9.+-]{0,62}[A-Za-z0-9+])?)?",
    "an identifier from SPDX's list or Hugging Face's, as apache-2.0",
)
_LONGEST_NOTES = 10_000
_KEY = Pattern(
    r"(projects/[^/\s]+/locations/[^/\s]+/keyRings/[^/\s]+/cryptoKeys/[^/\s]+)?",
    "projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY",
)
_SERVICE_ACCOUNT = Pattern(r"([^@\s]+@[^@\s]+)?", "like server@my-project.iam.gserviceaccount.com")
_NETWORK = r"projects/[a-z][^/\s]*/global/networks/[^/\s]+"
# What Vertex AI takes, with room for the endpoint that tries a version.
_ENDPOINT = Pattern(
    r"([a-z]([a-z0-9-]{0,38}[a-z0-9])?)?", "lower-case letters, digits and '-', a letter first, at most 40"
)


@dataclasses.dataclass(frozen=True)
class DeployParams:
    """The registry to use and the checks before it; one field per component input.

    Attributes:
        registry: Folder of the registry, on this machine, or `projects/PROJECT/locations/REGION/models` for Vertex AI's
            Model Registry. In a configuration, empty is `registry` in the workspace of a local run, and a compiled
            pipeline is then without this step; `vertex` is that of the project and region in the settings.
        model_name: Name in the registry: runs that share it compete for its alias. In a configuration, the run's own
            where it is left out.
        alias: The alias that moves to the new version.
        health_check_examples: Images that the registered export has to answer before the alias moves.
        health_check_tolerance: Largest difference of a probability, or of a number in its target's standard deviations,
            between its answers and those that were evaluated.
        artifacts_uri: Folder on gs:// that keeps every version's model and export, for a registry on Vertex AI. In a
            configuration, empty is `registry` in the settings' bucket.
        serving_image: Image that serves a version, for a registry on Vertex AI. Empty is what
            TPU_PIPELINES_SERVING_IMAGE says where the pipeline is compiled.
        endpoint: Id of the endpoint that serves the new version, for a registry on Vertex AI; it is created where there
            is none. Empty is none.
        endpoint_traffic: Percentage of the endpoint's requests for the new version; the others share the rest as
            before. The first version gets all.
        endpoint_machine_type: Machine that serves.
        endpoint_max_replicas: Most machines at a time; the least is 1, which costs as long as the version is deployed.
        endpoint_service_account: Service account that a version serves as; empty is one without any rights.
        endpoint_access: Way in which the endpoint is reached: `public`, at the service's address; `dedicated`, at a
            public address of its own; `private`, inside a network by Private Service Connect. It stays as created.
        endpoint_network: Network in which a private endpoint gets its address, as
            `projects/PROJECT/global/networks/NETWORK` with the project's id. The steps must run there too, to ask it.
        endpoint_projects: Projects that may connect to a private endpoint beside its own and its network's.
        encryption_key: Key of the user's own (CMEK) for versions and the endpoint of a registry on Vertex AI. In a
            configuration, empty is that of the settings.
        signing_key: File of a private EC key in PEM, here or on gs://, that a new version is signed with; its password,
            if any, is in TPU_PIPELINES_SIGNING_PASSWORD. Empty leaves versions unsigned.
        verify_key: File of the public key, here or on gs://, or the key itself in PEM: the alias moves only once the
            version's signatures are verified with it, and on Vertex AI its servers verify them too. Empty is no check.
        lineage: Facts to record with the version beside what the artifacts say, as the run and its configuration.
        preflight: Findings of preflight_training on the machine of the training, which the version keeps; empty where
            there was no preflight.
        licence: Identifier of the model's licence, from SPDX's list or Hugging Face's, as `apache-2.0`, for its card.
            Empty is none stated.
        notes: Text of the user's own in the model's card, shown as it is; without `{{`, which a pipeline fills in.
    """

    registry: str
    model_name: str
    alias: str = CHAMPION
    health_check_examples: Positive = 32
    health_check_tolerance: Annotated[float, Range(above=0, most=1)] = 0.01
    artifacts_uri: str = ""
    serving_image: str = ""
    endpoint: Annotated[str, _ENDPOINT] = ""
    endpoint_traffic: Annotated[int, Range(1, 100)] = 100
    endpoint_machine_type: str = "n1-standard-2"
    endpoint_max_replicas: Positive = 1
    endpoint_service_account: Annotated[str, _SERVICE_ACCOUNT] = ""
    endpoint_access: Annotated[str, ENDPOINT_ACCESS] = PUBLIC
    endpoint_network: str = ""
    endpoint_projects: tuple[str, ...] = ()
    encryption_key: Annotated[str, _KEY] = ""
    signing_key: str = ""
    verify_key: str = ""
    lineage: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preflight: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    licence: Annotated[str, _LICENCE] = ""
    notes: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        check_model_name(self.model_name)
        check_alias(self.alias)
        check_registry(self.registry, self.model_name)
        if len(self.notes) > _LONGEST_NOTES:
            raise InputError(f"notes must be at most {_LONGEST_NOTES:,} characters. Received: {len(self.notes):,}.")
        if "{{" in self.notes:  # KFP and Argo put something else there, wherever it stands in an argument.
            raise InputError(f"notes must be without '{{{{', which a pipeline fills in. Received: {self.notes[:80]!r}.")
        if self.artifacts_uri and not storage.is_on_google(self.artifacts_uri):
            raise InputError(f"artifacts_uri must be on gs://. Received: {self.artifacts_uri!r}.")
        if self.endpoint and self.registry and not (self.registry == VERTEX or is_on_vertex(self.registry)):
            raise InputError(
                f"An endpoint serves what is registered on Vertex AI. Received: endpoint={self.endpoint!r} with "
                f"registry={self.registry!r}. Leave endpoint out, or set registry=projects/PROJECT/locations/REGION/"
                "models."
            )
        self._check_access()
        if self.encryption_key and is_on_vertex(self.registry):
            region, key_region = self.registry.split("/")[3], self.encryption_key.split("/")[3]
            if region != key_region:
                raise InputError(
                    f"encryption_key must be of the registry's region, {region!r}. Received: one of {key_region!r}, "
                    f"{self.encryption_key!r}."
                )
        elif self.encryption_key and self.registry not in ("", VERTEX):
            raise InputError(
                f"A registry in a folder has no encryption_key. Received: {self.encryption_key!r} with registry="
                f"{self.registry!r}. Leave it out."
            )
        if is_key_itself(self.signing_key):
            raise InputError("signing_key must be the place of a key, as gs://BUCKET/key.pem. Received: a key itself.")
        if "PRIVATE KEY" in self.verify_key:
            raise InputError("verify_key must be a public key, or the place of one. Received: a private key.")
        if self.verify_key and not self.signing_key:
            raise InputError(
                "verify_key judges what the step has registered, and nothing signs that. Set signing_key too, or leave "
                "verify_key out."
            )

    def _check_access(self) -> None:
        """Check that it is said how an endpoint is reached, and nothing else beside it."""
        access = self.endpoint_access
        if access != PUBLIC and not self.endpoint:
            raise InputError(f"endpoint_access={access!r} is of an endpoint, and there is none. Set endpoint=NAME.")
        if access == PRIVATE and not re.fullmatch(_NETWORK, self.endpoint_network):
            raise InputError(
                "A private endpoint is asked in a network before it serves: expected endpoint_network="
                "projects/PROJECT/global/networks/NETWORK, with the project's id and not its number. Received: "
                f"{self.endpoint_network!r}."
            )
        if access != PRIVATE and (self.endpoint_network or self.endpoint_projects):
            raise InputError(
                "endpoint_network and endpoint_projects are of a private endpoint. Received: endpoint_access="
                f"{access!r} with {self.endpoint_network or ', '.join(self.endpoint_projects)!r}. Set endpoint_access="
                "private."
            )


@dataclasses.dataclass(frozen=True)
class HealthCheckResult:
    """Examples answered, and the largest difference of a probability or standardised number."""

    num_examples: int
    max_difference: Amount


@dataclasses.dataclass(frozen=True)
class DeployResult(JsonFile, name=DEPLOYMENT_FILE, what="the description of a deployment", step="deploy_model"):
    """The place of the model now: `deployment.json`.

    Attributes:
        registry: The registry.
        model_name: Name in it.
        version: The version's number, as `0001`, or `1` on Vertex AI.
        version_dir: Its folder, here or on gs://.
        alias: The alias that stands there.
        previous: The version where the alias stood before; empty if there was none.
        health_check: Answers of the registered export, in figures.
        endpoint: The endpoint that serves it; empty if there is none.
    """

    registry: str
    model_name: str
    version: str
    version_dir: str
    alias: str
    previous: str
    health_check: HealthCheckResult
    endpoint: str = ""
