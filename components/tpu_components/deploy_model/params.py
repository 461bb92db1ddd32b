"""Parameters and result of deploy_model."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import Amount, Pattern, Positive, Range, check_fields, check_together
from tpu_components.core.examples.artifacts import DEPLOYMENT_FILE
from tpu_components.core.files.resource_names import ENCRYPTION_KEY, SERVICE_ACCOUNT
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.registry.reference import CHAMPION, check_alias, check_registry, is_on_vertex
from tpu_components.core.registry.signing import is_key_itself

PUBLIC, DEDICATED = ENDPOINT_ACCESS = ("public", "dedicated")
PREFLIGHT = "preflight"  # In the lineage of a version: preflight's findings.
VERTEX = "vertex"  # In a configuration: Vertex AI's registry in the settings' project and region.
# Form of SPDX's and Hugging Face's identifiers.
_LICENCE = Pattern(
    r"([A-Za-z0-9]([A-Za-z0-9.+-]{0,62}[A-Za-z0-9+])?)?",
    "an identifier from SPDX's list or Hugging Face's, for example apache-2.0",
)
_LONGEST_NOTES = 10_000
_KEY = Pattern(
    f"({ENCRYPTION_KEY})?",
    "projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY",
)
_ON_GOOGLE = Pattern(r"(gs://.*)?", "on gs://")
_ACCOUNT = Pattern(f"({SERVICE_ACCOUNT})?", "like server@my-project.iam.gserviceaccount.com")
# Private endpoints, https://cloud.google.com/vertex-ai/docs/predictions/private-service-connect.
_DEPLOY_YOURSELF = (
    "Leave deploy.endpoint out, and deploy the registered version to your private endpoint with Google's command, "
    "gcloud ai endpoints deploy-model ENDPOINT --region=REGION --model=MODEL --display-name=NAME --traffic-split=0=100."
)
# Vertex AI's form, with room for `-candidate`.
_ENDPOINT = Pattern(
    r"([a-z]([a-z0-9-]{0,38}[a-z0-9])?)?", "lower-case letters, digits and '-', a letter first, at most 40"
)


@dataclasses.dataclass(frozen=True)
class DeployParams:
    """Registry, endpoint and checks of deploy_model; one field per component input.

    Attributes:
        registry: Local folder of the registry, not a bucket, or `projects/PROJECT/locations/REGION/models` for Vertex
            AI's Model Registry. In a configuration: `vertex` is Vertex AI's registry in the settings' project and
            region; empty is `registry` in the workspace for a local run. A compiled pipeline, on Kubeflow too, accepts
            only Vertex AI's registry; if this is empty, it has no deploy_model.
        model_name: Name of the model in the registry; runs with the same name compete for its alias. In a
            configuration, the default is the name of the run.
        alias: Alias to move to the new version.
        health_check_examples: Number of examples that the registered export must predict before the alias moves.
        health_check_tolerance: Largest allowed difference from the evaluated predictions, as a probability or in
            standard deviations of a regression's target.
        artifacts_uri: Folder on gs:// for the versions' models and exports, for a registry on Vertex AI. In a
            configuration, empty is `registry` in the settings' bucket.
        serving_image: Image of the server, for a registry on Vertex AI. Default: TPU_PIPELINES_SERVING_IMAGE, when the
            pipeline is compiled.
        endpoint: Id of the endpoint for the new version, for a registry on Vertex AI; created if missing. Empty deploys
            to no endpoint.
        endpoint_traffic: Percentage of the endpoint's requests for the new version; other versions share the rest in
            proportion. The first version gets all requests.
        endpoint_machine_type: Machine type of the endpoint.
        endpoint_max_replicas: Largest number of machines. At least 1 machine runs, and costs, while a version is
            deployed.
        endpoint_service_account: Service account of the server; empty is an account without permissions.
        endpoint_access: Address of the endpoint: `public`, the service's; `dedicated`, a public one of its own. It
            cannot be changed later.
        encryption_key: Customer-managed encryption key (CMEK) for versions and endpoint on Vertex AI. In a
            configuration, empty is the settings' key.
        signing_key: File of a private EC key in PEM, local or on gs://, to sign a new version with. Its password, if
            any, is TPU_PIPELINES_SIGNING_PASSWORD. Empty leaves versions unsigned.
        verify_key: Public key: PEM text, or the path of a PEM file, local or on gs://. The alias moves only if the
            version's signatures are valid; servers on Vertex AI verify them too. Empty disables the check.
        lineage: Further facts to record with the version, by name. A pipeline passes `run`, `config` and
            `code`.
        preflight: Output `footprint` of preflight_training, to record with the version: `machine`, `step_ms`,
            `peak_bytes`, `usd_per_hour` and so on. A pipeline passes it; otherwise leave it empty.
        licence: Identifier of the model's licence for its card, from SPDX's or Hugging Face's list, for example
            `apache-2.0`. Empty states none.
        notes: Your own text for the model's card, shown literally. It must not contain two opening braces in a row,
            the pipeline's mark for placeholders.
    """

    registry: str
    model_name: str
    alias: str = CHAMPION
    health_check_examples: Positive = 32
    health_check_tolerance: Annotated[float, Range(above=0, most=1)] = 0.01
    artifacts_uri: Annotated[str, _ON_GOOGLE] = ""
    serving_image: str = ""
    endpoint: Annotated[str, _ENDPOINT] = ""
    endpoint_traffic: Annotated[int, Range(1, 100)] = 100
    endpoint_machine_type: str = "n1-standard-2"
    endpoint_max_replicas: Positive = 1
    endpoint_service_account: Annotated[str, _ACCOUNT] = ""
    endpoint_access: Annotated[str, ENDPOINT_ACCESS] = PUBLIC
    encryption_key: Annotated[str, _KEY] = ""
    signing_key: str = ""
    verify_key: str = ""
    lineage: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preflight: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    licence: Annotated[str, _LICENCE] = ""
    notes: str = ""

    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("endpoint_access=private", "endpoint_network", "endpoint_projects"), _DEPLOY_YOURSELF
    )

    def __post_init__(self) -> None:
        check_fields(self)
        check_alias(self.alias, self.registry)
        check_registry(self.registry, self.model_name)
        access = self.endpoint_access
        check_together(
            (
                len(self.notes) > _LONGEST_NOTES,
                f"notes must be at most {_LONGEST_NOTES:,} characters. Received: {len(self.notes):,}.",
            ),
            (  # KFP and Argo replace such placeholders in any argument.
                "{{" in self.notes,
                f"notes must be without '{{{{', which a pipeline fills in. Received: {self.notes[:80]!r}.",
            ),
            (
                self.endpoint and self.registry and not self.is_on_vertex,
                f"An endpoint serves what is registered on Vertex AI. Received: endpoint={self.endpoint!r} with "
                f"registry={self.registry!r}. Leave endpoint out, or set registry=projects/PROJECT/locations/REGION/"
                "models.",
            ),
            (
                access != PUBLIC and not self.endpoint,
                f"endpoint_access={access!r} is of an endpoint, and there is none. Set endpoint=NAME.",
            ),
            (
                self.encryption_key and self.registry and not self.is_on_vertex,
                f"A registry in a folder has no encryption_key. Received: {self.encryption_key!r} with registry="
                f"{self.registry!r}. Leave it out.",
            ),
            (
                is_key_itself(self.signing_key),
                "signing_key must be the place of a key, as gs://BUCKET/key.pem. Received: a key itself.",
            ),
            (
                "PRIVATE KEY" in self.verify_key,
                "verify_key must be a public key, or the place of one. Received: a private key.",
            ),
            (
                self.verify_key and not self.signing_key,
                "verify_key judges what the step has registered, and nothing signs that. Set signing_key too, or leave "
                "verify_key out.",
            ),
        )
        if self.encryption_key and is_on_vertex(self.registry):
            region, key_region = self.registry.split("/")[3], self.encryption_key.split("/")[3]
            if region != key_region:
                raise InputError(
                    f"encryption_key must be of the registry's region, {region!r}. Received: one of {key_region!r}, "
                    f"{self.encryption_key!r}."
                )

    @property
    def is_on_vertex(self) -> bool:
        """Whether `registry` names Vertex AI's registry: `vertex`, or `projects/PROJECT/locations/REGION/models`."""
        return self.registry == VERTEX or is_on_vertex(self.registry)


@dataclasses.dataclass(frozen=True)
class HealthCheckResult:
    """Number of predicted examples, and the largest difference from the evaluated predictions."""

    num_examples: int
    max_difference: Amount


@dataclasses.dataclass(frozen=True)
class DeployResult(JsonFile, name=DEPLOYMENT_FILE, what="the description of a deployment", step="deploy_model"):
    """Result of deploy_model: `deployment.json`.

    Attributes:
        registry: Registry of the model.
        model_name: Name of the model in the registry.
        version: Number of the version, for example `0001`, or `1` on Vertex AI.
        version_dir: Folder of the version, local or on gs://.
        alias: Alias of the version.
        previous: Version that had the alias before; empty if there was none.
        health_check: Result of the health check.
        endpoint: Endpoint that serves the version; empty if there is none.
    """

    registry: str
    model_name: str
    version: str
    version_dir: str
    alias: str
    previous: str
    health_check: HealthCheckResult
    endpoint: str = ""
