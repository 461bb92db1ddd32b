"""Each single thing that a run on Kubeflow may lack is named, and nothing else is."""

import dataclasses

import pytest
import yaml
from google.auth.credentials import AnonymousCredentials

from tests.support.fakes import execution
from tests.support.fakes.kubeflow import FakeKubeflow, Simulate
from tests.support.fakes.kubernetes import FakeKubernetes
from tests.support.fakes.vertex import FakeVertex
from tpu_components.core.base.container_images import Images
from tpu_components.core.base.states import Status
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.findings import ask_all
from tpu_pipelines.platforms.google_apis import GoogleApis
from tpu_pipelines.platforms.kubeflow.checks import KubeflowChecks

IMAGE = f"europe-docker.pkg.dev/my-project/images/steps@sha256:{'0' * 64}"
CONFIG = load_config("digits", ["machine={name: v5e-4, fallbacks: [v6e-4]}"])
CONTEXT = "gke_my-project_us-central1_training"
V5E = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "2x2",
}
SETTINGS = Settings(
    bucket="gs://my-bucket/pipelines",
    secrets={"storage-key": "/secrets/storage"},
    volumes={"checkpoints": "/mnt/checkpoints"},
    kueue_queue="tpu-queue",
    images=Images(IMAGE),
)


class World:
    """A server, its cluster and Google Cloud, in which nothing is missing."""

    def __init__(self, server, cluster, google):
        self.server, self.cluster, self.google = server, cluster, google
        self.settings = dataclasses.replace(SETTINGS, kfp_host=server.url)
        self.context = CONTEXT
        google.cloud.__init__()
        google.cloud.node_pools.append({"name": "tpus", "config": {"machineType": "ct6e-standard-4t"}})
        server.multi_user = False
        server.version = "2.17.0"
        server.recover()
        cluster.nodes, cluster.forbidden = [V5E, {}], []
        kinds = ("serviceaccounts/pipeline-runner", "secrets/storage-key", "persistentvolumeclaims/checkpoints")
        kinds = (*kinds, "localqueues/tpu-queue")
        cluster.objects = {f"kubeflow/{kind}" for kind in kinds}

    def examine(self):
        apis = GoogleApis(f"{self.google.url}/{{host}}", AnonymousCredentials())
        return ask_all(KubeflowChecks(CONFIG, self.settings, apis, self.context).checks())


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    path = tmp_path_factory.mktemp("kubectl") / "config"
    with FakeKubeflow(Simulate()) as server, FakeKubernetes() as cluster, FakeVertex(execution.Simulate()) as google:
        cluster.write_kubeconfig(path, CONTEXT)
        yield server, cluster, google, path


@pytest.fixture
def world(servers, no_sign_in, monkeypatch):
    *servers, kubeconfig = servers
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    return World(*servers)


def told(findings, state):
    return [(one.about, one.said, one.remedy) for one in findings if one.state is state]


def test_where_all_is_there_nothing_is_missing(world):
    findings = world.examine()
    assert {one.state for one in findings} == {Status.OK}, findings
    assert [one.said for one in findings if one.about.startswith("nodes")] == [
        "1 node with cloud.google.com/gke-tpu-accelerator=tpu-v5-lite-podslice,cloud.google.com/gke-tpu-topology=2x2",
        "no node has cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice,cloud.google.com/gke-tpu-topology=2x2 now, but "
        "tpus adds them on demand",
    ]


def _set(world, **values):
    world.settings = dataclasses.replace(world.settings, **values)


MISSING = {
    "server": (lambda world: _set(world, kfp_host="http://127.0.0.1:1"), "cannot be reached", "TPU_PIPELINES_KFP_HOST"),
    "API": (
        lambda world: world.server.fail_next(9, "NOT_FOUND", "healthz_service_get_healthz"),
        "does not have the API v2beta1",
        "version 2",
    ),
    "version": (
        lambda world: setattr(world.server, "version", "2.15.2"),
        "Kubeflow Pipelines 2.15.2 ignores part of a pipeline: expected 2.16 or later",
        "to upgrade it",
    ),
    "sign-in": (
        lambda world: world.server.fail_next(9, "UNAUTHENTICATED"),
        "the sign-in is not valid, or has expired",
        "KF_PIPELINES_SA_TOKEN_PATH",
    ),
    "sign-in ": (
        lambda world: world.server.fail_next(9, "PERMISSION_DENIED", "experiment_service_list_experiments"),
        "kubeflow-edit",
        "KF_PIPELINES_SA_TOKEN_PATH",
    ),
    "namespace": (
        lambda world: (
            setattr(world.server, "multi_user", True)
            or world.cluster.objects.add("kubeflow/serviceaccounts/default-editor")
        ),
        "multi-user mode",
        "TPU_PIPELINES_KFP_NAMESPACE",
    ),
    "object store": (lambda world: world.google.cloud.buckets.clear(), "there is no gs://my-bucket", "buckets create"),
    "image": (lambda world: world.google.cloud.images.clear(), "does not exist", "docker push"),
    "nodes v5e-4": (
        lambda world: world.cluster.nodes.clear(),
        "no node pool has ct5lp-hightpu-4t",
        "gcloud container node-pools create tpu-v5e-4 --cluster=training --location=us-central1 --project=my-project "
        "--machine-type=ct5lp-hightpu-4t --num-nodes=0 --enable-autoscaling --min-nodes=0 --max-nodes=1",
    ),
    "nodes v6e-4": (
        lambda world: world.google.cloud.node_pools[0]["config"].update(spot=True),
        "no node pool has ct6e-standard-4t",
        "--machine-type=ct6e-standard-4t",
    ),
    "service account": (
        lambda world: world.cluster.objects.remove("kubeflow/serviceaccounts/pipeline-runner"),
        "there is no pipeline-runner in kubeflow",
        "it is created with the server",
    ),
    "secret": (
        lambda world: world.cluster.objects.remove("kubeflow/secrets/storage-key"),
        "there is no storage-key in kubeflow",
        "kubectl create secret generic storage-key --from-file=… --namespace=kubeflow",
    ),
    "volume": (
        lambda world: world.cluster.objects.remove("kubeflow/persistentvolumeclaims/checkpoints"),
        "there is no checkpoints in kubeflow",
        "--namespace=kubeflow",
    ),
    "queue": (
        lambda world: world.cluster.objects.remove("kubeflow/localqueues/tpu-queue"),
        "there is no LocalQueue tpu-queue in kubeflow",
        "kubectl get localqueues -n kubeflow",
    ),
}
_WITHOUT_A_SERVER = {"server", "API", "sign-in", "namespace"}


@pytest.mark.parametrize("what", MISSING)
def test_each_single_thing_that_is_missing_is_named_and_no_other(world, what):
    change, said, remedy = MISSING[what]
    change(world)
    findings = world.examine()
    ((named, why, to_do),) = told(findings, Status.ERROR)
    assert named == what.strip()
    assert said in why
    assert remedy in to_do
    unknown = [one[0] for one in told(findings, Status.UNKNOWN)]
    assert unknown == (["service account"] if named in _WITHOUT_A_SERVER else [])


@pytest.mark.parametrize(
    ("what", "pattern"),
    [("nodes v5e-4", "/nodes$"), ("secret", "/secrets/"), ("service account", "/serviceaccounts/")],
)
def test_what_may_not_be_asked_is_unknown_and_says_why(world, what, pattern):
    world.cluster.forbidden = [pattern]
    findings = world.examine()
    assert told(findings, Status.ERROR) == []
    assert what in [one[0] for one in told(findings, Status.UNKNOWN)]
    assert all(f"{world.context} rejected the request: 403 " in one[1] for one in told(findings, Status.UNKNOWN))


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("2.16.0", Status.OK),
        ("v2.16.1-rc.1", Status.OK),
        ("2.20.3", Status.OK),
        ("3.0.0", Status.OK),
        ("2.2.0", Status.ERROR),
        ("2.14.0", Status.ERROR),
        ("1.8.22", Status.ERROR),
        ("unknown", Status.UNKNOWN),
        ("", Status.UNKNOWN),
        ("master-7b70c7b", Status.UNKNOWN),
    ],
)
def test_the_servers_version_is_judged_where_it_says_one(world, version, state):
    world.server.version = version
    (found,) = [one for one in world.examine() if one.about == "version"]
    assert found.state is state
    assert "are not known" in found.said or "expected 2.16 or later" in found.said
    if state is Status.UNKNOWN:
        assert found.remedy.startswith("kubectl get deployment ml-pipeline -n kubeflow ")


@pytest.mark.parametrize(("machine", "command"), [("7x-4", True), ("7x-1", True), ("7x-8", False)])
def test_only_a_slice_of_several_7x_hosts_needs_a_workload_policy(world, machine, command):
    found = findings_of(world, f"machine={machine}", "training.backend=jax")[f"nodes {machine}"]
    assert found.state is Status.ERROR
    assert found.remedy.startswith(f"gcloud container node-pools create tpu-{machine} ") is command
    assert ("workload policy" in found.remedy) is not command
    assert "--tpu-topology" not in found.remedy


def test_records_that_beam_writes_need_its_image(world):
    apis = GoogleApis(f"{world.google.url}/{{host}}", AnonymousCredentials())
    config = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, engine="beam"))
    checks = KubeflowChecks(config, world.settings, apis, world.context).checks()
    ((what, said, remedy),) = told(ask_all(checks), Status.ERROR)
    assert (what, said) == (
        "Beam image",
        "platforms cannot pull tpu-pipelines/beam:latest, because its name contains no registry",
    )
    assert remedy.endswith("set TPU_PIPELINES_BEAM_IMAGE=…@sha256:…")


def test_several_hosts_need_a_cluster_that_knows_jobsets(world):
    config = load_config("digits", ["machine=v5e-16", "training.backend=jax"])
    apis = GoogleApis(f"{world.google.url}/{{host}}", AnonymousCredentials())
    world.cluster.nodes.append({**V5E, "cloud.google.com/gke-tpu-topology": "4x4"})

    def missing():
        checks = KubeflowChecks(config, world.settings, apis, world.context)
        return told(ask_all(checks.checks()), Status.ERROR)

    assert missing() == [
        (
            "JobSets",
            "the cluster does not support jobset.x-k8s.io/v1alpha2",
            "https://jobset.sigs.k8s.io/docs/installation",
        )
    ]
    world.cluster.jobsets, user = {}, "system:serviceaccount:kubeflow:pipeline-runner"
    world.cluster.rights = {(user, verb, what) for verb in ("get", "list") for what in ("pods", "pods/log")}
    ((what, said, remedy),) = missing()
    rights = "get jobsets, create jobsets, delete jobsets"
    assert (what, said) == (
        "permission to use JobSets",
        f"the steps' service account kubeflow:pipeline-runner may not {rights} in kubeflow",
    )
    assert remedy == "grant the permissions with a role; --script FILE writes the commands"
    world.cluster.rights |= {(user, verb, "jobsets.jobset.x-k8s.io") for verb in ("get", "create", "delete")}
    assert missing() == []
    world.cluster.jobsets = None


def findings_of(world, *overrides):
    apis = GoogleApis(f"{world.google.url}/{{host}}", AnonymousCredentials())
    checks = KubeflowChecks(load_config("digits", overrides), world.settings, apis, world.context).checks()
    return {one.about: one for one in ask_all(checks)}


_IN_A_ZONE = (
    '--scopes=cloud-platform --node-locations="$(gcloud compute machine-types list '
    "'--filter=name=ct5lp-hightpu-4t AND zone~^us-central1-' '--format=value(zone)' --limit=1 --project=my-project)\""
)


@pytest.mark.parametrize(
    ("placement", "state"),
    [({}, Status.ERROR), ({"tpuTopology": "2x4"}, Status.ERROR), ({"tpuTopology": "4x4"}, Status.OK)],
)
def test_a_pool_of_several_hosts_is_of_one_topology(world, placement, state):
    """A pool of single hosts has the same machine type, and never schedules a slice."""
    pool = {"name": "tpus", "config": {"machineType": "ct5lp-hightpu-4t"}, "placementPolicy": placement}
    world.google.cloud.node_pools = [pool]
    found = findings_of(world, "machine=v5e-16", "training.backend=jax")["nodes v5e-16"]
    assert found.state is state
    if state is Status.ERROR:
        assert "no node pool has ct5lp-hightpu-4t and 4x4" in found.said
        assert found.remedy.endswith(
            "--machine-type=ct5lp-hightpu-4t --tpu-topology=4x4 --num-nodes=0 --enable-autoscaling --min-nodes=0 "
            f"--max-nodes=4 {_IN_A_ZONE}"
        )


def test_a_pool_of_a_slice_is_none_for_a_single_host(world):
    world.cluster.nodes.clear()
    pool = {"config": {"machineType": "ct5lp-hightpu-4t"}, "placementPolicy": {"tpuTopology": "4x4"}}
    world.google.cloud.node_pools = [{"name": "tpus", **pool}]
    found = findings_of(world, "machine=v5e-4")["nodes v5e-4"]
    assert found.state is Status.ERROR
    assert found.remedy.endswith(
        f"--machine-type=ct5lp-hightpu-4t --num-nodes=0 --enable-autoscaling --min-nodes=0 --max-nodes=1 {_IN_A_ZONE}"
    )


_ARGO = "kubeflow/configmaps/workflow-controller-configmap"


@pytest.mark.parametrize("machine", ["{name: v5e-4, spot: true}", "v5e-16"])
@pytest.mark.parametrize(
    ("defaults", "left_out"),
    [
        ({"retryStrategy": {"limit": "2", "retryPolicy": "OnError"}}, "is evicted or shut down"),
        ({}, "is deleted"),
        ({"retryStrategy": {"limit": "2", "retryPolicy": "Always"}}, ""),
    ],
)
def test_what_the_cluster_starts_again_is_said(world, machine, defaults, left_out):
    content = {"workflowDefaults": yaml.safe_dump({"spec": {"templateDefaults": defaults}})} if defaults else {}
    world.cluster.config_maps = {_ARGO: content}
    found = findings_of(world, f"machine={machine}", "training.backend=jax")["retries"]
    assert found.state is (Status.ERROR if left_out else Status.OK)
    assert left_out in found.said
    assert (
        "retryPolicy to Always, in workflowDefaults of the ConfigMap workflow-controller-configmap in kubeflow"
        in found.remedy
    ) == bool(left_out)
    world.cluster.config_maps = {}
    assert findings_of(world, f"machine={machine}", "training.backend=jax")["retries"].state is Status.UNKNOWN
    assert "retries" not in findings_of(world, "machine=v5e-4")


def test_pods_that_use_s3_need_its_secret(world):
    _set(world, bucket="s3://my-bucket/pipelines", s3_secret="s3-credentials")
    ((what, said, remedy),) = told(world.examine(), Status.ERROR)
    assert (what, said) == ("S3", "there is no s3-credentials in kubeflow")
    assert remedy == (
        "kubectl create secret generic s3-credentials --from-literal=AWS_ACCESS_KEY_ID=… "
        "--from-literal=AWS_SECRET_ACCESS_KEY=… --namespace=kubeflow"
    )
    world.cluster.objects.add("kubeflow/secrets/s3-credentials")
    assert told(world.examine(), Status.ERROR) == []
    _set(world, s3_secret="")
    unknown = told(world.examine(), Status.UNKNOWN)
    assert [one[0] for one in unknown] == ["object store", "S3"]
    assert "sign in with the role of their service account, or do not sign in" in unknown[1][1]


def test_a_cluster_that_is_not_named_is_not_asked(world):
    world.context = ""
    findings = world.examine()
    assert told(findings, Status.ERROR) == []
    assert told(findings, Status.UNKNOWN) == [
        ("cluster", "not checked; set the kubectl context with --kube-context", "")
    ]


def test_a_context_that_kubectl_does_not_have_is_unknown(world):
    world.context = "elsewhere"
    findings = world.examine()
    assert told(findings, Status.ERROR) == []
    assert all("no context 'elsewhere'" in one[1] for one in told(findings, Status.UNKNOWN))


def test_nodes_that_a_cluster_makes_as_they_are_asked_for_are_there(world):
    world.cluster.nodes.clear()
    world.google.cloud.cluster = {"autopilot": {"enabled": True}}
    assert told(world.examine(), Status.ERROR) == []


def test_the_registry_of_a_cluster_and_a_store_elsewhere_cannot_be_asked(world):
    _set(world, bucket="minio://runs/digits", images=Images("localhost:1/steps:1"))
    findings = world.examine()
    assert told(findings, Status.ERROR) == []
    assert [one[0] for one in told(findings, Status.UNKNOWN)] == ["object store", "image"]


def test_gpus_need_nodes_of_their_kind_and_compute_engines_quota(world):
    found = findings_of(world, "machine=l4-2")
    assert found["quota l4-2"].said == "the quota is 4 in us-central1, and 2 are needed"
    assert found["nodes l4-2"].state is Status.ERROR
    assert "no node has cloud.google.com/gke-accelerator=nvidia-l4" in found["nodes l4-2"].said
    assert "node-pools create gpu-l4-2 " in found["nodes l4-2"].remedy
    assert "--accelerator=type=nvidia-l4,count=2,gpu-driver-version=default --num-nodes=0" in found["nodes l4-2"].remedy
    gpus = [{"acceleratorType": "nvidia-l4", "acceleratorCount": "2"}]
    world.google.cloud.node_pools = [
        {"name": "gpus", "config": {"machineType": "g2-standard-24", "accelerators": gpus}}
    ]
    assert findings_of(world, "machine=l4-2")["nodes l4-2"].state is Status.OK
    assert "PREEMPTIBLE_NVIDIA_L4_GPUS" in findings_of(world, "machine={name: l4-2, spot: true}")["quota l4-2"].said
    lacking = findings_of(world, "machine=l4-8")["quota l4-8"]
    assert lacking.state is Status.ERROR
    assert "NVIDIA_L4_GPUS in us-central1 is 4, but 8 are needed" in lacking.said


def test_a_cluster_that_does_not_answer_is_unknown_by_its_name(world, servers, monkeypatch, tmp_path):
    text = servers[-1].read_text()
    config = tmp_path / "kubeconfig"
    config.write_text(text.replace(world.cluster.url, "http://127.0.0.1:1"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    unknown = told(world.examine(), Status.UNKNOWN)
    assert any(said.startswith(f"{world.context} does not respond: ") for _, said, _ in unknown), unknown
