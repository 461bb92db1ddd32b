import dataclasses
import re

import pytest

from tpu_components.core.base.container_images import Images
from tpu_components.core.base.errors import InputError
from tpu_pipelines.config.settings import Settings, load_settings, variable
from tpu_pipelines.platforms.platform import PLATFORMS, check_settings
from tpu_pipelines.platforms.vertex.settings_rules import check_region

ATTACHMENT = "projects/my-project/regions/us-west1/networkAttachments/my-attachment"
KEY = "projects/my-project/locations/us-west1/keyRings/my-ring/cryptoKeys/my-key"
TENSORBOARD = "projects/12345/locations/us-west1/tensorboards/678"


def test_nothing_is_required_until_it_is_asked_for():
    assert load_settings({}) == Settings()
    assert load_settings({"TPU_PIPELINES_PROJECT": "", "HOME": "/"}) == Settings()


def test_all_that_is_missing_is_reported_at_once():
    message = (
        r"Missing settings: project, bucket\. Set them in the environment, as in `export "
        r"TPU_PIPELINES_PROJECT=my-project TPU_PIPELINES_BUCKET=gs://my-bucket`, or in the YAML file"
    )
    with pytest.raises(InputError, match=message):
        Settings(region="us-west1").require("bucket", "region", "project")
    Settings(region="us-west1").require("region")


def test_every_example_is_what_its_setting_takes():
    examples = {field.name: field.metadata["example"] for field in dataclasses.fields(Settings) if field.metadata}
    settings = load_settings({variable(name): example for name, example in examples.items()})
    assert settings.kfp_host == examples["kfp_host"]
    assert settings.environment == {"XLA_FLAGS": "--xla_dump_to=/tmp/xla"}
    assert settings.volumes == {"checkpoints": "/mnt/checkpoints"}
    settings.require(*examples)


def test_images_are_read_with_the_other_settings():
    variables = {f"TPU_PIPELINES_{name}IMAGE": f"r.io/{name.lower()}1" for name in ("", "STEPS_", "BEAM_", "SERVING_")}
    assert load_settings(variables).images == Images("r.io/1", "r.io/steps_1", "r.io/beam_1", "r.io/serving_1")
    assert load_settings(dict.fromkeys(variables, "")).images == Images(), "an empty variable is not set"


def test_steps_without_an_image_of_their_own_use_the_trainings():
    one = {"TPU_PIPELINES_IMAGE": "r.io/train:1"}
    for variables in (one, one | {"TPU_PIPELINES_STEPS_IMAGE": "r.io/train:1"}):
        images = load_settings(variables).images
        assert (images.other_steps, images.steps) == ("", "r.io/train:1")
    images = load_settings(one | {"TPU_PIPELINES_STEPS_IMAGE": "r.io/steps:1"}).images
    assert images.other_steps == images.steps == "r.io/steps:1"


def test_the_environment_goes_before_the_file(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("project: from-file\nregion: us-west1\nlabels: {year: 2026}\n")
    settings = load_settings({"TPU_PIPELINES_PROJECT": "from-environment"}, file)
    assert (settings.project, settings.region) == ("from-environment", "us-west1")
    assert settings.labels == {"year": "2026"}


@pytest.mark.parametrize(
    ("name", "text", "received"),
    [
        ("project", "My Project", "'My Project'"),
        ("region", "us-west1-a", "'us-west1-a'"),
        ("bucket", "my-bucket", "'my-bucket'"),
        ("project", "-x:my-project", "'-x:my-project'"),
        ("bucket", "gs://photos;touch PWNED;/flowers", "'gs://photos;touch PWNED;/flowers'"),
        ("bucket", "gs://$(id)/flowers", r"'gs://\$\(id\)/flowers'"),
        ("bucket", "s3://my`id`", "'s3://my`id`'"),
        ("service_account", "trainer", "'trainer'"),
        ("service_account", "trainer@x;id", "'trainer@x;id'"),
        ("network", "projects/1/global/networks/a;id", "'projects/1/global/networks/a;id'"),
        ("network_attachment", f"{ATTACHMENT};id", f"'{ATTACHMENT};id'"),
        ("encryption_key", KEY.replace("my-key", "--help"), f"'{KEY.replace('my-key', '--help')}'"),
        ("tensorboard", f"{TENSORBOARD};id", f"'{TENSORBOARD};id'"),
        ("network", "default", "'default'"),
        ("network_attachment", "my-attachment", "'my-attachment'"),
        ("encryption_key", "my-key", "'my-key'"),
        ("tensorboard", "678", "'678'"),
        ("kueue_queue", "TPU queue", "'TPU queue'"),
        ("experiment", "Digits", "'Digits'"),
        ("provisioning", "spot", "'spot'"),
        (
            "network",
            "projects/my-project/global/networks/default",
            r"'projects/my-project/global/networks/default'\. The network "
            r"needs the number of the project: gcloud projects",
        ),
        ("labels", "Team=vision", "'Team=vision'"),
        ("labels", "team=Vision", "'team=Vision'"),
        ("environment", "9LIVES=1", "'9LIVES=1'"),
        ("kfp_host", "kubeflow", "'kubeflow'"),
        ("secrets", "key=secrets", "'key=secrets'"),
        ("volumes", "Claim=/mnt", "'Claim=/mnt'"),
        ("volumes", "my.claim=/mnt", r"'my\.claim=/mnt'\. Kubeflow uses the volume's name, .* at most 63 lower"),
        ("volumes", f"{'c' * 64}=/mnt", f"'{'c' * 64}=/mnt'"),
        ("volumes", "claim=/mnt:ro", r"'claim=/mnt:ro'\. .* path must be absolute, without ':'"),
        ("volumes", "claim=mnt", "'claim=mnt'"),
        ("secrets", "my.key=/secrets", r"'my\.key=/secrets'\. Kubeflow uses"),
        ("secrets", f"{'k' * 64}=/secrets", f"'{'k' * 64}=/secrets'"),
        ("secrets", "key=/a:b", "'key=/a:b'"),
        ("s3_secret", "a..b", r"'a\.\.b'"),
        ("s3_secret", "s" * 254, "'sss"),
        ("kueue_queue", "a..b", r"'a\.\.b'"),
        ("kueue_queue", "q" * 64, "'qqq"),
        ("environment", "NÄME=1", "'NÄME=1'"),
        ("region", "us-west١", "'us-west١'"),
    ],
)
def test_a_value_of_the_wrong_form_is_refused_with_an_example(name, text, received):
    message = rf"Cannot use the setting {name} \({variable(name)}\): expected a value such as .*\. Received: {received}"
    with pytest.raises(InputError, match=message):
        load_settings({variable(name): text})


@pytest.mark.parametrize(
    "address",
    ["hooks.slack.com/services/T0/SECRET", "file:///SECRET", "https://me:SECRET@host/x", "https://h/SECRET x"],
)
def test_the_address_of_a_webhook_is_not_shown_where_it_is_wrong(address):
    with pytest.raises(InputError, match=r"setting notify .* Received: another value, which may be secret") as refused:
        load_settings({"TPU_PIPELINES_NOTIFY": address})
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize("host", ["ftp://me:SECRET@host", "ftp://me:SEC/RET@host"])
def test_credentials_are_not_shown_where_an_address_is_wrong(host):
    with pytest.raises(InputError) as refused:
        load_settings({"TPU_PIPELINES_KFP_HOST": host})
    assert "SEC" not in str(refused.value)


def test_all_values_of_the_wrong_form_are_reported_at_once():
    with pytest.raises(InputError) as refused:
        Settings(project="My Project", region="us-west1", labels={"Team": "vision", "year": "!"})
    assert [line.split()[4] for line in str(refused.value).splitlines()] == ["project", "labels", "labels"]


@pytest.mark.parametrize("text", ["team", "team=vision,stage", ","])
def test_pairs_without_a_value_are_refused(text):
    with pytest.raises(InputError, match=rf"TPU_PIPELINES_LABELS: expected key=value,key=value\. Received: '{text}'"):
        load_settings({"TPU_PIPELINES_LABELS": text})


@pytest.mark.parametrize(
    ("volumes", "secrets", "message"),
    [
        (
            {"data": "/mnt"},
            {"data": "/secrets"},
            r"SECRETS=data=/secrets and .*VOLUMES=data=/mnt: .* in name\. Rena",
        ),
        (
            {"a": "/mnt", "b": "/mnt/"},
            {},
            r"VOLUMES=b=/mnt/ and .*VOLUMES=a=/mnt: the volumes of a pod must differ in path\. Cho",
        ),
        ({"a": "/mnt"}, {"b": "/mnt/x/.."}, r"SECRETS=b=/mnt/x/\.\. and .*VOLUMES=a=/mnt: .* in path"),
        ({}, {"a": "/mnt", "b": "//mnt"}, r"SECRETS=b=//mnt and .*SECRETS=a=/mnt"),
        ({"kfp-launcher": "/mnt"}, {}, r"VOLUMES=kfp-launcher=/mnt: Kubeflow uses kfp-launcher in every pod"),
        ({"data": "/gcs/"}, {}, r"VOLUMES=data=/gcs/: Kubeflow uses /gcs in every pod"),
        ({}, {"key": "/"}, r"SECRETS=key=/: Kubeflow uses / in every pod"),
    ],
)
def test_what_one_pod_could_not_mount_together_is_refused(volumes, secrets, message):
    with pytest.raises(InputError, match=f"Cannot mount (both )?TPU_PIPELINES_{message}"):
        Settings(volumes=volumes, secrets=secrets)


def test_names_and_paths_that_pods_mount_are_taken():
    settings = Settings(volumes={"c" * 63: "/mnt/a", "1": "/mnt/a/b"}, secrets={"a-b": "/mnt"}, s3_secret="s3.team-a")
    assert len(settings.volumes) == 2


def test_a_pair_that_is_given_twice_is_not_lost():
    with pytest.raises(
        InputError, match=r"Cannot use TPU_PIPELINES_VOLUMES: 'claim' appears twice\. Received: 'claim="
    ):
        load_settings({"TPU_PIPELINES_VOLUMES": "claim=/mnt/a, claim=/mnt/b"})


def test_vertex_takes_as_many_labels_as_its_jobs_have_left():
    labels = {f"label-{number}": "x" for number in range(56)}
    check_settings(PLATFORMS["kubeflow"], Settings(labels=labels))
    with pytest.raises(
        InputError,
        match=r"Too many labels: expected at most 55 in the setting labels \(TPU_PIPELINES_LABELS\) on Vertex AI",
    ):
        check_settings(PLATFORMS["vertex"], Settings(labels=labels))
    labels.popitem()
    check_settings(PLATFORMS["vertex"], Settings(labels=labels))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("projekt: x", r"Unknown key 'projekt' in settings: .* Did you mean 'project'\?"),
        ("images: {training: x}", r"Unknown key 'images' in settings"),
        ("image: x", r"the key image is not supported\."),
        ("labels: vision", r"settings\.labels is 'vision', expected a mapping, such as"),
        ("project: {a: b}", r"settings\.project is \{'a': 'b'\}, expected a text\."),
        ("project:", r"settings\.project is None, expected a text\."),
        ("region: no", r"settings\.region is False, expected a text"),
        ("- a", r"expected names and values, received list\."),
        ("a: [", r"it is not YAML"),
    ],
)
def test_a_file_with_mistakes_is_refused(tmp_path, content, message):
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        load_settings({}, file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=re.escape(f"Cannot read the settings {tmp_path / 'none.yaml'}: No such file")):
        load_settings({}, tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("target", "settings", "message"),
    [
        ("kubeflow", {"encryption_key": KEY}, r"encryption_key \(TPU_PIPELINES_ENCRYPTION_KEY\) is not supported on"),
        (
            "kubeflow",
            {"network_attachment": ATTACHMENT},
            r"network_attachment .* is not supported on the platform kubeflow",
        ),
        ("kubeflow", {"tensorboard": TENSORBOARD}, r"tensorboard .* is not supported on the platform kubeflow"),
        ("kubeflow", {"experiment": "digits-models"}, r"experiment .* is not supported on the platform kubeflow"),
        (
            "vertex",
            {"volumes": {"cache": "/mnt"}},
            r"volumes \(TPU_PIPELINES_VOLUMES\) is not supported on the platform ver",
        ),
        ("vertex", {"secrets": {"key": "/key"}}, r"secrets .* is not supported on the platform vertex"),
        ("vertex", {"kueue_queue": "tpus"}, r"kueue_queue .* on the platform vertex\. Received: 'tpus'"),
        ("vertex", {"provisioning": "flex-start"}, r"provisioning .* on the platform vertex\. Received: 'flex-start'"),
        (
            "vertex",
            {"network": "projects/1/global/networks/n", "network_attachment": ATTACHMENT},
            r"A job cannot have both a network and a network attachment",
        ),
        ("vertex", {"tensorboard": TENSORBOARD}, r"Add the setting service_account"),
        ("vertex", {"encryption_key": KEY, "region": "us-east1"}, r"encryption_key .* must be in the region us-east1"),
    ],
)
def test_what_a_platform_does_not_have_is_refused(target, settings, message):
    with pytest.raises(InputError, match=message):
        check_settings(PLATFORMS[target], Settings(**settings))


@pytest.mark.parametrize(
    "settings", [{"network_attachment": ATTACHMENT}, {"encryption_key": KEY}, {"tensorboard": TENSORBOARD}]
)
def test_what_is_of_a_region_must_be_of_the_jobs(settings):
    check_region(Settings(**settings), "us-west1")
    with pytest.raises(InputError, match=r"must be in the region us-east1, where the job runs"):
        check_region(Settings(**settings), "us-east1")
