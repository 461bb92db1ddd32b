"""Parameters and result of deploy_model."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from tpu_components.core.base.container_images import check_image_name
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
    r"([a-z]([a-z0-9-]{0,38}[a-z0-9])?)?",
    "lower-case letters, digits and '-', with a letter first, at most 40 characters",
)


@dataclasses.dataclass(frozen=True)
class DeployParams:
    """Registry, endpoint and checks of deploy_model. Each field is an input of the component.

    Attributes:
        registry: Registry of the model: a local folder (buckets are not supported), or
            `projects/PROJECT/locations/REGION/models` for Vertex AI's Model Registry. In a configuration, `vertex`
            means Vertex AI's registry in the settings' project and region. If this is empty in a configuration, a local
            run uses the folder `registry` in the workspace, and a compiled pipeline has no step deploy_model. Compiled
            pipelines, including those for Kubeflow, accept only Vertex AI's registry.
        model_name: Name of the model in the registry. Runs with the same model name compete for the model's alias. In a
            configuration, the default is the name of the run.
        alias: Alias to move to the new version.
        health_check_examples: Number of examples that the registered export must predict before the alias moves.
        health_check_tolerance: Largest allowed difference from the predictions in the evaluation, as a probability or,
            for a regression, in standard deviations of the target.
        artifacts_uri: Folder on gs:// for the models and exports of the versions, for a registry on Vertex AI. In a
            configuration, the default is the folder `registry` in the settings' bucket.
        serving_image: Image of the server, for a registry on Vertex AI. The default is the value of
            TPU_PIPELINES_SERVING_IMAGE when the pipeline is compiled.
        endpoint: ID of the endpoint that serves the new version, for a registry on Vertex AI. The endpoint is created
            if it does not exist. If this is empty, the version is not deployed to an endpoint.
        endpoint_traffic: Percentage of the endpoint's requests that the new version gets. The other versions share the
            rest, in the same proportion as before. The first version gets all requests.
        endpoint_machine_type: Machine type of the endpoint.
        endpoint_max_replicas: Largest number of machines that serve the version. While a version is deployed, at least
            one machine runs and costs money.
        endpoint_service_account: Service account of the server. Empty means an account without permissions.
        endpoint_access: Kind of address: with `public`, the endpoint is reached at the service's address; with
            `dedicated`, it has a public address of its own. This cannot be changed after the endpoint is created.
        encryption_key: Customer-managed encryption key (CMEK) for the versions and the endpoint on Vertex AI. In a
            configuration, the default is the settings' key.
        signing_key: Path of the private EC key, in PEM, that signs new versions; local or on gs://. If the key has a
            password, set TPU_PIPELINES_SIGNING_PASSWORD. If this is empty, versions are not signed.
        verify_key: Public key: PEM text, or the path of a PEM file, local or on gs://. The alias moves only if the
            version's signatures are valid. Servers on Vertex AI also verify them. If this is empty, signatures are not
            checked.
        lineage: Additional facts to record with the version, by name. A pipeline passes `run`, `config` and `code`.
        preflight: Output `footprint` of preflight_training, to record with the version: `machine`, `step_ms`,
            `peak_bytes`, `usd_per_hour` and so on. A pipeline passes this value. Otherwise, leave it empty.
        licence: Licence of the model, for the model card: an identifier from SPDX's or Hugging Face's list, for example
            `apache-2.0`. If this is empty, the card states no licence.
        notes: Your text for the model card. It is shown literally. It must not contain two opening braces in a row,
            because pipelines use them for placeholders.
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
        if self.serving_image:
            check_image_name(self.serving_image, "serving_image")
        access = self.endpoint_access
        check_together(
            (
                len(self.notes) > _LONGEST_NOTES,
                f"notes must be at most {_LONGEST_NOTES:,} characters. Received: {len(self.notes):,}. Shorten the "
                "notes.",
            ),
            (  # KFP and Argo replace such placeholders in any argument.
                "{{" in self.notes,
                f"notes must not contain '{{{{', because a pipeline would replace it. Received: {self.notes[:80]!r}.",
            ),
            (
                self.endpoint and self.registry and not self.is_on_vertex,
                f"An endpoint requires a registry on Vertex AI. Received: endpoint={self.endpoint!r} with "
                f"registry={self.registry!r}. Leave endpoint out, or set "
                "registry=projects/PROJECT/locations/REGION/models.",
            ),
            (
                access != PUBLIC and not self.endpoint,
                f"endpoint_access={access!r} requires an endpoint. Received: no endpoint. Set endpoint=NAME, or "
                "leave endpoint_access out.",
            ),
            (
                self.encryption_key and self.registry and not self.is_on_vertex,
                f"encryption_key requires a registry on Vertex AI. Received: {self.encryption_key!r} with "
                f"registry={self.registry!r}. Leave encryption_key out.",
            ),
            (
                is_key_itself(self.signing_key),
                "signing_key must be the path of a key file, such as gs://BUCKET/key.pem. Received: the content of a "
                "key.",
            ),
            (
                "PRIVATE KEY" in self.verify_key,
                "verify_key must be a public key, or the path of a public key. Received: a private key.",
            ),
            (
                self.verify_key and not self.signing_key,
                "verify_key requires signed versions, but signing_key is empty. Set signing_key, or leave verify_key "
                "out.",
            ),
        )
        if self.encryption_key and is_on_vertex(self.registry):
            region, key_region = self.registry.split("/")[3], self.encryption_key.split("/")[3]
            if region != key_region:
                raise InputError(
                    f"encryption_key must be in the registry's region, {region!r}. Received: a key in {key_region!r}, "
                    f"{self.encryption_key!r}."
                )

    @property
    def is_on_vertex(self) -> bool:
        """Whether `registry` is on Vertex AI: `vertex`, or `projects/PROJECT/locations/REGION/models`."""
        return self.registry == VERTEX or is_on_vertex(self.registry)


@dataclasses.dataclass(frozen=True)
class HealthCheckResult:
    """Result of a health check: the number of predicted examples, and the largest difference from the evaluation."""

    num_examples: int
    max_difference: Amount


@dataclasses.dataclass(frozen=True)
class DeployResult(JsonFile, name=DEPLOYMENT_FILE, what="the description of a deployment", step="deploy_model"):
    """Result of deploy_model, which is the content of `deployment.json`.

    Attributes:
        registry: Registry of the model.
        model_name: Name of the model in the registry.
        version: Number of the version, for example `0001`, or `1` on Vertex AI.
        version_dir: Folder of the version, local or on gs://.
        alias: Alias of the version.
        previous: Version that had the alias before. Empty if there was none.
        health_check: Result of the health check.
        endpoint: Endpoint that serves the version. Empty if there is none.
    """

    registry: str
    model_name: str
    version: str
    version_dir: str
    alias: str
    previous: str
    health_check: HealthCheckResult
    endpoint: str = ""
