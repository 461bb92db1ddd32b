"""Google Cloud's other APIs over HTTP: a read-only state that tests change directly.

`FakeVertex` uses it for requests below `/HOST/…`, where HOST is the host of an API; its `environment` sets
TPU_PIPELINES_GOOGLE_ENDPOINT for the command line. Requests cannot change the state.
"""

import dataclasses
import json
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

PROJECT_NUMBER = "123456789012"
ME = "me@example.com"
TRAINER = "trainer@my-project.iam.gserviceaccount.com"
COMPUTE = f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"
NETWORK = "projects/12345/global/networks/my-network"
ATTACHMENT = "projects/my-project/regions/us-central1/networkAttachments/my-attachment"
KEY = "projects/my-project/locations/us-central1/keyRings/my-ring/cryptoKeys/my-key"
AGENT = f"serviceAccount:service-{PROJECT_NUMBER}@gcp-sa-aiplatform.iam.gserviceaccount.com"
# Of each role those permissions that this project asks for: https://cloud.google.com/iam/docs/roles-permissions.
_VERTEX = {
    "metadataStores": ["get"],
    "pipelineJobs": ["create", "get", "list"],
    "customJobs": ["create", "get"],
    "models": ["upload"],
    "endpoints": ["create", "deploy"],
}
ROLES = {
    "roles/aiplatform.user": [f"aiplatform.{kind}.{verb}" for kind, verbs in _VERTEX.items() for verb in verbs],
    "roles/storage.objectAdmin": [f"storage.objects.{one}" for one in ("get", "list", "create", "delete")],
    "roles/storage.objectViewer": ["storage.objects.get", "storage.objects.list"],
    "roles/dataflow.developer": [
        *(f"dataflow.jobs.{verb}" for verb in ("create", "get", "list", "cancel")),
        "dataflow.messages.list",
    ],
    "roles/dataflow.worker": [f"dataflow.workItems.{verb}" for verb in ("lease", "update", "sendMessage")],
    "roles/iam.serviceAccountUser": ["iam.serviceAccounts.actAs"],
    "roles/artifactregistry.reader": ["artifactregistry.repositories.downloadArtifacts"],
    "roles/cloudkms.cryptoKeyEncrypterDecrypter": [
        f"cloudkms.cryptoKeyVersions.{one}" for one in ("useToEncrypt", "useToDecrypt")
    ],
    "roles/viewer": [],
}
_QUOTAS = ("V2TPUs", "V3TPUs", "V2PodTPUs", "V3PodTPUs", "V5ETPU", "V6ETPU", "7XTPU", "NvidiaL4Gpus")


def bind(role: str, *members: str) -> dict[str, Any]:
    """Return a policy with one binding."""
    return {"bindings": [{"role": role, "members": [*members]}]}


@dataclasses.dataclass
class Bucket:
    """A bucket: its location, the caller's permissions, and its policy."""

    location: str = "US-CENTRAL1"
    location_type: str = "region"
    allowed: list[str] = dataclasses.field(default_factory=lambda: [*ROLES["roles/storage.objectAdmin"]])
    policy: dict[str, Any] = dataclasses.field(
        default_factory=lambda: bind("roles/storage.objectAdmin", f"serviceAccount:{TRAINER}")
    )


@dataclasses.dataclass
class Account:
    """A service account: the caller's permissions on it, and its policy."""

    disabled: bool = False
    allowed: list[str] = dataclasses.field(default_factory=lambda: ["iam.serviceAccounts.actAs"])
    policy: dict[str, Any] = dataclasses.field(
        default_factory=lambda: bind("roles/iam.serviceAccountUser", f"serviceAccount:{TRAINER}")
    )


class GoogleCloud:
    """A project in which nothing is missing.

    Attributes:
        forbidden: Patterns of targets that the caller may not request.
        calls: Every request that arrived: verb and target.
    """

    def __init__(self) -> None:
        self.email = ME
        self.project: dict[str, Any] = {"name": f"projects/{PROJECT_NUMBER}", "state": "ACTIVE"}
        self.policy = bind("roles/aiplatform.user", f"user:{ME}", f"serviceAccount:{TRAINER}")
        self.allowed = list(ROLES["roles/aiplatform.user"])
        self.services = {
            f"{one}.googleapis.com" for one in ("aiplatform", "storage", "artifactregistry", "compute", "iam")
        }
        self.buckets = {"my-bucket": Bucket()}
        self.accounts = {TRAINER: Account(), COMPUTE: Account()}
        self.networks: dict[str, Any] = {
            NETWORK: {"peerings": [{"name": "servicenetworking-googleapis-com", "state": "ACTIVE"}]},
            ATTACHMENT: {},
        }
        self.keys = {KEY: {"primary": {"state": "ENABLED"}}}
        self.key_policy = bind("roles/cloudkms.cryptoKeyEncrypterDecrypter", AGENT)
        self.repositories = {"images": bind("roles/artifactregistry.reader")}
        self.images = {"my-project/images/steps": ["linux/amd64"], "my-project/images/serving": ["linux/amd64"]}
        # Rule: pods of v2 and v3 have separate quotas (https://cloud.google.com/vertex-ai/docs/quotas: TPU V3 pod cores
        # for training; google-research/t5x README.md)
        self.quotas = {
            f"CustomModelTraining{spot}{one}PerProjectPerRegion": {"us-central1": 64, "us-east1": 64}
            for one in _QUOTAS
            for spot in ("", "Preemptible")
        }
        self.gpu_quotas = [{"metric": "NVIDIA_L4_GPUS", "limit": 4, "usage": 1}]
        self.python = "3.13.14"
        self.node_pools: list[dict[str, Any]] = []
        self.cluster: dict[str, Any] = {}
        self.forbidden: list[str] = []
        self.calls: list[tuple[str, str]] = []

    def answer(self, verb: str, target: str, body: bytes) -> tuple[int, dict[str, Any]] | None:
        """Return the status and JSON of a response; None if the request is for another server."""
        path, _, query = urllib.parse.unquote(target).partition("?")
        found = re.fullmatch(r"/([\w.-]+\.(?:googleapis\.com|pkg\.dev))/(.*)", path)
        if not found:
            return None
        self.calls.append((verb, target))
        if any(re.search(pattern, path) for pattern in self.forbidden):
            return _error(403, "PERMISSION_DENIED", "Permission denied, or it may not exist.")
        host, rest = found.groups()
        asked = dict(urllib.parse.parse_qs(query).items())
        asked.update(json.loads(body or b"{}") if verb == "POST" else {})
        name = "registry" if host.endswith("-docker.pkg.dev") else host.partition(".")[0]
        for pattern, answer in self._routes(name):
            if match := re.fullmatch(pattern, rest):
                content = _as_version_asked(answer(*match.groups(), asked), asked)
                return (200, content) if content is not None else _error(404, "NOT_FOUND", f"{rest} is not found.")
        return _error(404, "NOT_FOUND", f"No method at {verb} {path}.")

    def _routes(self, name: str) -> list[tuple[str, Callable[..., dict[str, Any] | None]]]:
        permitted: Callable[[list[str], Any], dict[str, Any]] = lambda allowed, asked: {  # noqa: E731
            "permissions": [one for one in asked["permissions"] if one in allowed]
        }
        buckets = self.buckets
        routes: dict[str, list[tuple[str, Callable[..., dict[str, Any] | None]]]] = {
            "openidconnect": [("v1/userinfo", lambda asked: {"email": self.email})],
            "cloudresourcemanager": [
                ("v3/projects/my-project:testIamPermissions", lambda asked: permitted(self.allowed, asked)),
                ("v3/projects/my-project:getIamPolicy", lambda asked: self.policy),
                ("v3/projects/my-project", lambda asked: self.project),
            ],
            "serviceusage": [("v1/projects/my-project/services:batchGet", self._services)],
            "iam": [
                (r"v1/(roles/[\w.]+)", lambda role, asked: ROLES.get(role) and {"includedPermissions": ROLES[role]}),
                (r"v1/projects/([\w-]+)/serviceAccounts/([^:]+)(:\w+)?", self._account),
            ],
            "storage": [
                (r"storage/v1/b/([\w-]+)", lambda name, asked: buckets.get(name) and _bucket(name, buckets[name])),
                (
                    r"storage/v1/b/([\w-]+)/iam/testPermissions",
                    lambda name, asked: buckets.get(name) and permitted(buckets[name].allowed, asked),
                ),
                (
                    r"storage/v1/b/([\w-]+)/iam",
                    lambda name, asked: buckets.get(name) and {**buckets[name].policy, "etag": "CAE=", "version": 3},
                ),
            ],
            "artifactregistry": [
                (
                    r"v1/projects/[\w-]+/locations/[\w-]+/repositories/([\w-]+):getIamPolicy",
                    lambda name, asked: self.repositories.get(name),
                )
            ],
            "registry": [
                (r"v2/([\w/-]+)/manifests/(.+)", self._manifest),
                (r"v2/([\w/-]+)/blobs/(.+)", self._config),
            ],
            "cloudquotas": [
                (
                    r"v1/projects/my-project/locations/global/services/aiplatform.googleapis.com/quotaInfos/(\w+)",
                    self._quota,
                )
            ],
            "compute": [
                # Rule: a region reports the quotas of its GPUs, with separate quotas for spot (compute.regions.get:
                # quotas)
                (r"compute/v1/projects/[\w-]+/regions/[\w-]+", lambda asked: {"quotas": self.gpu_quotas}),
                (r"compute/v1/(.+)", lambda name, asked: self.networks.get(name)),
            ],
            "cloudkms": [
                (r"v1/(.+):getIamPolicy", lambda name, asked: self.key_policy if name in self.keys else None),
                (r"v1/(.+)", lambda name, asked: self.keys.get(name)),
            ],
            "container": [
                (
                    r"v1/projects/[\w-]+/locations/[\w-]+/clusters/[\w-]+",
                    lambda asked: {"nodePools": self.node_pools, **self.cluster},
                )
            ],
        }
        return routes[name]

    def _services(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {
            "services": [
                {
                    "name": f"projects/{PROJECT_NUMBER}/services/{name.rpartition('/')[2]}",
                    "state": "ENABLED" if name.rpartition("/")[2] in self.services else "DISABLED",
                }
                for name in asked["names"]
            ]
        }

    def _account(self, project: str, email: str, method: str | None, asked: dict[str, Any]) -> dict[str, Any] | None:
        if email not in self.accounts or (email == TRAINER and project != "my-project"):
            return None
        account = self.accounts[email]
        if method == ":getIamPolicy":
            return account.policy
        if method == ":testIamPermissions":
            return {"permissions": [one for one in asked["permissions"] if one in account.allowed]}
        return {"email": email, **({"disabled": True} if account.disabled else {})}

    def _manifest(self, image: str, reference: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Return the manifest of an image with one platform, or else a list of manifests."""
        platforms = self.images.get(image)
        if platforms is None:
            return None
        if len(platforms) == 1:
            return {"schemaVersion": 2, "config": {"digest": f"sha256:{'c' * 64}"}}
        each = [dict(zip(("os", "architecture"), one.split("/"), strict=True)) for one in platforms]
        return {"schemaVersion": 2, "manifests": [{"platform": one} for one in each]}

    def _config(self, image: str, digest: str, asked: dict[str, Any]) -> dict[str, Any]:
        system, architecture = self.images[image][0].split("/")
        # Rule: Docker's official images set PYTHON_VERSION, and images built on them keep it
        # (https://github.com/docker-library/python/blob/master/Dockerfile-linux.template)
        variables = [f"PYTHON_VERSION={self.python}"] if self.python else []
        return {"os": system, "architecture": architecture, "config": {"Env": ["PATH=/usr/bin", *variables]}}

    def _quota(self, quota: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Return a quota in the API's form: int64 as text, 0 left out, a value without dimensions for other regions."""
        if quota not in self.quotas:
            return None
        infos = [
            {
                "dimensions": {"region": region},
                "details": {"value": str(value)} if value else {},
                "applicableLocations": [region],
            }
            for region, value in self.quotas[quota].items()
        ]
        return {"quotaId": quota, "dimensionsInfos": [*infos, {"details": {}, "applicableLocations": ["europe-west4"]}]}


def _as_version_asked(content: dict[str, Any] | None, asked: dict[str, Any]) -> dict[str, Any] | None:
    """Return a policy in the requested version; other responses unchanged."""
    names = ("options.requestedPolicyVersion", "optionsRequestedPolicyVersion")
    versions = [*asked.get("options", {}).values(), *(asked.get(name, [""])[0] for name in names)]
    if not content or "bindings" not in content or "3" in map(str, versions):
        return content
    # Rule: a policy requested with a version below 3 hides conditions, and adds a hash to the names of their roles
    # (https://cloud.google.com/iam/docs/troubleshooting-withcond)
    hidden = [
        {"role": one["role"] + "_withcond_2b17cc25d2cd9e2c54d8" * ("condition" in one), "members": one["members"]}
        for one in content["bindings"]
    ]
    return {**content, "bindings": hidden}


def _bucket(name: str, bucket: Bucket) -> dict[str, Any]:
    return {"name": name, "location": bucket.location, "locationType": bucket.location_type}


def _error(code: int, status: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"error": {"code": code, "message": message, "status": status}}
