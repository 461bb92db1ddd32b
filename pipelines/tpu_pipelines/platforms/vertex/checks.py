"""Checks that Google Cloud has everything that a run on Vertex AI needs.

The API reference names the permission for each call: serviceusage.services.get, resourcemanager.projects.getIamPolicy,
iam.serviceAccounts.get, iam.serviceAccounts.getIamPolicy, storage.buckets.get, storage.buckets.getIamPolicy,
artifactregistry.repositories.getIamPolicy, compute.networks.get, cloudkms.cryptoKeys.get, cloudquotas.quotas.get. If
the user lacks a permission, the state of that finding is `unknown`, and the other checks continue.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import MissingError
from tpu_components.core.base.states import Status
from tpu_components.core.files.location import Scheme
from tpu_components.core.files.vertex_clients import VertexService
from tpu_components.core.machines.machine_spec import MachineSpec
from tpu_components.core.models.lookup import bundle_of
from tpu_components.core.sources.params import BEAM
from tpu_components.core.work.beam.options import DATAFLOW
from tpu_components.deploy_model.endpoint_access import check_access
from tpu_components.deploy_model.params import VERTEX, DeployParams
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.findings import (
    CannotAskError,
    Check,
    CheckCost,
    CommandOutput,
    Finding,
    LackError,
    ShellCommand,
    lacking,
)
from tpu_pipelines.platforms.google_apis import (
    IAM,
    RESOURCES,
    STORAGE,
    GoogleApis,
    Permissions,
    Resource,
    Role,
    create_bucket,
    judge_quota,
)
from tpu_pipelines.platforms.images import look_at_image, repository_of

_VERTEX_AI, _CLOUD_QUOTAS = "aiplatform.googleapis.com", "cloudquotas.googleapis.com"
_REGISTRY, _COMPUTE = "artifactregistry.googleapis.com", "compute.googleapis.com"
_KEYS = "cloudkms.googleapis.com"
_DATAFLOW = "dataflow.googleapis.com"
# Of each role, the permissions that a run needs: https://cloud.google.com/iam/docs/roles-permissions.
_SUBMITTER = Role(
    "roles/aiplatform.user",
    ("aiplatform.pipelineJobs.create", "aiplatform.pipelineJobs.get", "aiplatform.pipelineJobs.list"),
)
# The account that runs pipelines: https://cloud.google.com/vertex-ai/docs/tabular-data/tabular-workflows/service-accounts
# names Vertex AI User, Storage Object Admin and Service Account User.
_RUNNER = Role(
    "roles/aiplatform.user",
    ("aiplatform.metadataStores.get", "aiplatform.customJobs.create", "aiplatform.customJobs.get"),
)
_DEPLOYER = Role(
    "roles/aiplatform.user",
    (*_RUNNER.needed, "aiplatform.models.upload", "aiplatform.endpoints.create", "aiplatform.endpoints.deploy"),
)
# The account that starts and follows the Dataflow job, and the account of its workers:
# https://cloud.google.com/dataflow/docs/concepts/access-control.
_STARTER = Role(
    "roles/dataflow.developer",
    (*(f"dataflow.jobs.{verb}" for verb in ("create", "get", "cancel")), "dataflow.messages.list"),
)
_WORKER = Role(
    "roles/dataflow.worker", tuple(f"dataflow.workItems.{verb}" for verb in ("lease", "update", "sendMessage"))
)
_READER = Role("roles/storage.objectViewer", ("storage.objects.get", "storage.objects.list"))
_WRITER = Role(  # Overwriting needs `create` and `delete`.
    "roles/storage.objectAdmin", (*_READER.needed, "storage.objects.create", "storage.objects.delete")
)
# Needed to create a job that runs as a service account: custom_job.proto, service_account.
_ACTING = Role("roles/iam.serviceAccountUser", ("iam.serviceAccounts.actAs",))
_ENCRYPTER = Role(
    "roles/cloudkms.cryptoKeyEncrypterDecrypter",
    ("cloudkms.cryptoKeyVersions.useToEncrypt", "cloudkms.cryptoKeyVersions.useToDecrypt"),
)
_PULLER = Role("roles/artifactregistry.reader", ("artifactregistry.repositories.downloadArtifacts",))
_AGENT = Role("roles/aiplatform.serviceAgent", ())


class VertexChecks:
    """Checks that Vertex AI has everything that a run of the configuration needs.

    Args:
        config: Configuration of the run.
        settings: Settings of the platform, with project, region and bucket.
        apis: Client of Google Cloud's APIs.
    """

    def __init__(self, config: Config, settings: Settings, apis: GoogleApis) -> None:
        self._config = config
        self._settings = settings
        self._apis = apis
        self._machines = [entry.in_region(settings.region) for entry in config.machines]
        self._deploy = config.deploy or DeployParams("", config.name)
        self._is_deployed = self._deploy.is_on_vertex
        self._serving_image = (self._deploy.serving_image or settings.images.serving) if self._is_deployed else ""
        self._beam_image = settings.images.beam if config.data.engine == BEAM else ""
        runner = config.data.beam_options.get("runner", DATAFLOW)
        self._has_dataflow = config.data.engine == BEAM and runner == DATAFLOW
        self._permissions = Permissions(apis)
        self._who = ""  # The signed-in user as an IAM member; empty if unknown.

    def checks(self) -> list[Check]:
        """Return all checks in the order of the report. Each check needs the sign-in."""
        # https://cloud.google.com/vertex-ai/docs/training/configure-compute#tpu-7x: "TPU7x requires Python 3.12+."
        python = "3.12" if any(machine.slice.generation.name == "7x" for machine in self._machines) else ""
        settings, deploy, is_deployed = self._settings, self._deploy, self._is_deployed
        worker = self._config.data.beam_options.get("service_account_email", "")
        buckets = {settings.bucket_location.bucket: _WRITER}
        data = self._config.data_location
        if data.scheme is Scheme.GOOGLE:
            buckets.setdefault(data.bucket, _READER)
        own_agent = "" if settings.service_account else "training runs with Vertex AI's service agent"
        checks = [
            Check("project", self._project),
            Check("APIs", self._services),
            self._yours("your role", _SUBMITTER, self._project_resource, "create and read pipeline jobs in"),
            Check("Vertex AI", self._region),
            Check("bucket", self._bucket, CheckCost.REQUEST, commands=self._create_bucket),
            *self._of_image("image", settings.images.training, "", CheckCost.REQUEST, python),
            Check("service account", self._service_account, CheckCost.REQUEST, commands=self._create_account),
            self._yours("acting as it", _ACTING, self._account_resource, "act as", CheckCost.REQUEST),
            self._granted("its roles", _DEPLOYER if is_deployed else _RUNNER, self._member),
            *(
                self._granted(
                    f"its buckets: {name}", role, self._member, functools.partial(self._bucket_resource, name)
                )
                for name, role in buckets.items()
            ),
            # The pipeline's account creates the training job, which runs as the same account.
            self._granted("its acting", _ACTING, self._member, self._account_resource, own_agent),
            *(
                Check(
                    f"quota {entry.name}",
                    functools.partial(self._quota, entry),
                    commands=functools.partial(self._request_quota, entry),
                )
                for entry in dict.fromkeys(self._machines)
            ),
            Check("network", self._network, when=settings.network),
            Check("attachment", self._attachment, when=settings.network_attachment),
            Check(
                "key",
                self._key,
                commands=lambda: (self._key_resource().bind(self._agent(), _ENCRYPTER),),
                when=settings.encryption_key,
            ),
            Check("tensorboard", self._tensorboard, when=settings.tensorboard),
            *self._of_image("steps' image", settings.images.other_steps, "STEPS_", CheckCost.REQUEST),
            *self._of_image("Beam image", self._beam_image, "BEAM_"),
            self._granted("its Dataflow", _STARTER, self._member, when=self._has_dataflow),
            self._granted(
                "Dataflow's workers", _WORKER, functools.partial(self._member, worker), when=self._has_dataflow
            ),
            *self._of_image("serving image", self._serving_image, "SERVING_"),
            Check("registry", self._models, when=is_deployed),
            Check("endpoint", self._endpoint, when=is_deployed and deploy.endpoint),
        ]
        needing = (dataclasses.replace(check, needs="sign-in") for check in checks)
        return [Check("sign-in", self._sign_in, CheckCost.REQUEST), *needing]

    # Sign-in and project

    def _sign_in(self) -> str:
        with lacking("", "gcloud auth application-default login", InputError):
            self._apis.refresh()
        member = self._apis.principal()
        self._who = member
        return (
            member
            or f"the sign-in is valid, but it does not name its account ({type(self._apis.credentials).__name__})"
        )

    @functools.cached_property
    def _found_project(self) -> dict[str, Any]:
        return self._apis.get(RESOURCES, f"v3/projects/{self._settings.project}")

    @property
    def _number(self) -> str:
        return str(self._found_project["name"]).partition("/")[2]

    def _project(self) -> str:
        project = self._settings.project
        with lacking(f"there is no {project}", "check TPU_PIPELINES_PROJECT"):
            state = self._found_project.get("state", "ACTIVE")
        if state != "ACTIVE":
            raise LackError(
                f"the project {project} has the state {state}, expected ACTIVE",
                str(ShellCommand(("gcloud", "projects", "undelete", project))),
            )
        return f"{project}, number {self._number}"

    def _services(self) -> Iterator[Finding]:
        """Check that the services are enabled: google/api/serviceusage/v1/serviceusage.proto, BatchGetServices."""
        project = self._settings.project
        settings = self._settings
        images = (settings.images.training, settings.images.other_steps, self._beam_image, self._serving_image)
        used = {
            _VERTEX_AI: True,
            STORAGE: True,
            _REGISTRY: any(map(repository_of, filter(None, images))),
            # Compute Engine's default account runs pipelines that name none.
            _COMPUTE: not settings.service_account or bool(settings.network),
            _DATAFLOW: self._has_dataflow,
        }
        needed = [name for name, is_used in used.items() if is_used]
        names = [f"projects/{project}/services/{name}" for name in needed]
        answer = self._apis.get("serviceusage.googleapis.com", f"v1/projects/{project}/services:batchGet", names=names)
        states = {entry["name"].rpartition("/")[2]: entry.get("state") for entry in answer.get("services", ())}
        disabled = [name for name in needed if states.get(name) != "ENABLED"]
        if not disabled:
            yield Finding("APIs", Status.OK, ", ".join(name.partition(".")[0] for name in needed))
        for name in disabled:
            commands = (self._enable(name), *(self._create_agent() if name == _VERTEX_AI else ()))
            yield Finding("APIs", Status.ERROR, f"{name} is not enabled", commands[0].text, commands)

    def _enable(self, name: str) -> ShellCommand:
        return ShellCommand(("gcloud", "services", "enable", name, f"--project={self._settings.project}"))

    def _create_agent(self) -> tuple[ShellCommand, ...]:
        """Return the commands that create Vertex AI's service agent and grant its role.

        A service agent that is created by a command gets no role automatically:
        https://cloud.google.com/iam/docs/create-service-agents. The first commands enable APIs that the checks call.
        """
        project = self._settings.project
        identity = ("gcloud", "beta", "services", "identity", "create")
        return (
            *map(self._enable, (RESOURCES, IAM)),
            ShellCommand((*identity, f"--service={_VERTEX_AI}", f"--project={project}")),
            self._project_resource().bind(self._agent(), _AGENT),
        )

    def _region(self) -> str:
        service = self._vertex(self._settings.project, self._settings.region)
        service.call("PipelineService", "list_pipeline_jobs", {"parent": service.parent, "page_size": 1})
        return f"responds in {service.region}"

    def _vertex(self, project: str, region: str) -> VertexService:
        return VertexService(project, region, self._settings.vertex_endpoint, self._apis.credentials)

    # Bucket

    def _bucket(self) -> Iterator[Finding]:
        resource = self._bucket_resource(self._settings.bucket_location.bucket)
        region = self._settings.region
        name = resource.name
        bucket = self._apis.find(STORAGE, resource.path, name)
        location = bucket.get("location", "").lower()
        kind = bucket.get("locationType", "region")
        remedy = f"use one in {region}: gcloud storage buckets create gs://NAME --location={region}"
        training = dict.fromkeys(machine.region for machine in self._machines)
        is_of_runs = kind == "region" and location in (region, next(iter(training)))
        if kind != "region":
            # https://cloud.google.com/vertex-ai/docs/training/cloud-storage-file-system
            said = f"{name} is in {location} ({kind}), but training on Vertex AI supports only buckets in one region"
            yield Finding("bucket", Status.HINT, said, remedy)
        elif not is_of_runs:  # Jobs can use it, for more time and money.
            said = f"{name} is in {location}, but runs are in {region}"
            yield Finding("bucket", Status.HINT, said, remedy)
        denied = self._permissions.denied(_WRITER, resource)
        if denied and bundle_of(self._config.training.model):  # The user uploads the model's code to the bucket.
            raise LackError(
                f"you lack the permissions {', '.join(denied)} in {name}, to which the model's code is uploaded",
                resource.bind(self._who, _WRITER).text,
            )
        if is_of_runs:
            may = "you cannot write there, but do not need to" if denied else "you may write there"
            others = [other for other in dict.fromkeys((region, *training)) if other != location]
            far = (
                f"; jobs in {', '.join(others)} use this bucket in another region, which takes more time and money"
                if others
                else ""
            )
            yield Finding("bucket", Status.OK, f"{name} in {location}; {may}{far}")

    def _create_bucket(self) -> tuple[ShellCommand, ...]:
        """Return the commands that create the bucket.

        If the model's code is uploaded, the commands also allow the user to write to the bucket.
        """
        create = create_bucket(self._settings.bucket_location, self._settings.region, self._settings.project)
        if not bundle_of(self._config.training.model):
            return (create,)
        return create, self._bucket_resource(self._settings.bucket_location.bucket).bind(self._who, _WRITER)

    # Images

    def _of_image(
        self, about: str, image: str, name: str, cost: CheckCost = CheckCost.NETWORK, least_python: str = ""
    ) -> list[Check]:
        """Return two checks of a container image: that it exists, and that Vertex AI's service agent can pull it.

        Both checks are skipped if no image is set. The environment variable TPU_PIPELINES_{name}IMAGE sets the image.

        The service agent (https://cloud.google.com/vertex-ai/docs/general/custom-service-account) pulls a model's image
        when the model is uploaded (see `ModelContainerSpec.image_uri` in model.proto).
        """
        look = functools.partial(look_at_image, image, self._apis, f"TPU_PIPELINES_{name}IMAGE", False, least_python)
        project, location, repository = repository_of(image) or ("", "", "")
        place = (f"--location={location}", f"--project={project}")
        path = f"v1/projects/{project}/locations/{location}/repositories/{repository}"
        resource = Resource(project, _REGISTRY, path, "artifacts repositories", repository, place)
        create: tuple[ShellCommand, ...] = ()
        if project == self._settings.project:
            repositories = ("gcloud", "artifacts", "repositories")
            made = (*repositories, "create", repository, *place, "--repository-format=docker")
            create = (ShellCommand(made, unless=(*repositories, "describe", repository, *place)),)
        own = "" if project and not create else "Vertex AI's service agent can read the project's images"
        return [
            Check(about, look, cost, commands=lambda: create, when=image),
            self._granted(f"{about}'s reader", _PULLER, self._agent, lambda: resource, own, when=image),
        ]

    def _agent(self) -> str:
        """Return Vertex AI's service agent as an IAM member.

        https://cloud.google.com/vertex-ai/docs/general/access-control#service-agents
        """
        return f"serviceAccount:service-{self._number}@gcp-sa-aiplatform.iam.gserviceaccount.com"

    # Service account

    @property
    def _account(self) -> str:
        """E-mail address of the service account that runs pipelines.

        https://cloud.google.com/vertex-ai/docs/pipelines/configure-project
        """
        return self._settings.service_account or f"{self._number}-compute@developer.gserviceaccount.com"

    def _member(self, account: str = "") -> str:
        """Return a service account as an IAM member. The default is the account that runs pipelines."""
        return f"serviceAccount:{account or self._account}"

    def _account_resource(self) -> Resource:
        """Return the service account as an IAM resource of the project that owns it.

        With `projects/-` instead of the project, a missing account would give 403 (iam.proto).
        """
        account = self._account
        project = self._settings.project
        own = re.fullmatch(r"[^@]+@(.+)\.iam\.gserviceaccount\.com", account)
        path = f"v1/projects/{own[1] if own else project}/serviceAccounts/{account}"
        return Resource(project, IAM, path, "iam service-accounts", account)

    def _service_account(self) -> str:
        account = self._account_resource()
        remedy = "" if self._settings.service_account else "set TPU_PIPELINES_SERVICE_ACCOUNT"
        if self._apis.find(IAM, account.path, account.name, remedy).get("disabled"):
            enable = ShellCommand(("gcloud", "iam", "service-accounts", "enable", account.name))
            raise LackError(f"{account.name} is disabled", str(enable))
        return account.name

    def _create_account(self) -> tuple[ShellCommand, ...]:
        name, domain = self._account.split("@")
        if domain != f"{self._settings.project}.iam.gserviceaccount.com":  # An account of another project.
            return ()
        accounts = ("gcloud", "iam", "service-accounts")
        place = f"--project={self._settings.project}"
        there = (*accounts, "describe", self._account, place)
        return self._enable(IAM), ShellCommand((*accounts, "create", name, place), unless=there)

    # Roles

    def _project_resource(self) -> Resource:
        project = self._settings.project
        return Resource(project, RESOURCES, f"v3/projects/{project}", "projects", project)

    def _bucket_resource(self, name: str) -> Resource:
        return Resource(self._settings.project, STORAGE, f"storage/v1/b/{name}", "storage buckets", f"gs://{name}")

    def _yours(
        self, about: str, role: Role, resource: Callable[[], Resource], may: str, cost: CheckCost = CheckCost.NETWORK
    ) -> Check:
        """Return a check that passes if the signed-in user has the necessary permissions on a resource.

        Args:
            about: Subject of the check, for example `your role`.
            role: Role whose `needed` permissions are checked.
            resource: Function that returns the resource. The check calls it, because the name may need a request.
            may: What the permissions allow, such as `act as`. The message is `you may {may} {name of the resource}`.
            cost: Cost of the check.
        """

        def ask() -> str:
            place = resource()
            if denied := self._permissions.denied(role, place):
                raise LackError(f"you lack the permissions {', '.join(denied)} on {place.name}")
            return f"you may {may} {place.name}"

        return Check(about, ask, cost, commands=lambda: (resource().bind(self._who, role),))

    def _granted(
        self,
        about: str,
        role: Role,
        member: Callable[[], str],
        resource: Callable[[], Resource] | None = None,
        unneeded: str = "",
        when: object = True,
    ) -> Check:
        """Return a check that passes if a member has the permissions of a role.

        Args:
            about: Name of the check.
            role: The role.
            member: Function that returns the member. The check calls it, because the name may need a request.
            resource: Function that returns the resource. The default is the project.
            unneeded: Reason why the member needs no role. Empty if the member needs it.
            when: Condition of the check.
        """
        place = resource or self._project_resource

        def ask() -> str:
            return unneeded or self._permissions.judge(member(), role, place())

        return Check(about, ask, commands=lambda: (place().bind(member(), role),), when=when)

    # Quota

    def _quota(self, machine: MachineSpec) -> str | tuple[Finding, ...]:
        """Check that a machine's quota in its region is sufficient. Return the result as a sentence or a finding.

        The API has a value for each combination of dimensions: google/api/cloudquotas/v1/resources.proto. Quotas count
        cores for v2 and v3, and chips or GPUs for others: https://cloud.google.com/vertex-ai/docs/quotas.
        """
        project = self._settings.project
        region = machine.region
        quota, needed = _quota_of(machine)
        place = f"v1/projects/{project}/locations/global/services/aiplatform.googleapis.com/quotaInfos/{quota}"
        console = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
        try:
            answer = self._apis.get(_CLOUD_QUOTAS, place)
        except MissingError:  # Without commands, because an unknown quota cannot be requested.
            said = f"Google Cloud has no quota named {quota}"
            return (Finding(f"quota {machine.name}", Status.UNKNOWN, said, f"see {console}"),)
        places = [
            entry
            for entry in answer.get("dimensionsInfos", ())
            if region in (*entry.get("applicableLocations", ()), entry.get("dimensions", {}).get("region"))
        ]
        if not places:
            raise CannotAskError(f"{quota} has no value in {region}", f"see {console}")
        limit = int(max(places, key=lambda entry: len(entry.get("dimensions", {}))).get("details", {}).get("value", 0))
        return judge_quota(quota, region, limit, needed, project)

    def _request_quota(self, machine: MachineSpec) -> tuple[ShellCommand, ...]:
        """Return the commands that request a larger quota. Google responds by e-mail.

        https://cloud.google.com/sdk/gcloud/reference/beta/quotas/preferences/create: up to release 578 only the beta
        track has this command. One preference per quota and region requests enough for the largest machine. No other
        command depends on the response.
        """
        project, (quota, _) = self._settings.project, _quota_of(machine)
        alike = [_quota_of(other) for other in self._machines if other.region == machine.region]
        most = max(needed for name, needed in alike if name == quota)
        kind = quota.removeprefix("CustomModelTraining").removesuffix("PerProjectPerRegion").lower()
        name = f"tpu-pipelines-{kind}-{machine.region}"
        email = self._who.partition(":")[2]
        contact = f"--email={email}" if email else CommandOutput("--email=", ("gcloud", "config", "get", "account"))
        preferences = ("gcloud", "beta", "quotas", "preferences")
        place = f"--project={project}"
        ask = (
            *(*preferences, "create", f"--service={_VERTEX_AI}", f"--quota-id={quota}", f"--preferred-value={most}"),
            *(f"--dimensions=region={machine.region}", f"--preference-id={name}", contact, place),
        )
        console = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
        request = ShellCommand(
            ask,
            unless=(*preferences, "describe", name, place),
            otherwise=("echo", f"The quota request failed. Make it on this page: {console}"),
        )
        return self._enable(_CLOUD_QUOTAS), request

    # Network, encryption key and TensorBoard

    def _network(self) -> str:
        """Check that the network exists and has private services access. Return its name as the finding.

        custom_job.proto requires this access.
        """
        network = self._settings.network
        known = self._apis.find(_COMPUTE, f"compute/v1/{network}", network, "check TPU_PIPELINES_NETWORK")
        if not any(
            entry.get("name", "").startswith("servicenetworking") and entry.get("state") == "ACTIVE"
            for entry in known.get("peerings", ())
        ):
            connect = (
                *("gcloud", "services", "vpc-peerings", "connect", "--service=servicenetworking.googleapis.com"),
                *(f"--network={network.rpartition('/')[2]}", "--ranges=RANGE", f"--project={network.split('/')[1]}"),
            )
            raise LackError(f"{network} has no private services access", str(ShellCommand(connect)))
        return network

    def _attachment(self) -> str:
        """Check that the network attachment exists. Return its name as the finding.

        https://cloud.google.com/vertex-ai/docs/general/vpc-psc-i-setup
        """
        name = self._settings.network_attachment
        self._apis.find(_COMPUTE, f"compute/v1/{name}", name, "check TPU_PIPELINES_NETWORK_ATTACHMENT")
        return name

    def _key(self) -> str:
        """Check that the service agent may use the encryption key. Return the result as a sentence.

        Source: https://cloud.google.com/vertex-ai/docs/general/cmek.
        """
        name = self._settings.encryption_key
        known = self._apis.find(_KEYS, f"v1/{name}", name, "check TPU_PIPELINES_ENCRYPTION_KEY")
        state = known.get("primary", {}).get("state", "without a version")
        if state != "ENABLED":
            raise LackError(
                f"the key {name} has the state {state}, expected ENABLED",
                "enable its primary version, or set another key",
            )
        return self._permissions.judge(self._agent(), _ENCRYPTER, self._key_resource())

    def _key_resource(self) -> Resource:
        name = self._settings.encryption_key
        _, project, _, location, _, ring, _, key = name.split("/")
        place = (f"--keyring={ring}", f"--location={location}", f"--project={project}")
        return Resource(project, _KEYS, f"v1/{name}", "kms keys", key, place)

    def _tensorboard(self) -> str:
        name = self._settings.tensorboard
        _, project, _, region, *_ = name.split("/")
        create = ("gcloud", "ai", "tensorboards", "create", "--display-name=tpu-pipelines")
        place = (f"--region={region}", f"--project={project}")
        with lacking(f"there is no {name}", str(ShellCommand((*create, *place)))):
            self._vertex(project, region).call("TensorboardService", "get_tensorboard", {"name": name})
        return name

    # Registry and endpoint

    @property
    def _registry_service(self) -> VertexService:
        """The service of the model registry, in the registry's location."""
        registry = self._settings.vertex_registry() if self._deploy.registry == VERTEX else self._deploy.registry
        _, project, _, region, *_ = registry.split("/")
        return self._vertex(project, region)

    def _models(self) -> str:
        service = self._registry_service
        service.call("ModelService", "list_models", {"parent": service.parent, "page_size": 1})
        return f"{service.parent}/models"

    def _endpoint(self) -> str:
        service = self._registry_service
        name = f"{service.parent}/endpoints/{self._deploy.endpoint}"
        try:
            endpoint = service.call("EndpointService", "get_endpoint", {"name": name})
        except MissingError:
            return f"{name} will be created by the run"
        with lacking("", "name another deploy.endpoint", InputError):
            check_access(endpoint, self._deploy)
        return name


def _quota_of(machine: MachineSpec) -> tuple[str, int]:
    """Return the name of a machine's quota and the amount that it needs. Spot machines have separate quotas."""
    entry = machine.slice
    spot = "Preemptible" if machine.spot else ""
    kind = (entry.generation.vertex_pod_quota if entry.hosts > 1 else "") or entry.generation.vertex_quota
    return f"CustomModelTraining{spot}{kind}PerProjectPerRegion", machine.accelerator_count or entry.chips
