"""What a run on Vertex AI needs of Google Cloud.

Which permission a call takes stands in its reference: serviceusage.services.get, resourcemanager.projects.getIamPolicy,
iam.serviceAccounts.get, iam.serviceAccounts.getIamPolicy, storage.buckets.get, storage.buckets.getIamPolicy,
artifactregistry.repositories.getIamPolicy, compute.networks.get, cloudkms.cryptoKeys.get, cloudquotas.quotas.get.
Whoever lacks one is told so, and the rest is asked all the same.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tpu_components.core.base.container_images import BEAM_IMAGE, SERVING_IMAGE, other_steps_image
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import MissingError
from tpu_components.core.files import storage
from tpu_components.core.files.object_stores import split
from tpu_components.core.files.vertex_clients import VertexService
from tpu_components.core.machines.machine_spec import MachineSpec
from tpu_components.core.models.lookup import bundle_of
from tpu_components.core.registry.reference import is_on_vertex
from tpu_components.core.sources.params import BEAM
from tpu_components.deploy_model.endpoint_address import check_access
from tpu_components.deploy_model.params import PRIVATE, VERTEX, DeployParams
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.doctor.findings import CannotAskError, Check, Finding, missing, there, unknown
from tpu_pipelines.doctor.google_apis import GoogleApis
from tpu_pipelines.doctor.iam import IAM, RESOURCES, Granted, Policies
from tpu_pipelines.doctor.images import image_findings, repository_of
from tpu_pipelines.pipeline.compile import require_machine
from tpu_pipelines.platforms.beam_job import is_on_dataflow
from tpu_pipelines.platforms.custom_job import in_region

_REGISTRY, _COMPUTE = "artifactregistry.googleapis.com", "compute.googleapis.com"
_KEYS, _CONNECTIVITY = "cloudkms.googleapis.com", "networkconnectivity.googleapis.com"
# Of whoever submits; https://cloud.google.com/iam/docs/roles-permissions/aiplatform has roles and permissions.
_SUBMITTER = ("aiplatform.pipelineJobs.create", "aiplatform.pipelineJobs.get", "aiplatform.pipelineJobs.list")
# Of the account that runs pipelines: https://cloud.google.com/vertex-ai/docs/tabular-data/tabular-workflows/
# service-accounts names Vertex AI User, Storage Object Admin and Service Account User.
_RUNNER = ("aiplatform.metadataStores.get", "aiplatform.customJobs.create", "aiplatform.customJobs.get")
_DEPLOYER = ("aiplatform.models.upload", "aiplatform.endpoints.create", "aiplatform.endpoints.deploy")
_DATAFLOW = "dataflow.googleapis.com"
# Of the account that starts Dataflow's job and follows it, and of the one that its workers run as:
# https://cloud.google.com/dataflow/docs/concepts/access-control has roles and permissions.
_STARTER = (*(f"dataflow.jobs.{verb}" for verb in ("create", "get", "cancel")), "dataflow.messages.list")
_WORKER = tuple(f"dataflow.workItems.{verb}" for verb in ("lease", "update", "sendMessage"))
_READER = ("storage.objects.get", "storage.objects.list")
_WRITER = (*_READER, "storage.objects.create", "storage.objects.delete")  # To write an object again takes both.
_ACT_AS = ("iam.serviceAccounts.actAs",)  # custom_job.proto, service_account: of whoever creates a job that runs as it.
_ENCRYPTER = ("cloudkms.cryptoKeyVersions.useToEncrypt", "cloudkms.cryptoKeyVersions.useToDecrypt")
_PULLER = ("artifactregistry.repositories.downloadArtifacts",)
# GoogleCloudPlatform/vertex-ai-samples, notebook_util/common_util.py, get_resource_id; spot machines have a quota of
# their own. Pods of v2 and v3 have quotas of their own, too: "You won't be able to run single-host experiments with
# multi-host quota" (google-research/t5x, README.md). The names of v2's and of the pods' are written nowhere: taken to
# be as v3's, and unknown where there is none of that name.
_QUOTAS = {"v2": "V2TPUs", "v3": "V3TPUs", "v5e": "V5ETPU", "v6e": "V6ETPU", "7x": "7XTPU"}
_POD_QUOTAS = {**_QUOTAS, "v2": "V2PodTPUs", "v3": "V3PodTPUs"}


class VertexChecks:
    """Everything that a configuration's run needs on Vertex AI.

    Args:
        config: Configuration that is to run.
        settings: Settings of the platform; must have the project, the region and the bucket.
        apis: Whoever asks.
        image: Image that every step is to run in.
    """

    def __init__(self, config: Config, settings: Settings, apis: GoogleApis, image: str) -> None:
        self._config, self._settings, self._apis, self._image = config, settings, apis, image
        self._machines = [in_region(entry, settings) for entry in require_machine(config, "vertex").candidates]
        self._policies = Policies(apis, settings.project)
        self._member = ""

    def checks(self) -> tuple[Check, list[Check]]:
        """Return the sign-in, and everything else in the order in which it is told."""
        checks = [
            Check("project", self._project),
            Check("APIs", self._services),
            Check("your role", self._submitter),
            Check("Vertex AI", self._region),
            Check("bucket", self._bucket, is_cheap=True),
            Check("image", self._step_image, is_cheap=True),
            Check("image's reader", functools.partial(self._puller, "image's reader", self._image)),
            Check("service account", self._service_account, is_cheap=True),
            Check("acting as it", self._acting, is_cheap=True),
            Check("its roles", self._runner),
            Check("its buckets", self._runner_buckets),
            Check("its acting", self._runner_acting),
            *(
                Check(f"quota {entry.name}", functools.partial(self._quota, entry))
                for entry in dict.fromkeys(self._machines)
            ),
        ]
        for what, setting, ask in (
            ("network", self._settings.network, self._network),
            ("attachment", self._settings.network_attachment, self._attachment),
            ("key", self._settings.encryption_key, self._key),
            ("tensorboard", self._settings.tensorboard, self._tensorboard),
        ):
            if setting:
                checks.append(Check(what, ask))
        if steps := other_steps_image():
            reader, variable = "steps' image's reader", "TPU_PIPELINES_STEPS_IMAGE"
            ask = functools.partial(image_findings, "steps' image", steps, self._apis, variable)
            checks += [
                Check("steps' image", ask, is_cheap=True),
                Check(reader, functools.partial(self._puller, reader, steps)),
            ]
        if self._config.data.engine == BEAM:
            reader, variable = "Beam image's reader", "TPU_PIPELINES_BEAM_IMAGE"
            checks += [
                Check("Beam image", functools.partial(image_findings, "Beam image", BEAM_IMAGE, self._apis, variable)),
                Check(reader, functools.partial(self._puller, reader, BEAM_IMAGE)),
            ]
        if self._uses_dataflow:
            checks += [Check("its Dataflow", self._starter), Check("Dataflow's workers", self._workers)]
        if self._deploys:
            reader = "serving image's reader"
            checks += [
                Check("serving image", self._serving_image_there),
                Check(reader, functools.partial(self._puller, reader, self._serving_image)),
                Check("registry", self._models),
            ]
            if self._deploy.endpoint:
                checks.append(Check("endpoint", self._endpoint))
            if self._deploy.endpoint_access == PRIVATE:
                checks.append(Check("endpoint's network", self._connection_policy))
        return Check("sign-in", self._sign_in, is_cheap=True), checks

    # Who asks, and where

    def _sign_in(self) -> Iterator[Finding]:
        try:
            self._apis.refresh()
        except InputError as error:
            yield missing("sign-in", str(error), "gcloud auth application-default login")
            return
        self._member = self._apis.principal()
        kind = type(self._apis.credentials).__name__
        yield there("sign-in", self._member or f"valid; whose it is, it does not say ({kind})")

    @property
    def _who(self) -> str:
        return self._member or "user:YOU"

    @functools.cached_property
    def _found_project(self) -> dict[str, Any]:
        return self._apis.get(RESOURCES, f"v3/projects/{self._settings.project}")

    @property
    def _number(self) -> str:
        return str(self._found_project["name"]).partition("/")[2]

    def _project(self) -> Iterator[Finding]:
        project = self._settings.project
        try:
            state = self._found_project.get("state", "ACTIVE")
        except MissingError:
            yield missing("project", f"there is no {project}", "check TPU_PIPELINES_PROJECT")
            return
        if state != "ACTIVE":
            yield missing("project", f"{project} is {state}", f"gcloud projects undelete {project}")
        else:
            yield there("project", f"{project}, number {self._number}")

    def _services(self) -> Iterator[Finding]:
        """Ask which services are switched on: google/api/serviceusage/v1/serviceusage.proto, BatchGetServices."""
        project = self._settings.project
        needed = ["aiplatform.googleapis.com", "storage.googleapis.com"]
        if repository_of(self._image):
            needed.append(_REGISTRY)
        if not self._settings.service_account or self._settings.network:
            needed.append(_COMPUTE)  # Whose default account runs pipelines that name none.
        if self._uses_dataflow:
            needed.append(_DATAFLOW)
        names = [f"projects/{project}/services/{name}" for name in needed]
        answer = self._apis.get("serviceusage.googleapis.com", f"v1/projects/{project}/services:batchGet", names=names)
        states = {entry["name"].rpartition("/")[2]: entry.get("state") for entry in answer.get("services", ())}
        for name in needed:
            if states.get(name) != "ENABLED":
                yield missing("APIs", f"{name} is not enabled", f"gcloud services enable {name} --project={project}")
        if all(states.get(name) == "ENABLED" for name in needed):
            yield there("APIs", ", ".join(name.partition(".")[0] for name in needed))

    @property
    def _uses_dataflow(self) -> bool:
        return is_on_dataflow(self._config, "vertex")

    def _submitter(self) -> Iterator[Finding]:
        project = self._settings.project
        answer = self._apis.post(
            RESOURCES, f"v3/projects/{project}:testIamPermissions", {"permissions": list(_SUBMITTER)}
        )
        if lacking := [entry for entry in _SUBMITTER if entry not in answer.get("permissions", ())]:
            yield missing(
                "your role", f"you lack {', '.join(lacking)}", self._bind_project(self._who, "roles/aiplatform.user")
            )
        else:
            yield there("your role", "you may create and read pipeline jobs")

    def _region(self) -> Iterator[Finding]:
        region = self._settings.region
        service = VertexService(self._settings.project, region, self._settings.vertex_endpoint, self._apis.credentials)
        request = {"parent": f"projects/{self._settings.project}/locations/{region}", "page_size": 1}
        service.call("PipelineService", "list_pipeline_jobs", request)
        yield there("Vertex AI", f"answers in {region}")

    # Where it writes

    @property
    def _bucket_name(self) -> str:
        return split(self._settings.bucket)[0]

    def _bucket(self) -> Iterator[Finding]:
        name, region = self._bucket_name, self._settings.region
        try:
            bucket = self._apis.of_bucket(name, "reload")
        except MissingError:
            yield missing(
                "bucket",
                f"there is no gs://{name}",
                f"gcloud storage buckets create gs://{name} --location={region} --project={self._settings.project}",
            )
            return
        location, kind = (bucket.location or "").lower(), bucket.location_type or "region"
        remedy = f"use one in {region}: gcloud storage buckets create gs://NAME --location={region}"
        training = dict.fromkeys(machine.region for machine in self._machines)
        is_of_runs = kind == "region" and location in (region, next(iter(training)))
        if kind != "region":
            # https://cloud.google.com/vertex-ai/docs/training/cloud-storage-file-system
            said = f"gs://{name} is in {location} ({kind}), and Vertex AI's training supports buckets of one region"
            yield missing("bucket", said, remedy, is_fatal=False)
        elif not is_of_runs:  # Jobs reach it all the same, for more time and money.
            said = f"gs://{name} is in {location}, and runs are in {region}"
            yield missing("bucket", said, remedy, is_fatal=False)
        allowed = self._apis.of_bucket(name, "test_iam_permissions", list(_WRITER))
        if (lacking := [entry for entry in _WRITER if entry not in allowed]) and self._carries:
            yield missing(
                "bucket",
                f"you lack {', '.join(lacking)} in gs://{name}, and the model's code travels through it",
                self._bind_bucket(name, self._who, "roles/storage.objectAdmin"),
            )
        elif is_of_runs:
            may = "nothing of yours is written there" if lacking else "you may write there"
            others = [other for other in dict.fromkeys((region, *training)) if other != location]
            far = f"; jobs in {', '.join(others)} use it from there, for more time and money" if others else ""
            yield there("bucket", f"gs://{name} in {location}; {may}{far}")

    @property
    def _carries(self) -> bool:
        """Whether a model of the user's own travels through the bucket."""
        return bundle_of(self._config.training.model) is not None

    # What it runs in

    def _step_image(self) -> Iterator[Finding]:
        # https://cloud.google.com/vertex-ai/docs/training/configure-compute#tpu-7x: "TPU7x requires Python 3.12+."
        python = "3.12" if any(machine.slice.generation.name == "7x" for machine in self._machines) else ""
        yield from image_findings("image", self._image, self._apis, "TPU_PIPELINES_IMAGE", least_python=python)

    @property
    def _serving_image(self) -> str:
        return self._deploy.serving_image or SERVING_IMAGE

    def _serving_image_there(self) -> Iterator[Finding]:
        yield from image_findings("serving image", self._serving_image, self._apis, "TPU_PIPELINES_SERVING_IMAGE")

    def _puller(self, what: str, image: str) -> Iterator[Finding]:
        """Check the agent that pulls images: https://cloud.google.com/vertex-ai/docs/general/custom-service-account.

        A model's image it reads when the model is uploaded: model.proto, ModelContainerSpec.image_uri.
        """
        repository, agent = repository_of(image), self._agent
        if not repository or repository[0] == self._settings.project:
            yield there(what, "Vertex AI's service agent reads the project's own")
            return
        project, location, name = repository
        path = f"v1/projects/{project}/locations/{location}/repositories/{name}:getIamPolicy"
        granted = Policies(self._apis, project).granted(agent, lambda: self._apis.get(_REGISTRY, path))
        yield from self._judge(
            what,
            granted,
            _PULLER,
            agent,
            "roles/artifactregistry.reader",
            f"gcloud artifacts repositories add-iam-policy-binding {name} --project={project} --location={location} "
            f"--member={agent} --role=roles/artifactregistry.reader",
        )

    @property
    def _agent(self) -> str:
        """https://cloud.google.com/vertex-ai/docs/general/access-control#service-agents: Vertex AI's own account."""
        return f"serviceAccount:service-{self._number}@gcp-sa-aiplatform.iam.gserviceaccount.com"

    # As whom it runs

    @property
    def _account(self) -> str:
        """https://cloud.google.com/vertex-ai/docs/pipelines/configure-project: whose account runs a pipeline."""
        return self._settings.service_account or f"{self._number}-compute@developer.gserviceaccount.com"

    @property
    def _runner_member(self) -> str:
        return f"serviceAccount:{self._account}"

    @property
    def _account_path(self) -> str:
        """Path of the account below its own project: iam.proto answers 403 for a missing one below `projects/-`."""
        answer = re.fullmatch(r"[^@]+@(.+)\.iam\.gserviceaccount\.com", self._account)
        return f"v1/projects/{answer[1] if answer else self._settings.project}/serviceAccounts/{self._account}"

    def _service_account(self) -> Iterator[Finding]:
        account, name = self._account, self._account.partition("@")[0]
        try:
            answer = self._apis.get(IAM, self._account_path)
        except MissingError:
            yield missing(
                "service account",
                f"there is no {account}",
                f"gcloud iam service-accounts create {name} --project={self._settings.project}"
                if self._settings.service_account
                else "set TPU_PIPELINES_SERVICE_ACCOUNT",
            )
            return
        if answer.get("disabled"):
            yield missing("service account", f"{account} is disabled", f"gcloud iam service-accounts enable {account}")
        else:
            yield there("service account", account)

    def _acting(self) -> Iterator[Finding]:
        try:
            answer = self._apis.post(IAM, f"{self._account_path}:testIamPermissions", {"permissions": list(_ACT_AS)})
        except MissingError:
            yield unknown("acting as it", "there is no such account")
            return
        if _ACT_AS[0] in answer.get("permissions", ()):
            yield there("acting as it", f"you may act as {self._account}")
        else:
            yield missing("acting as it", f"you lack {_ACT_AS[0]} on {self._account}", self._bind_account(self._who))

    def _runner(self) -> Iterator[Finding]:
        needed = _RUNNER + (_DEPLOYER if self._deploys else ())
        role = "roles/aiplatform.user"
        command = self._bind_project(self._runner_member, role)
        granted = self._policies.granted(self._runner_member)
        yield from self._judge("its roles", granted, needed, self._runner_member, role, command)

    def _starter(self) -> Iterator[Finding]:
        """Check that the pipeline's account may start the job on Dataflow, follow and cancel it."""
        member, role = self._runner_member, "roles/dataflow.developer"
        granted, command = self._policies.granted(member), self._bind_project(member, role)
        yield from self._judge("its Dataflow", granted, _STARTER, member, role, command)

    def _workers(self) -> Iterator[Finding]:
        """Check the account of the job's workers: the pipeline's own, where the configuration names no other."""
        account = self._config.data.beam_options.get("service_account_email", self._account)
        member, role = f"serviceAccount:{account}", "roles/dataflow.worker"
        granted, command = self._policies.granted(member), self._bind_project(member, role)
        yield from self._judge("Dataflow's workers", granted, _WORKER, member, role, command)

    def _runner_buckets(self) -> Iterator[Finding]:
        """Check the bucket that it writes to, and the one that the data are in."""
        needed: dict[str, tuple[Sequence[str], str]] = {self._bucket_name: (_WRITER, "roles/storage.objectAdmin")}
        if storage.is_on_google(data := self._config.data_location):
            needed.setdefault(split(data)[0], (_READER, "roles/storage.objectViewer"))
        for name, (permissions, role) in needed.items():
            granted = self._policies.granted(self._runner_member, functools.partial(self._bucket_policy, name))
            command = self._bind_bucket(name, self._runner_member, role)
            yield from self._judge(f"its buckets: {name}", granted, permissions, self._runner_member, role, command)

    def _bucket_policy(self, name: str) -> dict[str, Any]:
        try:
            policy = self._apis.of_bucket(name, "get_iam_policy", requested_policy_version=3)
        except MissingError as error:
            raise CannotAskError(f"there is no gs://{name}") from error
        return {"bindings": [{**entry, "members": list(entry["members"])} for entry in policy.bindings]}

    def _runner_acting(self) -> Iterator[Finding]:
        """Check that the pipeline's account may create the job of the training, which runs as that same one."""
        if not self._settings.service_account:
            yield there("its acting", "the training runs as Vertex AI's own agent")
            return
        granted = self._policies.granted(self._runner_member, self._account_policy)
        role = "roles/iam.serviceAccountUser"
        command = self._bind_account(self._runner_member)
        yield from self._judge("its acting", granted, _ACT_AS, self._runner_member, role, command)

    def _account_policy(self) -> dict[str, Any]:
        try:
            return self._apis.post(IAM, f"{self._account_path}:getIamPolicy", {})
        except MissingError as error:
            raise CannotAskError(f"there is no {self._account}") from error

    @staticmethod
    def _judge(
        what: str, granted: Granted, needed: Sequence[str], member: str, role: str, command: str
    ) -> Iterator[Finding]:
        """Judge whether a member has what it needs; names the role that it lacks, and the command that grants it."""
        name = member.partition(":")[2]
        lacking, perhaps = granted.lacks(tuple(needed))
        said = f"{name} lacks {role} ({', '.join(lacking)})"
        if not lacking:
            yield there(what, f"{name} has {role}'s part of it")
        elif perhaps:
            yield unknown(what, f"{said}, as far as can be seen: {perhaps}", command)
        else:
            yield missing(what, said, command)

    # What it trains on

    def _quota(self, machine: MachineSpec) -> Iterator[Finding]:
        """Check the quota: google/api/cloudquotas/v1/resources.proto has a value for each combination of dimensions.

        Of v2 and v3 cores are counted, of the others chips: https://cloud.google.com/vertex-ai/docs/quotas.
        """
        entry, project, region = machine.slice, self._settings.project, machine.region
        what, needed = f"quota {machine.name}", machine.accelerator_count or entry.chips
        spot = "Preemptible" if machine.spot else ""
        kind = (_POD_QUOTAS if entry.hosts > 1 else _QUOTAS)[entry.generation.name]
        quota = f"CustomModelTraining{spot}{kind}PerProjectPerRegion"
        place = f"v1/projects/{project}/locations/global/services/aiplatform.googleapis.com/quotaInfos/{quota}"
        console = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
        try:
            answer = self._apis.get("cloudquotas.googleapis.com", place)
        except MissingError:
            yield unknown(what, f"Google Cloud knows no {quota}", f"look at {console}")
            return
        places = [entry for entry in answer.get("dimensionsInfos", ()) if _is_of(entry, region)]
        if not places:
            yield unknown(what, f"{quota} has no value in {region}", f"look at {console}")
            return
        limit = int(max(places, key=lambda entry: len(entry.get("dimensions", {}))).get("details", {}).get("value", 0))
        if 0 <= limit < needed:
            yield missing(what, f"{quota} in {region} is {limit}, and {needed} are needed", f"ask for more: {console}")
        else:
            yield there(what, f"{limit if limit >= 0 else 'any number'} in {region}, {needed} needed")

    # What it is connected to

    def _network(self) -> Iterator[Finding]:
        """Check the network: by custom_job.proto, private services access must be configured for it."""
        network = self._settings.network
        name = network.rpartition("/")[2]
        try:
            answer = self._apis.get(_COMPUTE, f"compute/v1/{network}")
        except MissingError:
            yield missing("network", f"there is no {network}", "check TPU_PIPELINES_NETWORK")
            return
        peerings = [
            entry for entry in answer.get("peerings", ()) if entry.get("name", "").startswith("servicenetworking")
        ]
        if any(entry.get("state") == "ACTIVE" for entry in peerings):
            yield there("network", network)
        else:
            yield missing(
                "network",
                f"{network} has no private services access",
                f"gcloud services vpc-peerings connect --service=servicenetworking.googleapis.com --network={name} "
                "--ranges=RANGE",
            )

    def _attachment(self) -> Iterator[Finding]:
        """Check the network attachment: https://cloud.google.com/vertex-ai/docs/general/vpc-psc-i-setup."""
        name = self._settings.network_attachment
        try:
            self._apis.get(_COMPUTE, f"compute/v1/{name}")
        except MissingError:
            yield missing("attachment", f"there is no {name}", "check TPU_PIPELINES_NETWORK_ATTACHMENT")
            return
        yield there("attachment", name)

    def _key(self) -> Iterator[Finding]:
        """Check that the service agent may use the key: https://cloud.google.com/vertex-ai/docs/general/cmek."""
        name = self._settings.encryption_key
        _, project, _, location, _, ring, _, key = name.split("/")
        try:
            state = self._apis.get(_KEYS, f"v1/{name}").get("primary", {}).get("state", "without a version")
        except MissingError:
            yield missing("key", f"there is no {name}", "check TPU_PIPELINES_ENCRYPTION_KEY")
            return
        if state != "ENABLED":
            yield missing("key", f"{name} is {state}", "enable its primary version, or name another key")
            return
        role = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
        granted = Policies(self._apis, project).granted(
            self._agent, lambda: self._apis.get(_KEYS, f"v1/{name}:getIamPolicy")
        )
        command = (
            f"gcloud kms keys add-iam-policy-binding {key} --keyring={ring} --location={location} --project={project} "
            f"--member={self._agent} --role={role}"
        )
        yield from self._judge("key", granted, _ENCRYPTER, self._agent, role, command)

    def _tensorboard(self) -> Iterator[Finding]:
        name = self._settings.tensorboard
        _, project, _, region, *_ = name.split("/")
        service = VertexService(project, region, self._settings.vertex_endpoint, self._apis.credentials)
        try:
            service.call("TensorboardService", "get_tensorboard", {"name": name})
        except MissingError:
            yield missing(
                "tensorboard",
                f"there is no {name}",
                f"gcloud ai tensorboards create --display-name=tpu-pipelines --region={region} --project={project}",
            )
            return
        yield there("tensorboard", name)

    # Where the model goes

    @property
    def _deploy(self) -> DeployParams:
        return self._config.deploy or DeployParams("", self._config.name)

    @property
    def _deploys(self) -> bool:
        return self._deploy.registry == VERTEX or is_on_vertex(self._deploy.registry)

    @property
    def _registry_service(self) -> tuple[VertexService, str]:
        """The service where models are registered, and its parent there."""
        registry = self._deploy.registry
        project, region = self._settings.project, self._settings.region
        if is_on_vertex(registry):
            _, project, _, region, *_ = registry.split("/")
        service = VertexService(project, region, self._settings.vertex_endpoint, self._apis.credentials)
        return service, f"projects/{project}/locations/{region}"

    def _models(self) -> Iterator[Finding]:
        service, parent = self._registry_service
        service.call("ModelService", "list_models", {"parent": parent, "page_size": 1})
        yield there("registry", f"{parent}/models")

    def _endpoint(self) -> Iterator[Finding]:
        service, parent = self._registry_service
        name = f"{parent}/endpoints/{self._deploy.endpoint}"
        try:
            endpoint = service.call("EndpointService", "get_endpoint", {"name": name})
        except MissingError:
            yield there("endpoint", f"{name} is created by the run")
            return
        try:
            check_access(endpoint, self._deploy, parent.split("/")[1])
        except InputError as error:
            yield missing("endpoint", str(error), "name another deploy.endpoint")
            return
        yield there("endpoint", name)

    def _connection_policy(self) -> Iterator[Finding]:
        """Check that the service may put an endpoint's address into the network.

        google/cloud/networkconnectivity/v1/cross_network_automation.proto: ServiceConnectionPolicy.
        """
        what, network = "endpoint's network", self._deploy.endpoint_network
        _, project, *_, name = network.split("/")
        region = self._registry_service[1].split("/")[3]
        place = f"v1/projects/{project}/locations/{region}/serviceConnectionPolicies"
        policies = self._apis.get(_CONNECTIVITY, place).get("serviceConnectionPolicies", ())
        if any(
            policy.get("serviceClass") == "gcp-vertexai" and policy.get("network", "").rpartition("/")[2] == name
            for policy in policies
        ):
            yield there(what, f"Vertex AI may put addresses into {network}")
        else:
            yield missing(
                what,
                f"no policy lets Vertex AI put an endpoint's address into {network} in {region}",
                f"gcloud network-connectivity service-connection-policies create vertex-ai --project={project} "
                f"--network={network} --service-class=gcp-vertexai --region={region} --subnets=SUBNET",
            )

    # The commands that grant a role

    def _bind_project(self, member: str, role: str) -> str:
        return f"gcloud projects add-iam-policy-binding {self._settings.project} --member={member} --role={role}"

    def _bind_account(self, member: str) -> str:
        return (
            f"gcloud iam service-accounts add-iam-policy-binding {self._account} --member={member} "
            "--role=roles/iam.serviceAccountUser"
        )

    @staticmethod
    def _bind_bucket(name: str, member: str, role: str) -> str:
        return f"gcloud storage buckets add-iam-policy-binding gs://{name} --member={member} --role={role}"


def _is_of(info: dict[str, Any], region: str) -> bool:
    """Return whether a value of a quota is a region's."""
    return region in info.get("applicableLocations", ()) or info.get("dimensions", {}).get("region") == region
