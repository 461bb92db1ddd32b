"""Checks that a Kubeflow Pipelines server and, with a kubectl context, its cluster have everything that a run needs."""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import MissingError, OutageError
from tpu_components.core.base.states import Status
from tpu_components.core.base.terminal import hide_credentials
from tpu_components.core.files.location import Scheme
from tpu_components.core.machines.machine_spec import MachineSpec
from tpu_components.core.sources.params import BEAM
from tpu_components.train_model.jobset import GROUP, PLURAL, RIGHTS, VERSION, cluster_errors
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
from tpu_pipelines.platforms.google_apis import STORAGE, TIMEOUT_SECONDS, GoogleApis, create_bucket, judge_quota
from tpu_pipelines.platforms.images import look_at_image
from tpu_pipelines.platforms.kubeflow.client import MINIMUM_VERSION, KubeflowClient
from tpu_pipelines.platforms.kubeflow.resources import training_retries
from tpu_pipelines.platforms.kubeflow.tpu_pod import KEYS, node_selectors
from tpu_pipelines.platforms.resources import resources_of, steps_on_s3

# Names of contexts that gcloud creates; the location is a region or a zone.
_GKE_CONTEXT = re.compile(r"gke_(?P<project>[^_]+)_(?P<location>(?P<region>[^_]+?)(?P<zone>-[a-z])?)_(?P<cluster>.+)")
# Service account of the steps: kubeflow/pipelines, backend/src/apiserver/config/config.json
# (DefaultPipelineRunnerServiceAccount); on a server with several users that of the profile
# (manifests/kustomize/env/platform-agnostic-multi-user).
_RUNNER, _RUNNER_OF_A_PROFILE = "pipeline-runner", "default-editor"
_SERVERS_NAMESPACE = "kubeflow"
_TPU7X_POOLS = "https://cloud.google.com/kubernetes-engine/docs/how-to/tpus"
# https://jobset.sigs.k8s.io/docs/installation: a release's manifests, which `kubectl apply` may install again.
_JOBSETS = "https://github.com/kubernetes-sigs/jobset/releases/download/v0.11.1/manifests.yaml"


class KubeflowChecks:
    """Checks that Kubeflow has everything that a run of the configuration needs.

    Args:
        config: Configuration of the run.
        settings: Settings of the platform. `kfp_host` must be set.
        apis: Client of Google Cloud's APIs, for buckets, images and node pools.
        context: kubectl context of the cluster. If empty, the cluster is not checked.
    """

    def __init__(self, config: Config, settings: Settings, apis: GoogleApis, context: str) -> None:
        self._settings = settings
        self._apis = apis
        self._context = context
        self._gke = _GKE_CONTEXT.fullmatch(context)  # The cluster on GKE; None elsewhere.
        self._beam_image = settings.images.beam if config.data.engine == BEAM else ""
        self._machines = config.machines
        retries = training_retries(config.machine) if config.machine else 0
        self._is_retried = resources_of(config, "train_model", retries).retries > 0
        self._on_s3 = steps_on_s3(config, settings.bucket_location)
        self._server = KubeflowClient(settings)
        self._is_shared = False
        self._version: str | None = None  # None until the server has answered.

    def checks(self) -> list[Check]:
        """Return all checks in the order of the report."""
        images = {
            "": ("image", self._settings.images.training),
            "STEPS_": ("steps' image", self._settings.images.other_steps),
            "BEAM_": ("Beam image", self._beam_image),
        }
        unnamed = Finding("cluster", Status.UNKNOWN, "not checked; set the kubectl context with --kube-context")
        return [
            Check("server", self._answers),
            Check("version", self._judge_version),
            Check("object store", self._store, CheckCost.REQUEST, commands=self._create_bucket),
            *(
                Check(
                    about,
                    functools.partial(look_at_image, image, self._apis, f"TPU_PIPELINES_{name}IMAGE", True),
                    CheckCost.REQUEST,
                    when=image,
                )
                for name, (about, image) in images.items()
            ),
            Check("S3", self._s3, when=self._on_s3),
            Check("cluster", lambda: [unnamed], needs="server", when=not self._context),
            *(self._of_cluster() if self._context else ()),
        ]

    def _of_cluster(self) -> Iterator[Check]:
        """Yield the checks of the cluster that the context names."""
        for machine in dict.fromkeys(self._machines):
            pool = functools.partial(self._create_pool, machine)
            quota = machine.slice.generation.compute_quota
            yield Check(f"nodes {machine.name}", functools.partial(self._nodes, machine), commands=pool)
            yield Check(f"quota {machine.name}", functools.partial(self._quota, machine), when=quota)
        is_slice = any(machine.slice.hosts > 1 for machine in self._machines)
        yield Check(
            "JobSets",
            self._jobsets,
            commands=lambda: (*self._install_jobsets(), *self._grant_jobsets()),
            when=is_slice,
        )
        yield Check(
            "permission to use JobSets",
            self._right_to_jobsets,
            needs="JobSets",
            commands=self._grant_jobsets,
            when=is_slice,
        )
        yield Check("retries", self._retries, needs="server", when=self._is_retried)
        yield Check("service account", self._service_account, needs="server")
        namespace = f"--namespace={self._namespace}"
        claims = "read_namespaced_persistent_volume_claim"
        for name in self._settings.secrets:
            create = f"kubectl create secret generic {name} --from-file=… {namespace}"
            yield Check("secret", functools.partial(self._find, name, "read_namespaced_secret", create))
        for name in self._settings.volumes:
            create = f"kubectl apply -f CLAIM.yaml {namespace}, with a claim named {name}"
            yield Check("volume", functools.partial(self._find, name, claims, create))
        yield Check("queue", self._queue, when=self._settings.kueue_queue)

    # Server

    def _answers(self) -> Iterator[Finding]:
        address = hide_credentials(self._settings.kfp_host)
        try:
            with lacking("", "check TPU_PIPELINES_KFP_HOST and the network connection to this server", OutageError):
                self._is_shared = self._server.has_several_users()
            yield Finding("server", Status.OK, f"{address}, API v2beta1")
            self._version = self._server.version()
            if self._is_shared and not self._settings.kfp_namespace:
                remedy = "set TPU_PIPELINES_KFP_NAMESPACE to one of your namespaces"
                yield Finding(
                    "namespace", Status.ERROR, "the server is in multi-user mode and requires a namespace", remedy
                )
                return
            self._server.check_sign_in()
            yield Finding("sign-in", Status.OK, f"you may list experiments in {self._namespace}")
        except MissingError:
            remedy = "check the path in TPU_PIPELINES_KFP_HOST. Servers of version 2 have this API"
            yield Finding("API", Status.ERROR, f"{address} does not have the API v2beta1", remedy)
        except InputError as error:
            remedy = "set KF_PIPELINES_SA_TOKEN_PATH to the path of a token"
            yield Finding("sign-in", Status.ERROR, str(error), remedy)

    def _judge_version(self) -> Iterator[Finding]:
        """Yield a finding that says whether the server's version is new enough.

        Yield nothing if the server has not responded.
        """
        if self._version is None:
            return
        oldest = ".".join(map(str, MINIMUM_VERSION))
        if not (match := re.match(r"v?(\d+)\.(\d+)(?!\d)", self._version)):
            message = f"the server does not report its version ({self._version or 'empty'}), expected {oldest} or later"
            image = "-o jsonpath='{.spec.template.spec.containers[0].image}'"
            look = f"kubectl get deployment ml-pipeline -n {_SERVERS_NAMESPACE} {image}"
            yield Finding("version", Status.UNKNOWN, message, look)
        elif tuple(map(int, match.groups())) < MINIMUM_VERSION:
            message = f"Kubeflow Pipelines {self._version} ignores part of a pipeline: expected {oldest} or later"
            yield Finding("version", Status.ERROR, message, "ask the cluster's administrator to upgrade it")
        else:
            message = f"{self._version}; the versions of its driver, its launcher and Argo are not known"
            yield Finding("version", Status.OK, message)

    @property
    def _namespace(self) -> str:
        return self._settings.kfp_namespace or "kubeflow"

    # Object store

    def _store(self) -> str:
        root = self._settings.bucket_location
        if not root:
            return "the server's default bucket, because no bucket is set"
        if root.scheme is not Scheme.GOOGLE:
            raise CannotAskError(f"{root} cannot be checked from this machine")
        self._apis.find(STORAGE, f"storage/v1/b/{root.bucket}", f"gs://{root.bucket}")
        return f"gs://{root.bucket}; whether pods may write to it depends on the service account of their node"

    def _create_bucket(self) -> tuple[ShellCommand, ...]:
        if self._settings.bucket_location.scheme is not Scheme.GOOGLE:
            return ()
        cluster = self._gke.groupdict() if self._gke else {}
        region = self._settings.region or cluster.get("region", "")
        project = self._settings.project or cluster.get("project", "")
        return (create_bucket(self._settings.bucket_location, region, project),)

    def _s3(self) -> str:
        """Check that the secret for s3:// exists, without reading its content. Return the result as a sentence."""
        name = self._settings.s3_secret
        steps = ", ".join(sorted(self._on_s3))
        literals = " ".join(f"--from-literal={key}=…" for key in KEYS)
        create = f"kubectl create secret generic {name or 's3-credentials'} {literals} --namespace={self._namespace}"
        if not name:
            message = (
                f"no secret is set, so the pods of {steps} sign in with the role of their service account, or do "
                "not sign in"
            )
            raise CannotAskError(message, f"{create}, and set TPU_PIPELINES_S3_SECRET")
        if not self._context:
            raise CannotAskError(
                f"only the cluster knows whether {name} exists. Set the kubectl context with --kube-context"
            )
        return self._find(name, "read_namespaced_secret", create)

    # Cluster

    @functools.cached_property
    def _kubernetes(self) -> Any:
        """Client of the Kubernetes API for the kubectl context `--kube-context`.

        Raises:
            InputError: If kubectl's configuration has no such context.
        """
        import kubernetes

        try:
            return kubernetes.config.new_client_from_config(context=self._context)
        except kubernetes.config.ConfigException as error:
            raise InputError(f"kubectl's configuration has no context {self._context!r}: {error}") from error

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the Kubernetes API and return its result.

        Raises:
            MissingError: If the object does not exist.
            InputError: If the cluster rejects the request.
            PlatformError: If the cluster does not respond, or fails.
        """
        from kubernetes.client import AuthorizationV1Api, CoreV1Api, CustomObjectsApi

        apis = {"custom_object": CustomObjectsApi, "access_review": AuthorizationV1Api}
        api = next((api for end, api in apis.items() if method.endswith(end)), CoreV1Api)(self._kubernetes)
        with cluster_errors(self._context):
            return getattr(api, method)(*arguments, **options, _request_timeout=TIMEOUT_SECONDS)

    def _nodes(self, machine: MachineSpec) -> str:
        """Check that there are nodes for a machine, or that a node pool on GKE adds one when a pod requests it.

        Return the result as a sentence.
        """
        selector = ",".join(f"{key}={value}" for key, value in node_selectors(machine, self._settings).items())
        if nodes := self._ask("list_node", label_selector=selector).items:
            return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} with {selector}"
        context = self._gke
        message = f"no node has {selector}"
        if not context or machine.machine_type == "cloud-tpu":  # Vertex's name for these machines is not GKE's.
            raise CannotAskError(f"{message}. Only the cluster's owner knows whether a node pool would add one")
        # google/container/v1/cluster_service.proto: Cluster.node_pools, autopilot, autoscaling.
        place = f"v1/projects/{context['project']}/locations/{context['location']}/clusters/{context['cluster']}"
        described = self._apis.get("container.googleapis.com", place)
        makes_pools = described.get("autopilot", {}).get("enabled") or described.get("autoscaling", {}).get(
            "enableNodeAutoprovisioning"
        )
        pools = [node["name"] for node in described.get("nodePools", ()) if _has(node, machine)]
        if pools or makes_pools:
            return f"{message} now, but {', '.join(pools) or 'the cluster'} adds them on demand"
        kind = machine.machine_type + (f" and {machine.tpu_topology}" if machine.slice.hosts > 1 else "")
        by_hand = "" if self._create_pool(machine) else f"create a node pool with a workload policy: {_TPU7X_POOLS}"
        raise LackError(f"{message}, and no node pool has {kind}", by_hand)

    def _quota(self, machine: MachineSpec) -> str:
        """Check Compute Engine's quota of GPUs in the cluster's region. Return the result as a sentence.

        Source: compute.regions.get, `quotas`.
        """
        if not (context := self._gke):
            raise CannotAskError("only a cluster on GKE has a quota")
        region = context["region"]
        name = ("PREEMPTIBLE_" if machine.spot else "") + machine.slice.generation.compute_quota
        needed = machine.slice.chips
        place = f"compute/v1/projects/{context['project']}/regions/{region}"
        quotas = {quota["metric"]: quota for quota in self._apis.get("compute.googleapis.com", place).get("quotas", ())}
        if name not in quotas:
            raise CannotAskError(f"the region {region} has no quota named {name}")
        return judge_quota(name, region, int(quotas[name].get("limit", 0)), needed, context["project"])

    def _create_pool(self, machine: MachineSpec) -> tuple[ShellCommand, ...]:
        """Return the command that creates an autoscaled node pool on GKE.

        Return an empty tuple if no command can create it.

        A pool of several hosts is one slice, and always has all of its nodes or none. Only such pools have a topology
        (AI-Hypercomputer/xpk src/xpk/core/nodepool.py at 367c838). A pool of TPU7x with several hosts needs a workload
        policy, which a person must choose (src/xpk/core/system_characteristics.py: requires_workload_policy).
        """
        context = self._gke
        generation = machine.slice.generation
        hosts = machine.slice.hosts
        if not context or machine.machine_type == "cloud-tpu" or (generation.name == "7x" and hosts > 1):
            return ()
        name = f"{generation.accelerator}-{machine.name}{'-spot' * machine.spot}"
        place = tuple(f"--{flag}={context[flag]}" for flag in ("cluster", "location", "project"))
        flags: list[str | CommandOutput] = [f"--machine-type={machine.machine_type}"]
        if hosts > 1:
            flags.append(f"--tpu-topology={machine.tpu_topology}")
        if machine.slice.is_gpu:  # https://cloud.google.com/kubernetes-engine/docs/how-to/gpus
            kind, count = generation.gke_accelerator, machine.accelerator_count
            flags.append(f"--accelerator=type={kind},count={count},gpu-driver-version=default")
        flags += ["--num-nodes=0", "--enable-autoscaling", "--min-nodes=0", f"--max-nodes={hosts}"]
        if machine.spot:
            flags.append("--spot")
        # By default a node may only read from buckets: https://cloud.google.com/kubernetes-engine/docs/how-to/access-scopes
        flags.append("--scopes=cloud-platform")
        # Not every zone of a region has this machine type.
        if not context["zone"]:
            where = f"--filter=name={machine.machine_type} AND zone~^{context['location']}-"
            of_one = (where, "--format=value(zone)", "--limit=1", f"--project={context['project']}")
            zone = ("gcloud", "compute", "machine-types", "list", *of_one)
            flags.append(CommandOutput("--node-locations=", zone))
        pools = ("gcloud", "container", "node-pools")
        there = (*pools, "describe", name, *place)
        return (ShellCommand((*pools, "create", name, *place, *flags), unless=there),)

    def _service_account(self) -> str:
        runner, origin = (_RUNNER_OF_A_PROFILE, "the profile") if self._is_shared else (_RUNNER, "the server")
        remedy = f"ask the cluster's administrator, because it is created with {origin}"
        return self._find(runner, "read_namespaced_service_account", remedy)

    def _queue(self) -> str:
        """Check that Kueue's LocalQueue exists. Return its name and namespace as the finding.

        https://kueue.sigs.k8s.io/docs/concepts/local_queue
        """
        name = self._settings.kueue_queue
        namespace = self._namespace

        def find(version: str) -> None:
            self._ask("get_namespaced_custom_object", "kueue.x-k8s.io", version, namespace, "localqueues", name)

        with lacking(f"there is no LocalQueue {name} in {namespace}", f"kubectl get localqueues -n {namespace}"):
            try:
                find("v1beta2")
            except MissingError:  # The only version before Kueue 0.15; removed in 0.20 (its release notes).
                find("v1beta1")
        return f"{name} in {namespace}"

    def _retries(self) -> str:
        """Check that Argo's `retryPolicy` restarts training when its pod is preempted. Return the result as a sentence.

        KFP cannot set this policy.

        For Argo, a pod that its node shuts down is a failure, and a deleted pod is an error. `preempt` in
        tests/support/fakes/kubeflow.py has the sources.
        """
        # kubeflow/pipelines manifests/kustomize/third-party/argo/base/workflow-controller-configmap-patch.yaml
        name = "workflow-controller-configmap"
        namespace = _SERVERS_NAMESPACE if self._is_shared else self._namespace
        try:
            content = self._ask("read_namespaced_config_map", name, namespace).data or {}
        except MissingError as error:
            raise CannotAskError(
                f"the retryPolicy of Argo is unknown, because {namespace} has no ConfigMap {name}",
                "ask the cluster's administrator whether Argo's retryPolicy is Always",
            ) from error
        defaults: Any = yaml.safe_load(content.get("workflowDefaults") or "{}")
        for key in ("spec", "templateDefaults", "retryStrategy"):
            defaults = defaults.get(key) or {}
        policy = defaults.get("retryPolicy") or "OnFailure"
        if policy == "Always":
            return "training is restarted when its pod is lost, because retryPolicy is Always"
        left_out = "is evicted or shut down" if policy == "OnError" else "is deleted"
        raise LackError(
            f"training is not restarted when its pod {left_out}, because Argo's retryPolicy is {policy}",
            "ask the cluster's administrator to set spec.templateDefaults.retryStrategy.retryPolicy to Always, in "
            f"workflowDefaults of the ConfigMap {name} in {namespace}",
        )

    def _jobsets(self) -> str:
        """Check that the cluster supports JobSets, which start several hosts. Return the API version as the finding."""
        installation = "https://jobset.sigs.k8s.io/docs/installation"
        with lacking(f"the cluster does not support {GROUP}/{VERSION}", installation):
            self._ask("list_namespaced_custom_object", GROUP, VERSION, self._namespace, PLURAL, limit=1)
        return f"{GROUP}/{VERSION}"

    @property
    def _account(self) -> str:
        """Service account of the steps, in the form `NAMESPACE:NAME`."""
        return f"{self._namespace}:{_RUNNER_OF_A_PROFILE if self._is_shared else _RUNNER}"

    def _install_jobsets(self) -> tuple[ShellCommand, ...]:
        context = f"--context={self._context}"
        apply = ("kubectl", "apply", "--server-side", context, "-f", _JOBSETS)
        return (ShellCommand(apply, unless=("kubectl", "get", "crd", f"{PLURAL}.{GROUP}", context)),)

    def _grant_jobsets(self) -> tuple[ShellCommand, ...]:
        """Return the commands that create a role with all permissions that the step needs, and bind the role."""
        context = f"--context={self._context}"
        name = "tpu-pipelines-jobsets"
        place = (context, f"--namespace={self._namespace}")
        rules: dict[str, list[str]] = {}
        for verb, what in RIGHTS:
            rules.setdefault(what, []).append(verb)
        roles = [
            {"apiGroups": [GROUP if what == PLURAL else ""], "resources": [what], "verbs": verbs}
            for what, verbs in rules.items()
        ]
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": name, "namespace": self._namespace},
            "rules": roles,
        }
        granted = (f"--role={name}", f"--serviceaccount={self._account}")
        bind = ("kubectl", "create", "rolebinding", name, *place, *granted)
        return (
            ShellCommand(("kubectl", "apply", context, "-f", "-"), stdin=json.dumps(role)),
            ShellCommand(bind, unless=("kubectl", "get", "rolebinding", name, *place)),
        )

    def _right_to_jobsets(self) -> str:
        account = self._account
        if denied := [f"{verb} {what}" for verb, what in RIGHTS if not self._may(account, verb, what)]:
            raise LackError(
                f"the steps' service account {account} may not {', '.join(denied)} in {self._namespace}",
                "grant the permissions with a role; --script FILE writes the commands",
            )
        return f"{account} may create JobSets"

    def _may(self, account: str, verb: str, what: str) -> bool:
        """Return whether the cluster allows a service account to do `verb` with the resource `what`."""
        resource, _, subresource = what.partition("/")
        attributes = {
            "namespace": self._namespace,
            "verb": verb,
            "group": GROUP if resource == PLURAL else "",
            "resource": resource,
            "subresource": subresource,
        }
        user = f"system:serviceaccount:{account}"
        review = {"metadata": {}, "spec": {"user": user, "resourceAttributes": attributes}}
        review = self._ask("create_namespaced_local_subject_access_review", self._namespace, review)
        return bool(review.status.allowed)

    def _find(self, name: str, method: str, remedy: str) -> str:
        with lacking(f"there is no {name} in {self._namespace}", remedy):
            self._ask(method, name, self._namespace)
        return f"{name} in {self._namespace}"


def _has(pool: dict[str, Any], machine: MachineSpec) -> bool:
    """Return whether the nodes of a pool have a machine's type and, for a slice of several hosts, its topology."""
    config: dict[str, Any] = pool.get("config", {})
    # google/container/v1/cluster_service.proto: NodePool.PlacementPolicy.tpu_topology. A pool of single hosts may lack
    # it, because its machine type determines the topology.
    topology = pool.get("placementPolicy", {}).get("tpuTopology", "")
    is_shaped = topology == machine.tpu_topology or (not topology and machine.slice.hosts == 1)
    gpus = [(gpu.get("acceleratorType"), int(gpu.get("acceleratorCount", 0))) for gpu in config.get("accelerators", ())]
    if machine.slice.is_gpu:  # NodeConfig.accelerators: an N1 machine type does not determine the GPU.
        is_shaped = (machine.slice.generation.gke_accelerator, machine.accelerator_count) in gpus
    return is_shaped and config.get("machineType") == machine.machine_type and bool(config.get("spot")) == machine.spot
