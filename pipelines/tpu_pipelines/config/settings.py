"""Settings of platforms: project, region, bucket, accounts. Imports and compilation work without them."""

import dataclasses
import functools
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.base.container_images import Images, load_images
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.terminal import hide_credentials
from tpu_components.core.base.typed_values import Mistakes, read_by_hand
from tpu_components.core.files.location import Location
from tpu_components.core.files.resource_names import (
    COMPUTE_NAME,
    ENCRYPTION_KEY,
    GOOGLE_BUCKET,
    PROJECT,
    PROJECT_OR_NUMBER,
    REGION,
    S3_BUCKET,
    SERVICE_ACCOUNT,
)

_PREFIX = "TPU_PIPELINES_"
MAIL = "mailto:"
_LABEL = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"  # Labels that both Google Cloud and Kubernetes accept.
# Names of Kubernetes objects: https://kubernetes.io/docs/concepts/overview/working-with-objects/names
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DNS_SUBDOMAIN = r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
# KFP names the volume of a pod after the claim or secret: kubeflow/pipelines backend/src/v2/driver/k8s.go,
# makeVolumeMountPatch and extendPodSpecPatch. Paths must not contain ":": kubernetes/api core/v1/types.go, VolumeMount.
_MOUNT = rf"{_DNS_LABEL}=/[^\s:]*"
_MOUNT_HINT = (
    " Kubeflow uses the volume's name, so it must have at most 63 lower-case letters, digits and '-'. The path must "
    "be absolute, without ':' and spaces."
)
_LABEL_HINT = " Keys and values have at most 63 lower-case letters, digits, '-' and '_'. A key begins with a letter."
# Volumes and folders of KFP's and Argo's own in the pod of each step: kubeflow/pipelines at 7b70c7b,
# backend/src/v2/compiler/argocompiler/container.go, backend/src/v2/component/constants.go; argoproj/argo-workflows at
# f016ad8, workflow/controller/workflowpod.go. A patch of the pod would replace them silently.
_KFP_VOLUMES = (
    *("kfp-launcher", "kfp-workspace", "gcs-scratch", "s3-scratch", "minio-scratch", "dot-local-scratch"),
    *("dot-cache-scratch", "dot-config-scratch", "ca-bundle", "custom-ca"),
    *("var-run-argo", "tmp-dir-argo", "input-artifacts", "argo-env-config", "argoexec-bin"),
)
_KFP_FOLDERS = (
    *("/", "/gcs", "/s3", "/minio", "/.local", "/.cache", "/.config", "/kfp-launcher", "/kfp-workspace"),
    *("/var/run/argo", "/var/run/secrets/kubernetes.io/serviceaccount"),
)


def _text(example: str, pattern: str, hint: str = "") -> Any:
    return dataclasses.field(default="", metadata={"example": example, "pattern": pattern, "hint": hint})


def _pairs(example: str, pattern: str, hint: str = "") -> Any:
    return dataclasses.field(default_factory=dict, metadata={"example": example, "pattern": pattern, "hint": hint})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of platforms.

    `load_settings` reads each setting from an environment variable, for example `project` from TPU_PIPELINES_PROJECT,
    or from a YAML file. An empty value means that the setting is not set.

    Attributes:
        project: Google Cloud project.
        region: Region of pipelines, and of jobs without a region in `machine`.
        bucket: Bucket, or folder in a bucket, for the outputs of pipelines: `gs://BUCKET/…` or, on Kubeflow,
            `s3://BUCKET/…`.
        vertex_endpoint: API endpoint of Vertex AI, if it differs from the regional endpoint, for example with Private
            Service Connect.
        google_endpoint: URL of a gateway to Google Cloud's other APIs, for `doctor`. `{host}` is replaced by the host
            of each API.
        service_account: Service account with which a job runs.
        network: VPC network with which a job is peered.
        network_attachment: Network attachment (Private Service Connect interface) that connects a job on Vertex AI to a
            VPC network. Use it instead of TPU_PIPELINES_NETWORK.
        encryption_key: Customer-managed key (CMEK) that encrypts jobs, models and endpoints on Vertex AI.
        tensorboard: TensorBoard instance on Vertex AI that shows the training curves during the run. It requires
            TPU_PIPELINES_SERVICE_ACCOUNT.
        experiment: Experiment on Vertex AI that compares the parameters and metrics of submitted runs. It is created if
            it is missing. Scheduled runs are not added.
        labels: Labels of every job and pod: `key=value,key=value`.
        environment: Environment variables of the training step: `NAME=value,NAME=value`. The compiled file contains
            them, so do not put secrets here.
        kfp_host: URL of a Kubeflow Pipelines server.
        kfp_namespace: Kubernetes namespace of the runs, on a server with several users.
        secrets: Kubernetes secrets that the training step mounts, with mount paths: `SECRET=/path,SECRET=/path`.
        s3_secret: Kubernetes secret with which the pods of all steps that use s3:// sign in. Its keys are
            AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and if needed AWS_SESSION_TOKEN, AWS_ENDPOINT_URL_S3 and
            AWS_DEFAULT_REGION.
        kueue_queue: Kueue's local queue that admits the pod of the training step, on Kubeflow.
        provisioning: Provisioning mode of the node of the training step on GKE: `flex-start`, or empty for the
            cluster's default.
        volumes: Persistent volume claims that the training step mounts, with mount paths: `CLAIM=/path,CLAIM=/path`.
            The first claim stores the checkpoints. Without a claim, a restarted pod trains from the start.
        notify: Receiver of notifications at the end of a run. If it is the URL of a webhook, or a file on gs:// or
            s3:// that contains such a URL, the webhook gets a JSON message for Slack or Google Chat if a run does not
            succeed. If it is `mailto:` and addresses, Vertex AI sends an e-mail for every run. The compiled file
            contains the URL of a webhook, so use a file if the URL is secret.
        images: Container images. They can be set only by environment variables.

    Raises:
        InputError: If a value has the wrong form.
    """

    project: str = _text("my-project", PROJECT)
    region: str = _text("us-west1", REGION, " Set a region, not a zone: us-west1-a is a zone in the region us-west1.")
    bucket: str = _text(
        "gs://my-bucket", rf"(gs://{GOOGLE_BUCKET}|s3://{S3_BUCKET}|(?!gs:|s3:)[a-z0-9]+://[^/\s]+)(/\S*)?"
    )
    vertex_endpoint: str = _text("https://us-west1-my-endpoint.p.googleapis.com", r"https?://[^/\s]+")
    google_endpoint: str = _text("https://gateway.example.com/{host}", r"https?://[^/\s]*\S*\{host\}\S*")
    service_account: str = _text("trainer@my-project.iam.gserviceaccount.com", SERVICE_ACCOUNT)
    network: str = _text(
        "projects/12345/global/networks/my-network",
        rf"projects/[0-9]+/global/networks/{COMPUTE_NAME}",
        " The network needs the number of the project: gcloud projects describe PROJECT "
        "--format='value(projectNumber)'.",
    )
    network_attachment: str = _text(
        "projects/my-project/regions/us-west1/networkAttachments/my-attachment",
        rf"projects/{PROJECT_OR_NUMBER}/regions/{REGION}/networkAttachments/{COMPUTE_NAME}",
    )
    encryption_key: str = _text(
        "projects/my-project/locations/us-west1/keyRings/my-ring/cryptoKeys/my-key",
        ENCRYPTION_KEY,
    )
    tensorboard: str = _text(
        "projects/12345/locations/us-west1/tensorboards/678",
        rf"projects/{PROJECT_OR_NUMBER}/locations/{REGION}/tensorboards/\d+",
    )
    experiment: str = _text("digits-models", r"[a-z0-9][a-z0-9-]{2,126}[a-z0-9]")
    labels: Mapping[str, str] = _pairs("team=vision,stage=test", rf"(?=[a-z]){_LABEL}=({_LABEL})?", _LABEL_HINT)
    environment: Mapping[str, str] = _pairs("XLA_FLAGS=--xla_dump_to=/tmp/xla", r"[A-Za-z_][A-Za-z0-9_]*=.*")
    kfp_host: str = _text("https://kubeflow.example.com/pipeline", r"https?://[^/\s]\S*")
    kfp_namespace: str = _text("team-vision", _DNS_LABEL)
    s3_secret: str = _text("s3-credentials", _DNS_SUBDOMAIN)
    kueue_queue: str = _text("tpu-queue", rf"(?=.{{1,63}}$){_DNS_SUBDOMAIN}")  # The value of a label.
    provisioning: str = _text("flex-start", "flex-start")
    secrets: Mapping[str, str] = _pairs("storage-key=/secrets/storage", _MOUNT, _MOUNT_HINT)
    volumes: Mapping[str, str] = _pairs("checkpoints=/mnt/checkpoints", _MOUNT, _MOUNT_HINT)
    notify: str = _text(
        "gs://my-bucket/hook.txt",
        rf"https?://[^/\s@]+(/\S*)?|gs://{GOOGLE_BUCKET}/\S+|s3://{S3_BUCKET}/\S+|{MAIL}[^@\s,]+@[^@\s,]+(,[^@\s,]+@[^@\s,]+)*",
    )
    images: Images = dataclasses.field(default_factory=Images)

    def __post_init__(self) -> None:
        mistakes = Mistakes()
        for field in fields_of_one_variable():
            value = getattr(self, field.name)
            texts = [f"{key}={item}" for key, item in value.items()] if isinstance(value, Mapping) else [value]
            for text in texts:
                if text and not re.fullmatch(field.metadata["pattern"], text):
                    # The URL of a webhook is a secret, even if part of it is missing.
                    is_secret = field.name == "notify"
                    received = "another value, which may be secret" if is_secret else repr(hide_credentials(text))
                    example = field.metadata["example"]
                    if isinstance(value, Mapping):
                        example += f", or {dict(pair.split('=', 1) for pair in example.split(','))} in Python and YAML"
                    mistakes.add(
                        f"Cannot use the {setting(field.name)}: expected a value such as {example}. Received: "
                        f"{received}."
                        f"{field.metadata.get('hint', '')}"
                    )
        for message in self._check_mounts():
            mistakes.add(message)
        mistakes.raise_all()

    def _check_mounts(self) -> Iterator[str]:
        """Yield messages about volumes and secrets that a pod cannot mount, or cannot mount together."""
        mounts = [("volumes", *pair) for pair in self.volumes.items()]
        mounts += [("secrets", *pair) for pair in self.secrets.items()]
        seen: dict[str, str] = {}  # Mounts by name and by path; a path begins with "/".
        for setting, name, path in mounts:
            folder = folder_of(path)
            mount = f"{variable(setting)}={name}={path}"
            if name in _KFP_VOLUMES or folder in _KFP_FOLDERS:
                kept = name if name in _KFP_VOLUMES else folder
                yield f"Cannot mount {mount}: Kubeflow uses {kept} in every pod. Choose another name or path."
            for key, what in ((name, "name"), (folder, "path")):
                if other := seen.get(key):
                    yield (
                        f"Cannot mount both {mount} and {other}: the volumes of a pod must differ in {what}. "
                        f"{'Rename the claim or the secret' if what == 'name' else 'Choose another path'}."
                    )
                seen[key] = mount

    @functools.cached_property
    def bucket_location(self) -> Location:
        """The setting `bucket` as a location."""
        return Location(self.bucket)

    def vertex_registry(self) -> str:
        """Return the path of Vertex AI's registry in this project and region.

        Raises:
            InputError: If project or region is missing.
        """
        self.require("project", "region")
        return f"projects/{self.project}/locations/{self.region}/models"

    def require(self, *names: str) -> None:
        """Check that the settings with these names are set.

        Raises:
            InputError: If settings are missing. The message lists all of them and says how to set them.
        """
        if missing := [
            field for field in dataclasses.fields(self) if field.name in names and not getattr(self, field.name)
        ]:
            exports = " ".join(f"{variable(field.name)}={field.metadata['example']}" for field in missing)
            raise InputError(
                f"Missing settings: {', '.join(field.name for field in missing)}. Set them in the environment, as in "
                f"`export {exports}`, or in the YAML file of settings."
            )


def fields_of_one_variable() -> list[dataclasses.Field[Any]]:
    """Return the fields of Settings that are set by one environment variable each: all fields except the images."""
    return [field for field in dataclasses.fields(Settings) if field.name != "images"]


def folder_of(path: str) -> str:
    """Normalize a mount path: remove doubled and trailing slashes, and resolve `.` and `..`.

    Example:
        >>> folder_of("//mnt/data/"), folder_of("/")
        ('/mnt/data', '/')
    """
    return posixpath.normpath(f"/{path.lstrip('/')}")


def variable(name: str) -> str:
    """Return the name of the environment variable for a setting.

    Example:
        >>> variable("kfp_host")
        'TPU_PIPELINES_KFP_HOST'
    """
    return _PREFIX + name.upper()


def setting(name: str) -> str:
    """Return the text that names a setting in messages: the field of `Settings`, and its environment variable.

    Example:
        >>> setting("volumes")
        'setting volumes (TPU_PIPELINES_VOLUMES)'
    """
    return f"setting {name} ({variable(name)})"


def load_settings(environment: Mapping[str, str], file: Path | None = None) -> Settings:
    """Load settings from environment variables and from a YAML file. Environment variables take precedence.

    Args:
        environment: Environment variables. Settings are `TPU_PIPELINES_…`. Mappings such as the labels have the form
            `key=value,key=value`.
        file: YAML file whose keys are fields of `Settings`, for example `project`, or None for no file.

    Raises:
        InputError: If the file cannot be read, or a name or value is wrong.

    Example:
        >>> load_settings({"TPU_PIPELINES_LABELS": "team=vision,stage=test"}).labels
        {'team': 'vision', 'stage': 'test'}
    """
    values: dict[str, Any] = {}
    if file:
        from tpu_pipelines.config.yaml_files import read_mapping  # Late: the command line imports this module.

        values = read_mapping(file, "the settings", "names and values")
    if "image" in values:
        raise InputError(
            f"Cannot use {file}: the key image is not supported. Remove it, and set the environment variable "
            "TPU_PIPELINES_IMAGE."
        )
    for field in fields_of_one_variable():
        if text := environment.get(variable(field.name), ""):
            values[field.name] = _split(field.name, text) if field.default_factory is dict else text
    return read_by_hand(values, Settings, "settings" if file else "", fixed={"images": load_images(environment)})


def _split(name: str, text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(separator for _, separator, _ in pairs):
        raise InputError(
            f"Cannot use {variable(name)}: expected key=value,key=value. Received: {text!r}. Put a value that "
            "contains a comma into a YAML file of settings."
        )
    names = [key.strip() for key, _, _ in pairs]
    if repeated := [key for key in names if names.count(key) > 1]:
        raise InputError(
            f"Cannot use {variable(name)}: {repeated[0]!r} appears twice. Received: {text!r}. Remove one of them."
        )
    return {key.strip(): value.strip() for key, _, value in pairs}
