"""Claims about buckets, against servers in this process: those of every store, then those of S3 alone.

test_storage.py has those of Cloud Storage alone.
"""

import dataclasses
import json

import pytest
import yaml
from huggingface_hub.errors import OfflineModeIsEnabled

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.files import object_stores, storage
from tpu_components.core.files.location import Location
from tpu_components.create_tfrecords import WriteParams, plan_dataset
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.pipeline import cache_keys
from tpu_pipelines.pipeline.compile import compile_pipeline
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.submission.submit import plan_submission, put_carried


def put(name, content):
    object_stores.s3_client().put_object(Bucket="bucket", Key=name, Body=content)


@pytest.fixture
def folder(s3_server, tmp_path):
    """A place of its own in the bucket."""
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture(params=["gs", "s3"])
def place(request, tmp_path):
    """A folder of its own in a bucket of every store."""
    request.getfixturevalue({"gs": "bucket", "s3": "s3_server"}[request.param])
    return f"{request.param}://bucket/{tmp_path.name}"


def write_tree(root):
    """Write some files below a folder of this machine or of a bucket."""
    files = {"a.txt": b"alpha", "sub/b.txt": b"beta" * 1000, "sub/deep/c.txt": b""}
    for name, content in files.items():
        storage.write_file(f"{root}/{name}", content)
    return files


def test_a_folder_goes_there_and_comes_back_without_its_neighbours(place, tmp_path):
    files = write_tree(tmp_path / "here")
    storage.upload(tmp_path / "here", f"{place}/there")
    storage.write_file(f"{place}/there-not/x", b"x")
    for root, cache in ((f"{place}/there", "cache"), (f"{place}/there/", "other")):
        back = storage.localize(root, tmp_path / cache)
        found = {path.relative_to(back).as_posix(): path.read_bytes() for path in back.rglob("*") if path.is_file()}
        assert found == files


def test_a_scheme_in_capitals_names_the_same_files(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loud = f"{place[:2].upper()}{place[2:]}"
    files = write_tree(loud)
    assert [file.name for file in storage.list_files(place)] == sorted(files)
    assert storage.read_bytes(f"{loud}/a.txt") == b"alpha"
    assert storage.common_folder([f"{loud}/a.txt", f"{loud}/sub/b.txt"]) == loud
    assert [file.name for file in storage.stat_paths([f"{loud}/a.txt", f"{loud}/sub/b.txt"])] == ["a.txt", "sub/b.txt"]
    assert list(tmp_path.iterdir()) == [], "no folder is named after the scheme"


def test_a_file_goes_there_and_comes_back(place, tmp_path):
    write_tree(tmp_path)
    storage.upload(tmp_path / "a.txt", f"{place}/there/a.txt")
    back = storage.localize(f"{place}/there/a.txt", tmp_path / "cache")
    assert (back.name, back.read_bytes()) == ("a.txt", b"alpha")
    assert storage.read_bytes(f"{place}/there/a.txt") == b"alpha"
    assert [storage.exists(f"{place}/{name}") for name in ("there/a.txt", "there", "none")] == [True, False, False]


@pytest.mark.parametrize("slash", ["", "/"])
def test_list_files_lists_a_bucket_like_a_disk(place, tmp_path, slash):
    for root in (tmp_path, f"{place}/there"):
        write_tree(root)
    storage.write_file(f"{place}/there/marker/", b"")  # How a console makes a folder.
    storage.write_file(f"{place}/there/.hidden/x", b"x")
    storage.write_file(f"{place}/there/sub/.DS_Store", b"x")
    storage.write_file(f"{place}/there-not/x", b"x")
    here, there = storage.list_files(str(tmp_path)), storage.list_files(f"{place}/there{slash}")
    assert [(file.name, file.num_bytes) for file in there] == [(file.name, file.num_bytes) for file in here]


def test_a_version_changes_with_the_content_and_never_else(place):
    versions = []
    for content in (b"one", b"one", b"two"):
        storage.write_file(f"{place}/file", content)
        versions.append(storage.list_files(place)[0].version)
    assert versions[0] == versions[1] != versions[2]


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_part_of_a_file_is_read_and_a_file_from_any_place(place, tmp_path, is_remote):
    uri = f"{place if is_remote else tmp_path}/file"
    storage.write_file(uri, bytes(range(100)))
    assert storage.read_range(uri, 10, 3) == bytes([10, 11, 12])
    assert storage.read_range(uri, 98, 9) == bytes([98, 99])
    with storage.open_file(uri) as file:
        assert (file.seek(-2, 2), file.read()) == (98, bytes([98, 99]))
        assert (file.seek(5), file.read(2), file.tell()) == (5, bytes([5, 6]), 7)
    with pytest.raises(InputError, match=f"'{uri}-none': there is no such file"):
        storage.open_file(f"{uri}-none")


def test_a_file_is_written_and_a_folder_with_what_describes_it_last(folder, tmp_path, request):
    for place in (folder, str(tmp_path / "disk")):
        assert storage.names_in(place) == set()
        storage.write_file(f"{place}/alone", b"1")
        with storage.staged_directory(f"{place}/deep") as staged:
            (staged / "a.json").write_text("{}")
            (staged / "z.npz").write_bytes(b"\0")
            assert storage.names_in(f"{place}/deep") == set()
        assert storage.names_in(place) - {"deep"} == {"alone"}
        assert storage.names_in(f"{place}/deep/") == {"a.json", "z.npz"}
    put_names, events = [], object_stores.s3_client().meta.events

    def note_name(context, **_):
        put_names.append(context["input_params"]["Key"].rpartition("/")[2])

    events.register("before-call.s3.PutObject", note_name)
    request.addfinalizer(lambda: events.unregister("before-call.s3.PutObject", note_name))
    with storage.staged_directory(folder) as staged:
        for name in ("a.json", "z.npz"):
            (staged / name).write_bytes(b"\0")
    assert put_names == ["z.npz", "a.json"]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://bucket/none", r"Cannot use 's3://bucket/none': there is no such file or bucket"),
        ("s3://nobody-has-this/x", r"there is no such file or bucket"),
        ("s3:///x", r"expected s3://BUCKET/PATH, received no bucket name"),
        ("s3://My_Bucket!/x", r"Cannot use 's3://My_Bucket!/x': expected the name of a bucket"),
    ],
)
def test_what_is_not_there_is_refused(s3_server, uri, message):
    with pytest.raises(InputError, match=message):
        storage.read_bytes(uri)


def test_a_store_that_does_not_answer_is_an_outage(s3_server, monkeypatch, request):
    request.addfinalizer(object_stores.s3_client.cache_clear)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    object_stores.s3_client.cache_clear()
    with pytest.raises(PlatformError, match=r"The object store does not respond to requests for 's3://bucket/x'"):
        storage.read_bytes("s3://bucket/x")


def test_nothing_is_uploaded_to_what_is_no_bucket(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"Cannot upload to '/elsewhere': expected gs://BUCKET/… or s3://BUCKET/…"):
        storage.upload(tmp_path / "file", "/elsewhere")


def test_a_csv_file_names_pictures_in_a_bucket(folder):
    name = folder.removeprefix("s3://bucket/")
    rows = [f"{folder}/photos/{label}/{number}.png,{label}" for label in ("cat", "dog") for number in range(10)]
    for row in rows:
        put(row.partition(",")[0].removeprefix("s3://bucket/"), b"a picture")
    put(f"{name}/labels.csv", "\n".join(["path,label", *rows]).encode())
    plan = plan_dataset(WriteParams(source=f"csv:{folder}/labels.csv"))
    assert plan.listing.root == f"{folder}/photos"
    assert len(plan.listing.keys) == 20


@pytest.mark.parametrize("is_whole_bucket", [False, True])
def test_files_that_a_model_declares_there_count_by_their_content(folder, is_whole_bucket):
    place = "s3://bucket" if is_whole_bucket else folder
    config = load_config("digits", [f"model={{name: digits_cnn, files: ['{place}']}}"])
    versions = set()
    for content in (b"1", b"2"):
        put(f"{folder.removeprefix('s3://bucket/')}/weights.npz", content)
        versions.add(cache_keys.step_keys(config, "v")["train_model"])
    assert len(versions) == 2


def test_a_kubeflow_run_reads_and_writes_there_and_its_model_travels_there(folder, tmp_path):
    name = folder.removeprefix("s3://bucket/")
    for label in ("cat", "dog"):
        for number in range(10):
            put(f"{name}/photos/{label}/{number}.png", f"{label} {number}".encode())
    model = tmp_path / "mine" / "model.py"
    model.parent.mkdir()
    model.write_text("def build_model(input_shape, num_classes):\n    return None\n")
    overrides = [f"data.source=images:{folder}/photos", f"model={model}", "training.batch_size_per_replica=8"]
    config = load_config("digits", [*overrides, "machine=v5e-4"])
    settings = Settings(kfp_host="http://kfp", bucket=f"{folder}/runs")
    plan = plan_submission(config, PLATFORMS["kubeflow"], settings)
    put_carried(plan)
    (place,) = plan.carried
    assert place.startswith(f"{folder}/runs/models/")
    assert storage.read_bytes(place) == plan.carried[place]
    assert f"{folder}/photos" in json.dumps(plan.jobs[0].specifications[0])
    with pytest.raises(InputError, match=r"data\.source must be on Cloud Storage, where the steps can read it"):
        compile_pipeline(config, PLATFORMS["vertex"], Settings())


PASSWORD = Settings(kfp_host="http://kfp", s3_secret="s3-credentials")


def signed_in(config, settings):
    """The steps whose pods have the secret, and what they have of it."""
    spec, platform = yaml.safe_load_all(compile_pipeline(config, PLATFORMS["kubeflow"], settings).package)
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    labels = {one["executorLabel"] for one in spec["components"].values() if "executorLabel" in one}
    assert executors.keys() <= labels
    return {name.removeprefix("exec-"): one["secretAsEnv"] for name, one in executors.items() if "secretAsEnv" in one}


@pytest.mark.parametrize(
    ("overrides", "bucket", "steps"),
    [
        ([], "gs://bucket", set()),
        (["data.source=npz:s3://bucket/digits.npz"], "gs://bucket", {"list-source", "create-tfrecords"}),
        (["gate.champion=s3://bucket/champion"], "", {"evaluate-model"}),
        (
            ["model={name: digits_cnn, files: [s3://bucket/stopwords.txt]}", "preflight={max_price_usd: 5}"],
            "gs://bucket",
            {"preflight-training", "train-model", "evaluate-model", "export-model"},
        ),
        (
            [],
            "s3://bucket",
            {"list-source", "create-tfrecords", "preflight-training", "train-model", "evaluate-model", "export-model"},
        ),
    ],
)
def test_the_pods_that_use_s3_have_its_secret_and_no_others(s3_server, overrides, bucket, steps):
    put("stopwords.txt", b"and")
    config = load_config("digits", [*overrides, "machine=v5e-4"])
    found = signed_in(config, dataclasses.replace(PASSWORD, bucket=bucket))
    assert set(found) == steps
    for needed, optional in found.values():
        assert {needed["secretName"], optional["secretName"]} == {"s3-credentials"}
        assert [one["envVar"] for one in needed["keyToEnv"]] == ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
        assert (needed.get("optional", False), optional["optional"]) == (False, True)


def test_where_no_secret_is_set_the_cluster_signs_its_pods_in():
    settings = dataclasses.replace(PASSWORD, bucket="s3://bucket", s3_secret="")
    assert signed_in(load_config("digits", ["machine=v5e-4"]), settings) == {}


def test_folders_are_listed_at_the_same_time_and_every_object_once():
    names = ["top", "a/", "a/b/1", "a/b/c/2", "a/3", "d/4", "e/f/g/5"]
    asked = []

    def list_below(prefix, is_level):
        asked.append((prefix, is_level))
        rest = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        here = [name for name in rest if not is_level or "/" not in name[:-1]]
        folders = {name.partition("/")[0] + "/" for name in rest if is_level and "/" in name[:-1]}
        objects = [object_stores.StoredFile(prefix + name, 0, "") for name in here if name]
        return objects, sorted(prefix + folder for folder in folders)

    def listed(prefix):
        return sorted(stored.name for stored in object_stores.list_by_prefix(list_below, prefix))

    assert listed("") == sorted(set(names) - {"a/"})
    levels = [asked[:1], sorted(asked[1:4]), sorted(asked[4:])]  # The folders of a level are asked for in any order.
    assert levels == [[("", True)], [(f"{name}/", True) for name in "ade"], [("a/b/", False), ("e/f/", False)]]
    assert listed("a/b") == ["a/b/1", "a/b/c/2"], "a prefix that is no folder is not looked into"


@pytest.mark.parametrize("bucket", ["photos;touch PWNED;", "$(id)", "-x", "a b", "`id`", "my\nbucket", "bucket-"])
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_name_that_no_bucket_has_is_refused_where_it_is_read(scheme, bucket):
    message = r"expected the name of a bucket, with letters and digits"
    with pytest.raises(InputError, match=message):
        _ = Location(f"{scheme}://{bucket}/flowers").bucket
    with pytest.raises(InputError, match=message):
        load_config("digits", [f"data.source=images:{scheme}://{bucket}/flowers".replace("\n", "\\n")])


@pytest.mark.parametrize(
    "uri", ["gs://my-bucket/a;b", "gs://a.b_c-1/x", "s3://My_Bucket/x", "gs://b", "hf://datasets/a/b"]
)
def test_names_that_buckets_have_are_taken_with_any_path(uri):
    place = Location(uri)
    assert f"{place.scheme}{place.bucket}/{place.key}".rstrip("/") == uri


def test_the_password_in_the_address_of_a_store_is_not_in_the_error(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://me:SECRET@127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    object_stores.s3_client.cache_clear()
    try:
        with pytest.raises(PlatformError, match="does not respond to requests for 's3://bucket/x'") as caught:
            storage.read_bytes("s3://bucket/x")
    finally:
        object_stores.s3_client.cache_clear()
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError("nothing there"), r"has no such data set, revision or file \(nothing there\)"),
        (OfflineModeIsEnabled("offline"), r"the Hugging Face hub rejected the request \(offline\)"),
    ],
)
def test_errors_of_the_hub_say_what_to_do(error, words):
    store = object_stores.HuggingFaceHub()
    with pytest.raises(InputError, match=words), store.reach("hf://datasets/a/b/c.csv"):
        raise error
