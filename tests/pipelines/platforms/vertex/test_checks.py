"""Each single thing that a run on Vertex AI may lack is named, and nothing else is."""

import dataclasses
import re

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1 as v1

from tests.support.fakes.execution import Simulate
from tests.support.fakes.google_cloud import AGENT, ATTACHMENT, KEY, ME, NETWORK, TRAINER, Bucket, bind
from tests.support.fakes.vertex import FakeVertex, canonical
from tpu_components.core.base.container_images import Images
from tpu_components.core.base.states import Status
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.findings import as_lines, ask_all
from tpu_pipelines.platforms.google_apis import GoogleApis
from tpu_pipelines.platforms.vertex.checks import VertexChecks

IMAGE = f"europe-docker.pkg.dev/my-project/images/steps@sha256:{'0' * 64}"
SERVING = f"europe-docker.pkg.dev/my-project/images/serving@sha256:{'0' * 64}"
CONFIG = load_config(
    "digits",
    [
        "machine={name: v5e-4, fallbacks: [v6e-4, {name: v5e-4, region: us-east1}]}",
        f"deploy={{registry: vertex, endpoint: digits, serving_image: '{SERVING}'}}",
    ],
)
SETTINGS = Settings(
    project="my-project",
    region="us-central1",
    bucket="gs://my-bucket/pipelines",
    service_account=TRAINER,
    network=NETWORK,
    images=Images(IMAGE),
)


@pytest.fixture(scope="module")
def service():
    with FakeVertex(Simulate()) as fake:
        yield fake


@pytest.fixture
def fake(service):
    """Vertex AI, and a project in which nothing is missing."""
    service.cloud.__init__()
    service.recover()
    return service


def examine(fake, config=CONFIG, settings=SETTINGS, credentials=None):
    settings = dataclasses.replace(settings, vertex_endpoint=fake.url)
    apis = GoogleApis(f"{fake.url}/{{host}}", credentials or AnonymousCredentials())
    return ask_all(VertexChecks(config, settings, apis).checks())


def told(findings, state):
    return [(one.about, one.said, one.remedy) for one in findings if one.state is state]


def test_where_all_is_there_nothing_is_missing_and_nothing_was_written(fake):
    findings = examine(fake)
    assert {one.state for one in findings} == {Status.OK}, findings
    assert findings[0].said == f"user:{ME}"
    verbs = {(verb, target.rpartition(":")[2].partition("?")[0]) for verb, target in fake.cloud.calls if verb != "GET"}
    assert verbs == {("POST", "testIamPermissions"), ("POST", "getIamPolicy")}


def _without(items, *names):
    for name in names:
        items.remove(name) if isinstance(items, list | set) else items.pop(name)


def _set(target, name, value):
    setattr(target, name, value)


MISSING = {
    "project": (lambda cloud: cloud.project.update(state="DELETE_REQUESTED"), "DELETE_REQUESTED", "undelete"),
    "APIs": (
        lambda cloud: _without(cloud.services, "aiplatform.googleapis.com"),
        "aiplatform.googleapis.com is not enabled",
        "gcloud services enable aiplatform.googleapis.com --project=my-project",
    ),
    "your role": (
        lambda cloud: _without(cloud.allowed, "aiplatform.pipelineJobs.create"),
        "you lack the permissions aiplatform.pipelineJobs.create",
        f"gcloud projects add-iam-policy-binding my-project --member=user:{ME} --role=roles/aiplatform.user",
    ),
    "bucket": (
        lambda cloud: _set(cloud.buckets["my-bucket"], "location", "EUROPE-WEST4"),
        "gs://my-bucket is in europe-west4, but runs are in us-central1",
        "--location=us-central1",
    ),
    "bucket ": (
        lambda cloud: cloud.buckets.update({"my-bucket": Bucket("US", "multi-region")}),
        "gs://my-bucket is in us (multi-region), but training on Vertex AI supports only buckets in one region",
        "--location=us-central1",
    ),
    "bucket  ": (
        lambda cloud: cloud.buckets.update({"my-bucket": Bucket("NAM4", "dual-region")}),
        "gs://my-bucket is in nam4 (dual-region)",
        "--location=us-central1",
    ),
    "image": (lambda cloud: _without(cloud.images, "my-project/images/steps"), "does not exist", "docker push"),
    "image ": (
        lambda cloud: cloud.images.update({"my-project/images/steps": ["linux/arm64"]}),
        "is for linux/arm64, but TPU hosts need linux/amd64",
        "docker build --platform=linux/amd64",
    ),
    "serving image": (lambda cloud: _without(cloud.images, "my-project/images/serving"), "does not exist", "SERVING"),
    "service account": (
        lambda cloud: _set(cloud.accounts[TRAINER], "disabled", True),
        f"{TRAINER} is disabled",
        f"gcloud iam service-accounts enable {TRAINER}",
    ),
    "acting as it": (
        lambda cloud: _set(cloud.accounts[TRAINER], "allowed", []),
        f"you lack the permissions iam.serviceAccounts.actAs on {TRAINER}",
        f"gcloud iam service-accounts add-iam-policy-binding {TRAINER} --member=user:{ME} "
        "--role=roles/iam.serviceAccountUser",
    ),
    "its roles": (
        lambda cloud: _set(cloud, "policy", bind("roles/viewer", f"serviceAccount:{TRAINER}")),
        f"{TRAINER} is not directly granted roles/aiplatform.user (aiplatform.metadataStores.get, ",
        f"gcloud projects add-iam-policy-binding my-project --member=serviceAccount:{TRAINER} "
        "--role=roles/aiplatform.user",
    ),
    "its buckets: my-bucket": (
        lambda cloud: _set(
            cloud.buckets["my-bucket"], "policy", bind("roles/storage.objectViewer", f"serviceAccount:{TRAINER}")
        ),
        "is not directly granted roles/storage.objectAdmin (storage.objects.create, storage.objects.delete)",
        f"gcloud storage buckets add-iam-policy-binding gs://my-bucket --member=serviceAccount:{TRAINER} ",
    ),
    "its acting": (
        lambda cloud: _set(cloud.accounts[TRAINER], "policy", {}),
        "is not directly granted roles/iam.serviceAccountUser (iam.serviceAccounts.actAs)",
        f"--member=serviceAccount:{TRAINER} --role=roles/iam.serviceAccountUser",
    ),
    "quota v6e-4": (
        lambda cloud: cloud.quotas["CustomModelTrainingV6ETPUPerProjectPerRegion"].update({"us-central1": 0}),
        "CustomModelTrainingV6ETPUPerProjectPerRegion in us-central1 is 0, but 4 are needed",
        "https://console.cloud.google.com/iam-admin/quotas?project=my-project",
    ),
    "quota v5e-4": (
        lambda cloud: cloud.quotas["CustomModelTrainingV5ETPUPerProjectPerRegion"].update({"us-east1": 3}),
        "CustomModelTrainingV5ETPUPerProjectPerRegion in us-east1 is 3, but 4 are needed",
        "iam-admin/quotas",
    ),
    "network": (lambda cloud: _without(cloud.networks, NETWORK), f"there is no {NETWORK}", "TPU_PIPELINES_NETWORK"),
    "network ": (
        lambda cloud: cloud.networks.update({NETWORK: {}}),
        "has no private services access",
        "gcloud services vpc-peerings connect --service=servicenetworking.googleapis.com --network=my-network",
    ),
}


@pytest.mark.parametrize("what", MISSING)
def test_each_single_thing_that_is_missing_is_named_and_no_other(fake, what):
    change, said, remedy = MISSING[what]
    change(fake.cloud)
    findings = examine(fake)
    ((named, why, to_do),) = told(findings, Status.ERROR) + told(findings, Status.HINT)
    assert named == what.strip()
    assert said in why
    assert remedy in to_do
    assert told(findings, Status.UNKNOWN) == []


def test_a_bucket_and_an_account_that_are_not_there_leave_open_who_may_use_them(fake):
    fake.cloud.buckets.clear()
    findings = examine(fake)
    ((what, said, remedy),) = told(findings, Status.ERROR)
    assert (what, said) == ("bucket", "there is no gs://my-bucket")
    assert remedy == (
        "gcloud storage buckets create gs://my-bucket --location=us-central1 --project=my-project "
        "--uniform-bucket-level-access"
    )
    assert [one[0] for one in told(findings, Status.UNKNOWN)] == ["its buckets: my-bucket"]
    fake.cloud.__init__()
    fake.cloud.accounts.clear()
    findings = examine(fake)
    assert [one[:2] for one in told(findings, Status.ERROR)] == [("service account", f"there is no {TRAINER}")]
    assert [one[0] for one in told(findings, Status.UNKNOWN)] == ["acting as it", "its acting"]


def test_a_model_of_ones_own_must_be_written_into_the_bucket_by_who_submits(fake, tmp_path):
    fake.cloud.buckets["my-bucket"].allowed = ["storage.objects.get", "storage.objects.list"]
    assert told(examine(fake), Status.ERROR) == [], "a ready model does not travel"
    (tmp_path / "my_model.py").write_text("def build_model(image_shape, num_classes):\n    return None\n")
    config = dataclasses.replace(
        CONFIG, training=dataclasses.replace(CONFIG.training, model=str(tmp_path / "my_model.py"))
    )
    ((what, said, remedy),) = told(examine(fake, config), Status.ERROR)
    assert what == "bucket"
    assert "you lack the permissions storage.objects.create, storage.objects.delete in gs://my-bucket" in said
    assert f"--member=user:{ME} --role=roles/storage.objectAdmin" in remedy


def test_records_that_are_written_on_dataflow_need_its_api_its_roles_and_an_image(fake):
    config = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, engine="beam"))
    found = {what: (said, remedy) for what, said, remedy in told(examine(fake, config), Status.ERROR)}
    assert found.keys() == {"APIs", "Beam image", "its Dataflow", "Dataflow's workers"}
    assert found["APIs"][1] == "gcloud services enable dataflow.googleapis.com --project=my-project"
    assert "TPU_PIPELINES_BEAM_IMAGE=" in found["Beam image"][1]
    bound = "gcloud projects add-iam-policy-binding my-project --member=serviceAccount:"
    assert found["its Dataflow"][1] == f"{bound}{TRAINER} --role=roles/dataflow.developer --condition=None"
    assert found["Dataflow's workers"][1] == f"{bound}{TRAINER} --role=roles/dataflow.worker --condition=None"

    fake.cloud.services.add("dataflow.googleapis.com")
    for role in ("developer", "worker"):
        fake.cloud.policy["bindings"] += bind(f"roles/dataflow.{role}", f"serviceAccount:{TRAINER}")["bindings"]
    assert [what for what, *_ in told(examine(fake, config), Status.ERROR)] == ["Beam image"]
    options = {"service_account_email": "worker@my-project.iam.gserviceaccount.com"}
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, beam_options=options))
    assert "Dataflow's workers" in [what for what, *_ in told(examine(fake, config), Status.ERROR)]
    options = {"runner": "FlinkRunner"}
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, beam_options=options))
    assert [what for what, *_ in told(examine(fake, config), Status.ERROR)] == ["Beam image"]


@pytest.mark.parametrize(("name", "about"), [("steps", "image"), ("serving", "serving image")])
def test_an_image_of_another_project_is_read_by_the_service_agent(fake, name, about):
    image = f"europe-docker.pkg.dev/other-project/images/{name}@sha256:{'0' * 64}"
    fake.cloud.images[f"other-project/images/{name}"] = ["linux/amd64", "linux/arm64", "unknown/unknown"]
    serving = dataclasses.replace(CONFIG, deploy=dataclasses.replace(CONFIG.deploy, serving_image=image))
    private = dataclasses.replace(SETTINGS, images=Images(image))
    asked = {"settings": private} if name == "steps" else {"config": serving}
    # The policy of the other project cannot be read, and may grant it.
    ((what, said, remedy),) = told(examine(fake, **asked), Status.UNKNOWN)
    assert what == f"{about}'s reader"
    assert "is not directly granted roles/artifactregistry.reader" in said
    assert (
        "gcloud artifacts repositories add-iam-policy-binding images --location=europe --project=other-project"
        in remedy
    )
    fake.cloud.repositories["images"] = bind("roles/artifactregistry.reader", AGENT)
    assert {one.state for one in examine(fake, **asked)} == {Status.OK}


@pytest.mark.parametrize(
    ("fields", "access", "words"),
    [
        ({}, "dedicated", "the existing endpoint is public, expected dedicated"),
        (
            {"private_service_connect_config": {"enable_private_service_connect": True}},
            "public",
            "it is a private endpoint, and only public endpoints are supported",
        ),
    ],
)
def test_an_endpoint_that_cannot_be_deployed_to_is_an_error(fake, fields, access, words):
    name = canonical("projects/my-project/locations/us-central1/endpoints/digits")
    fake.endpoints = {name: v1.Endpoint(name=name, display_name="digits", **fields)}
    config = dataclasses.replace(CONFIG, deploy=dataclasses.replace(CONFIG.deploy, endpoint_access=access))
    ((what, said, _),) = told(examine(fake, config), Status.ERROR)
    fake.endpoints.clear()
    assert (what, words in said) == ("endpoint", True)


TENSORBOARD = "projects/my-project/locations/us-central1/tensorboards/7"
OTHERS = dataclasses.replace(
    SETTINGS, network="", network_attachment=ATTACHMENT, encryption_key=KEY, tensorboard=TENSORBOARD
)


def test_a_key_an_attachment_and_a_tensorboard_are_asked_for_where_they_are_set(fake):
    fake.tensorboards = {canonical(TENSORBOARD): v1.Tensorboard(name=canonical(TENSORBOARD))}
    findings = examine(fake, settings=OTHERS)
    assert {one.state for one in findings} == {Status.OK}, findings
    assert {"key", "attachment", "tensorboard"} < {one.about for one in findings}
    fake.cloud.key_policy = {}
    ((what, said, remedy),) = told(examine(fake, settings=OTHERS), Status.ERROR)
    assert (what, "is not directly granted roles/cloudkms.cryptoKeyEncrypterDecrypter" in said) == ("key", True)
    assert remedy.startswith("gcloud kms keys add-iam-policy-binding my-key --keyring=my-ring --location=us-central1 ")
    fake.cloud.keys[KEY] = {"primary": {"state": "DISABLED"}}
    fake.cloud.networks.pop(ATTACHMENT)
    fake.tensorboards.clear()
    assert [(one[0], one[1]) for one in told(examine(fake, settings=OTHERS), Status.ERROR)] == [
        ("attachment", f"there is no {ATTACHMENT}"),
        ("key", f"the key {KEY} has the state DISABLED, expected ENABLED"),
        ("tensorboard", f"there is no {TENSORBOARD}"),
    ]


UNASKED = {
    "project": r"v3/projects/my-project$",
    "APIs": r"services:batchGet",
    "your role": r"v3/projects/my-project:testIam",
    "bucket": r"/b/my-bucket",
    "image": r"docker\.pkg\.dev",
    "service account": r"/serviceAccounts/[^:]+$",
    "acting as it": r"serviceAccounts/.*:testIam",
    "quota v5e-4": r"quotaInfos/CustomModelTrainingV5E",
    "network": r"/networks/",
}


@pytest.mark.parametrize("what", UNASKED)
def test_what_may_not_be_asked_is_unknown_and_says_why(fake, what):
    fake.cloud.forbidden = [UNASKED[what]]
    findings = examine(fake)
    assert told(findings, Status.ERROR) == []
    unknown = told(findings, Status.UNKNOWN)
    assert what in [one[0] for one in unknown]
    assert all("403" in one[1] and "Permission denied" in one[1] for one in unknown), unknown


ITSELF = f"{TRAINER} is not directly granted "
TELLS = "gcloud policy-intelligence troubleshoot-policy iam "


def test_what_a_group_a_condition_or_a_folder_may_grant_is_unknown_and_the_command_that_tells_is_named(fake):
    member = f"serviceAccount:{TRAINER}"
    conditional = {"role": "roles/aiplatform.user", "members": [member], "condition": {"expression": "false"}}
    for policy, parent, what in (
        (bind("roles/aiplatform.user", "group:team@example.com"), "", "a group"),
        (bind("roles/aiplatform.user", "principalSet://goog/public:all"), "", "a group"),
        ({"bindings": [conditional]}, "", "a condition"),
        ({}, "folders/7", "folders/7"),
    ):
        fake.cloud.policy = policy
        fake.cloud.project["parent"] = parent
        found = examine(fake)
        ((about, said, remedy),) = told(found, Status.UNKNOWN)
        assert about == "its roles"
        assert said.startswith(f"{ITSELF}roles/aiplatform.user (aiplatform.metadataStores.get, ")
        assert said.endswith(f", but {what} may grant it")
        assert remedy == (
            f"{TELLS}//cloudresourcemanager.googleapis.com/projects/my-project --principal-email={TRAINER} "
            "--permission=aiplatform.metadataStores.get"
        )
        (unknown,) = [one for one in found if one.state is Status.UNKNOWN]
        assert "--role=roles/aiplatform.user" in unknown.commands[0].text


@pytest.mark.parametrize("change", [{"condition": {"expression": "false"}}, {"members": ["projectEditor:my-project"]}])
def test_what_a_resource_s_own_policy_may_grant_indirectly_is_unknown(fake, change):
    """In a policy of version 1, a conditional binding would look like another role, which nobody has."""
    bucket = "//storage.googleapis.com/projects/_/buckets/my-bucket"
    account = f"serviceAccounts/{TRAINER}"
    for target, name, what, resource in (
        (fake.cloud.accounts[TRAINER], "policy", "its acting", f"//iam.googleapis.com/projects/my-project/{account}"),
        (fake.cloud.buckets["my-bucket"], "policy", "its buckets: my-bucket", bucket),
        (fake.cloud, "key_policy", "key", f"//cloudkms.googleapis.com/{KEY}"),
    ):
        before = getattr(target, name)
        (binding,) = before["bindings"]
        setattr(target, name, {"bindings": [{**binding, **change}]})
        found = told(examine(fake, settings=dataclasses.replace(OTHERS, tensorboard="")), Status.UNKNOWN)
        ((about, said, remedy),) = found
        assert (about, said.endswith(" may grant it")) == (what, True)
        assert remedy.startswith(f"{TELLS}{resource} --principal-email=")
        setattr(target, name, before)


def test_data_elsewhere_must_be_read_by_the_account_that_runs(fake):
    fake.cloud.buckets["my-data"] = Bucket(policy={})
    config = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, source="npz:gs://my-data/digits.npz"))
    ((what, said, remedy),) = told(examine(fake, config), Status.ERROR)
    assert (what, "is not directly granted roles/storage.objectViewer" in said) == ("its buckets: my-data", True)
    assert "add-iam-policy-binding gs://my-data" in remedy


def test_without_an_account_of_ones_own_it_is_the_default_one_that_is_asked_for(fake):
    findings = examine(fake, settings=dataclasses.replace(SETTINGS, service_account=""))
    found = told(findings, Status.ERROR)
    assert [one[0] for one in found] == ["its roles", "its buckets: my-bucket"]
    assert all("123456789012-compute@developer.gserviceaccount.com is not directly granted" in one[1] for one in found)


def test_a_region_from_which_a_bucket_is_far_is_said(fake):
    (bucket,) = [one.said for one in examine(fake) if one.about == "bucket"]
    assert bucket == (
        "gs://my-bucket in us-central1; you may write there; "
        "jobs in us-east1 use this bucket in another region, which takes more time and money"
    )
    elsewhere = load_config("digits", ["machine={name: v5e-4, region: us-east1}"])
    assert [one[0] for one in told(examine(fake, elsewhere), Status.ERROR)] == []
    fake.cloud.buckets["my-bucket"].location = "US-EAST1"
    (bucket,) = [one.said for one in examine(fake, elsewhere) if one.about == "bucket"]
    assert "in us-east1; you may write there; jobs in us-central1 use this bucket in another region" in bucket


@pytest.mark.parametrize(("machine", "quota"), [("v2-32", "V2PodTPUs"), ("v3-8", "V3TPUs"), ("v2-8", "V2TPUs")])
def test_pods_of_v2_and_v3_have_quotas_of_their_own(fake, machine, quota):
    for kind in ("V2PodTPUs", "V3PodTPUs", "V2TPUs", "V3TPUs"):
        name = f"CustomModelTraining{kind}PerProjectPerRegion"
        fake.cloud.quotas[name]["us-central1"] = 0 if kind == quota else 64
    config = load_config("digits", [f"machine={machine}"])
    ((what, said, _),) = told(examine(fake, config), Status.ERROR)
    assert what == f"quota {machine}"
    assert said.startswith(f"the quota CustomModelTraining{quota}PerProjectPerRegion in us-central1 is 0")


@pytest.mark.parametrize(
    ("machine", "python", "missing", "said"),
    [
        ("7x-4", "3.11.16", True, "steps@sha256:0+ has Python 3\\.11\\.16, but the machine requires 3\\.12 or later"),
        ("7x-4", "3.13.14", False, "linux/amd64$"),
        ("7x-4", "", False, "its Python version is unknown, but 3\\.12 or later is required$"),
        ("v5e-4", "3.11.16", False, "linux/amd64$"),
    ],
)
def test_a_tpu7x_wants_an_image_with_python_3_12(fake, machine, python, missing, said):
    fake.cloud.python = python
    findings = examine(fake, load_config("digits", [f"machine={machine}"]))
    (image,) = [one for one in findings if one.about == "image"]
    assert (image.state is Status.ERROR) == missing
    assert re.search(said, image.said)


def test_a_quota_that_is_not_said_is_unknown(fake):
    del fake.cloud.quotas["CustomModelTrainingV6ETPUPerProjectPerRegion"]["us-central1"]
    fake.cloud.quotas.pop("CustomModelTrainingV5ETPUPerProjectPerRegion")
    findings = examine(fake)
    assert [one.about for one in findings if one.state is Status.UNKNOWN] == [
        "quota v5e-4",
        "quota v6e-4",
        "quota v5e-4",
    ]


class _Expired(AnonymousCredentials):
    @property
    def valid(self):
        return False

    def refresh(self, request):
        from google.auth.exceptions import RefreshError

        raise RefreshError("Reauthentication is needed.")


def test_without_a_sign_in_nothing_else_is_asked(fake):
    findings = examine(fake, credentials=_Expired())
    assert [one.about for one in findings if one.state is Status.ERROR] == ["sign-in"]
    assert {one.state for one in findings[1:]} == {Status.UNKNOWN}
    assert findings[0].remedy == "gcloud auth application-default login"
    assert fake.cloud.calls == []
    lines = [text for _, text in as_lines(findings)]
    assert len(lines) == 3
    assert f"{len(findings) - 1} checks" in lines[-1]
    assert "project, APIs, " in lines[-1]


def test_a_service_that_is_away_is_unknown(fake):
    apis = GoogleApis("http://127.0.0.1:1/{host}", AnonymousCredentials())
    settings = dataclasses.replace(SETTINGS, vertex_endpoint="http://127.0.0.1:1")
    findings = ask_all(VertexChecks(CONFIG, settings, apis).checks())
    assert {one.state for one in findings[1:] if not one.about.endswith("image's reader")} == {Status.UNKNOWN}


@pytest.mark.parametrize(("spot", "limit", "state"), [("false", 2, Status.OK), ("true", 1, Status.ERROR)])
def test_gpus_count_against_a_quota_of_their_own(fake, spot, limit, state):
    name = f"CustomModelTraining{'Preemptible' * (spot == 'true')}NvidiaL4GpusPerProjectPerRegion"
    fake.cloud.quotas[name]["us-central1"] = limit
    config = load_config("digits", [f"machine={{name: l4-2, spot: {spot}}}"])
    (found,) = [one for one in examine(fake, config) if one.about == "quota l4-2"]
    assert found.state is state
    assert f"{limit}" in found.said
    assert "2 " in found.said
    assert state is Status.OK or name in found.commands[1].text
