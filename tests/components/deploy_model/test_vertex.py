"""Claims about versions and deployments on Vertex AI, through its real client against a stateful fake."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1 as v1

from tests.support.fakes.clock import Clock
from tests.support.fakes.execution import Simulate
from tests.support.fakes.vertex import FakeVertex, canonical
from tests.support.registered import write_model
from tests.support.signing_keys import write_keys
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, PlatformError
from tpu_components.core.component.step_inputs import params_from
from tpu_components.core.files import storage
from tpu_components.core.files.vertex_clients import VertexService
from tpu_components.core.registry.signing import verify_folder, verify_version
from tpu_components.core.registry.versions import model_digest
from tpu_components.core.registry.vertex import VertexRegistry
from tpu_components.deploy_model.params import DeployParams
from tpu_components.deploy_model.vertex import VertexTarget
from tpu_components.evaluate_model.rivals import find_champion
from tpu_components.serving.params import ServeParams

ROOT = "projects/my-project/locations/us-west1/models"
PARAMS = DeployParams(
    ROOT,
    "digits",
    artifacts_uri="gs://bucket/registry/",
    serving_image=f"europe-docker.pkg.dev/my-project/images/serving@sha256:{'0' * 64}",
    endpoint="digits",
)
LINEAGE = {"run": "My.Run", "dataset": {"fingerprint": "f" * 64}, "code": {"train_model": "c"}, "config": {"name": "x"}}
NOBODY = ""


MACHINE = {"machine_spec": {"machine_type": "n1-standard-2"}, "min_replica_count": 1}
KEY = "projects/my-project/locations/us-west1/keyRings/ring/cryptoKeys/key"


class Killed(BaseException):
    pass


class Mortal(VertexService):
    """Does nothing more once it has made so many calls."""

    calls_left = None

    def call(self, *arguments):
        if self.calls_left == 0:
            raise Killed
        result = super().call(*arguments)
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left == 0:
                raise Killed
        return result


class World:
    """A fake Vertex AI, whose models are as sure of class "a" as their weights say, and what is deployed to it."""

    def __init__(self, folder):
        self.clock, self.folder = Clock(), folder
        self.fake = FakeVertex(Simulate(), serve=self.serve, clock=self.clock.now)
        self.spoiled = []

    def serve(self, model):
        if self.spoiled and (error := self.spoiled.pop(0)):
            if isinstance(error, Exception):
                raise error
            return lambda instances, _: [error] * len(instances)
        sure = float(storage.read_bytes(f"{model.artifact_uri}/model.tflite").split()[0])
        return lambda instances, _: [{"probabilities": {"b": 1 - sure, "a": sure}} for _ in instances]

    def registry(self, service=None):
        service = service or VertexService("my-project", "us-west1", self.fake.url, AnonymousCredentials())
        return VertexRegistry(ROOT, "digits", service, Backoff(sleep=self.clock.sleep, clock=self.clock.seconds))

    def folders(self, sure):
        folder = self.folder / str(sure)
        return (folder / "model", folder / "export") if folder.exists() else write_model(folder, str(sure))

    def release(self, sure, champion=None, params=PARAMS, service=None):
        """What deploy_model does once a model has passed the gate; returns the version's number."""
        registry, folders = self.registry(service), self.folders(sure)
        target = VertexTarget(params, registry)
        facts = {"metrics": {"accuracy": 0.9}, "reasons": ["passed: it is better"], "lineage": LINEAGE}
        version = target.register(*folders, **facts, parent=registry.number_of(champion or ""))
        with target.serving(version, Sure(sure), champion):
            registry.promote(version.number, "champion", "it is better", champion)
        return version.number

    def digest(self, sure):
        return model_digest(self.folders(sure)[0])

    def endpoint(self, name):
        return self.fake.endpoints[canonical(f"{ROOT.removesuffix('/models')}/endpoints/{name}")]

    @property
    def versions(self):
        """Where the aliases of each version are."""
        return {
            model.version_id: sorted(model.version_aliases)
            for versions in self.fake.models.values()
            for model in versions
        }

    @property
    def endpoints(self):
        """By the endpoint's id, the versions that are deployed, and their shares of the traffic; none that is empty."""
        return {
            name.rpartition("/")[2]: {
                one.model_version_id: endpoint.traffic_split.get(one.id, 0) for one in endpoint.deployed_models
            }
            for name, endpoint in self.fake.endpoints.items()
            if endpoint.deployed_models
        }


class Sure:
    """A health check: who is asked has to be as sure of "a" as this."""

    class_names = ("a", "b")
    output_name = "probabilities"
    instances = ({"b64": "AAAA"},) * 3

    def __init__(self, sure):
        self.sure = sure

    def __call__(self, answer):
        answers = answer(np.zeros((3, 8, 8, 1), np.uint8))
        for given in answers.values():
            if not abs(given[0] - self.sure) < 0.01:
                raise RuntimeError(f"{given[0]} is not {self.sure}")
        return len(answers)


@pytest.fixture
def world(tmp_path, bucket):
    world = World(tmp_path)
    with world.fake:
        yield world


# What goes well


def test_a_version_is_encrypted_and_serves_as_its_params_say(world):
    account = "server@my-project.iam.gserviceaccount.com"
    params = dataclasses.replace(PARAMS, encryption_key=KEY, endpoint_service_account=account)
    world.release(0.9, NOBODY, params)
    endpoint, (versions,) = world.endpoint("digits"), world.fake.models.values()
    assert [one.encryption_spec.kms_key_name for one in (endpoint, *versions)] == [KEY, KEY]
    assert endpoint.deployed_models[0].service_account == account


def test_a_step_that_may_not_act_as_the_serving_account_leaves_the_champion(world):
    world.release(0.8, NOBODY)
    account = "server@my-project.iam.gserviceaccount.com"
    world.fake.not_acted_as = {account}
    params = dataclasses.replace(PARAMS, endpoint_service_account=account)
    with pytest.raises(InputError, match=f"to act as service_account: {account}.*roles/iam.serviceAccountUser on that"):
        world.release(0.9, world.digest(0.8), params)
    assert world.versions["1"] == ["champion", "default"]
    assert world.endpoints == {"digits": {"1": 100}}


def test_a_deployment_waits_for_another_change_of_its_endpoint(world):
    world.release(0.8, NOBODY)
    endpoint = world.endpoint("digits").name
    world.fake.operation_seconds = 120
    deployed = {"model": f"{ROOT}/digits@1", "dedicated_resources": MACHINE}
    client = VertexService("my-project", "us-west1", world.fake.url, AnonymousCredentials())
    client.call("EndpointService", "deploy_model", {"endpoint": endpoint, "deployed_model": deployed})
    assert world.release(0.9, world.digest(0.8)) == "2"
    assert world.endpoints["digits"]["2"] == 100


def test_the_first_version_is_registered_served_and_made_the_champion(world):
    assert world.release(0.9, NOBODY) == "1"
    assert world.versions == {"1": ["champion", "default"]}
    assert world.endpoints == {"digits": {"1": 100}}
    (model,) = world.fake.models[canonical(f"{ROOT}/digits")]
    serving = ServeParams()
    container = model.container_spec
    assert container.image_uri == PARAMS.serving_image
    assert (container.predict_route, container.health_route) == (serving.predict_route, serving.health_route)
    assert [port.container_port for port in container.ports] == [serving.port]
    assert dict(model.labels) == {
        "tpu_pipelines_digest": model.labels["tpu_pipelines_digest"],
        "tpu_pipelines_model": world.digest(0.9)[:63],
        "tpu_pipelines_parent": "",
        "tpu_pipelines_data": "f" * 63,
        "tpu_pipelines_run": "my-run",
        "tpu_pipelines_code": model.labels["tpu_pipelines_code"],
        "tpu_pipelines_config": model.labels["tpu_pipelines_config"],
    }
    assert model.version_description == "accuracy 0.9; passed: it is better"
    assert model.artifact_uri.startswith("gs://bucket/registry/digits/")
    names = {file.name for file in storage.list_files(model.artifact_uri.removesuffix("/export"))}
    assert names >= {
        "version.json",
        "model/best.weights.h5",
        "export/model.tflite",
        "export/saved_model/saved_model.pb",
    }
    (deployed,) = world.endpoint("digits").deployed_models
    assert deployed.dedicated_resources.machine_spec.machine_type == "n1-standard-2"


def test_the_card_lies_beside_the_export_and_the_description_begins_with_its_address(world):
    facts = {"metrics": {"accuracy": 0.9}, "reasons": ["passed: it is better"], "lineage": LINEAGE}
    version = VertexTarget(PARAMS, world.registry()).register(*world.folders(0.9), **facts, card="# digits\n")
    (model,) = world.fake.models[canonical(f"{ROOT}/digits")]
    card = f"{version.uri}/README.md"
    assert storage.read_bytes(card) == b"# digits\n"
    assert model.version_description == f"{card}; accuracy 0.9; passed: it is better"


def test_an_endpoint_of_a_regression_answers_with_values(world, monkeypatch):
    monkeypatch.setattr(Sure, "output_name", "values")
    world.spoiled = [{"values": {"a": 0.9, "b": 4.0}}] * 99
    assert world.release(0.9, NOBODY) == "1"
    assert world.endpoints == {"digits": {"1": 100}}


def test_run_again_it_gives_the_same_and_creates_nothing(world):
    world.release(0.9, NOBODY)
    before = (world.versions, world.endpoints)
    start = len(world.fake.calls)
    world.release(0.9, NOBODY)
    assert (world.versions, world.endpoints) == before
    assert {call.method for call in world.fake.calls[start:]} <= {
        "list_model_versions",
        "get_model",
        "get_endpoint",
        "predict",
    }


def test_the_next_version_gets_its_share_and_the_champion_keeps_the_rest(world):
    world.release(0.8, NOBODY)
    world.release(0.9, world.digest(0.8), dataclasses.replace(PARAMS, endpoint_traffic=10))
    assert world.versions == {"1": [], "2": ["champion", "default"]}
    assert world.endpoints == {"digits": {"1": 90, "2": 10}}
    (first, second) = world.fake.models[canonical(f"{ROOT}/digits")]
    assert (first.labels["tpu_pipelines_parent"], second.labels["tpu_pipelines_parent"]) == ("", "1")
    world.release(0.9, world.digest(0.8))
    assert world.endpoints == {"digits": {"2": 100}}, "who has no traffic is undeployed"


def test_who_names_no_version_reads_the_champion(world):
    def read():
        return world.registry().call("ModelService", "get_model", {"name": f"{ROOT}/digits"}).version_id

    world.release(0.8, NOBODY)
    world.release(0.9, world.digest(0.8))
    assert read() == "2"
    first, second = world.fake.models[canonical(f"{ROOT}/digits")]
    second.version_aliases.remove("default")
    first.version_aliases.append("default")  # As registries are that were filled before.
    world.release(0.9, world.digest(0.8))
    assert read() == "2"


def test_another_alias_than_the_champions_leaves_the_default_where_it_is(world):
    world.release(0.8, NOBODY)
    registry = world.registry()
    target = VertexTarget(dataclasses.replace(PARAMS, endpoint=""), registry)
    version = target.register(*world.folders(0.9), metrics={}, reasons=[], lineage={})
    registry.promote(version.number, "staging", "to be looked at")
    assert world.versions == {"1": ["champion", "default"], "2": ["staging"]}


def test_traffic_that_comes_late_is_waited_for(world):
    """How late is documented nowhere: what is asked before meets nobody, or the version before."""
    world.fake.traffic_seconds = 20
    params = dataclasses.replace(PARAMS, endpoint_traffic=10)
    world.release(0.8, NOBODY, params)
    world.release(0.9, world.digest(0.8), params)
    assert world.versions["2"] == ["champion", "default"]
    shared = world.fake.served[world.endpoint("digits").name]
    assert len(shared) == 2, "the new version was judged where users ask"


def test_a_version_that_is_wrong_where_traffic_comes_late_is_found_out(world):
    world.release(0.8, NOBODY)
    world.fake.traffic_seconds = 100
    world.spoiled = [None, {"probabilities": {"a": 0.4, "b": 0.6}}]
    with pytest.raises(RuntimeError, match=r"0\.4 is not 0\.9"):
        world.release(0.9, world.digest(0.8))
    assert world.endpoints == {"digits": {"1": 100}}


def test_traffic_that_never_comes_is_taken_back(world):
    world.release(0.8, NOBODY)
    world.fake.traffic_seconds = 1e6
    with pytest.raises(
        PlatformError, match=r"Gave up after .* s\. Last error: .*-candidate does not send requests to the deployment"
    ):
        world.release(0.9, world.digest(0.8))
    assert world.endpoints == {"digits": {"1": 100}}
    assert world.versions["1"] == ["champion", "default"]


def test_a_version_is_signed_in_the_bucket_and_its_servers_verify_it(world, tmp_path):
    private, public = write_keys(tmp_path / "keys")
    params = dataclasses.replace(PARAMS, signing_key=private, verify_key=public)
    assert world.release(0.9, NOBODY, params) == world.release(0.9, NOBODY, params) == "1"
    (model,) = world.fake.models[canonical(f"{ROOT}/digits")]
    (variable,) = model.container_spec.env
    assert (variable.name, variable.value) == ("TPU_PIPELINES_VERIFY_KEY", Path(public).read_text())
    place = model.artifact_uri.removesuffix("/export")
    verify_version(storage.localize(place, tmp_path / "whole"), public, name="digits")
    expected = "expected the version other, but the files in this folder were signed as digits, so they belong to "
    with pytest.raises(InputError, match=expected):
        verify_version(storage.localize(place, tmp_path / "another_model"), public, name="other")
    verify_folder(storage.localize(model.artifact_uri, tmp_path / "as_the_service_copies_it"), public)
    assert "PRIVATE" not in str(world.fake.calls)


def test_without_an_endpoint_a_version_is_registered_alone(world):
    world.release(0.9, NOBODY, dataclasses.replace(PARAMS, endpoint=""))
    assert world.versions == {"1": ["champion", "default"]}
    assert world.endpoints == {}


DEDICATED = {"endpoint_access": "dedicated"}


def test_an_endpoint_with_an_address_of_its_own_is_asked_there(world):
    params = dataclasses.replace(PARAMS, **DEDICATED)
    world.release(0.8, NOBODY, params)
    world.release(0.9, world.digest(0.8), params)
    assert world.versions == {"1": [], "2": ["champion", "default"]}
    assert world.endpoints == {"digits": {"2": 100}}
    assert world.endpoint("digits").dedicated_endpoint_enabled


def test_two_versions_that_are_tried_at_once_leave_each_other_alone(world):
    world.release(0.8, NOBODY)
    target = VertexTarget(PARAMS, world.registry())
    version = target.register(*world.folders(0.9), metrics={}, reasons=[], lineage={})

    class Overtaken(Sure):
        def __call__(self, answer):
            if "3" not in world.versions:
                world.release(0.95, world.digest(0.8))
            return super().__call__(answer)

    with target.serving(version, Overtaken(0.9), world.digest(0.8)):
        assert world.endpoints == {"digits": {"3": 0, "2": 100}}
    assert world.endpoints == {"digits": {"2": 100}}
    assert len(world.fake.called("deploy_model")) == 3 * 2, "each version once, to either endpoint"


# What goes wrong


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, DEDICATED, "the existing endpoint is public, expected dedicated"),
        (DEDICATED, {}, "the existing endpoint is dedicated, expected public"),
    ],
)
def test_an_endpoint_is_not_deployed_to_where_it_is_reached_in_another_way(world, before, after, words):
    world.release(0.8, NOBODY, dataclasses.replace(PARAMS, **before))
    with pytest.raises(InputError, match=words):
        world.release(0.9, world.digest(0.8), dataclasses.replace(PARAMS, **after))
    assert world.versions == {"1": ["champion", "default"], "2": []}
    assert world.endpoints == {"digits": {"1": 100}}


@pytest.mark.parametrize(
    "private",
    [
        {"private_service_connect_config": {"enable_private_service_connect": True}},
        {"network": "projects/12345/global/networks/inside"},
    ],
)
def test_an_existing_private_endpoint_is_refused_with_googles_own_command(world, private):
    name = "projects/my-project/locations/us-west1/endpoints/digits"
    world.fake.endpoints[canonical(name)] = v1.Endpoint(name=canonical(name), display_name="digits", **private)
    with pytest.raises(InputError) as refused:
        world.release(0.9, NOBODY)
    assert "it is a private endpoint, and only public endpoints are supported. Leave deploy.endpoint out" in str(
        refused.value
    )
    assert "gcloud ai endpoints deploy-model digits --project=" in str(refused.value)
    assert "--region=us-west1 --model=digits --display-name=digits --traffic-split=0=100" in str(refused.value)
    assert world.fake.called("deploy_model") == []


WRONG = {"probabilities": {"a": 0.4, "b": 0.6}}


@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        ([WRONG], r"0\.4 is not 0\.9"),
        ([None, WRONG], r"0\.4 is not 0\.9"),
        ([{"probabilities": {"a": "NaN", "b": 0.6}}], r"nan is not 0\.9"),
        ([{"probabilities": {"cat": 0.9, "b": 0.1}}], "is not in the serving image's format: KeyError"),
        (
            [None, ValueError("no such file")],
            "Vertex AI failed to deploy model: Model server never became ready: no such file",
        ),
    ],
)
def test_a_version_that_fails_its_check_gets_neither_traffic_nor_alias(world, spoiled, words):
    """On the candidate endpoint, or on the shared one."""
    world.release(0.8, NOBODY)
    world.spoiled = list(spoiled)
    with pytest.raises((RuntimeError, PlatformError), match=words):
        world.release(0.9, world.digest(0.8))
    assert world.versions == {"1": ["champion", "default"], "2": []}
    assert world.endpoints == {"digits": {"1": 100}}
    assert world.release(0.9, world.digest(0.8)) == "2", "and later it may try again"


def test_a_version_that_may_not_be_promoted_is_not_deployed(world):
    world.release(0.8, NOBODY)
    with pytest.raises(InputError, match=r"compared with no version, but the champion is now 1\. Run again"):
        world.release(0.9, NOBODY)
    assert world.versions == {"1": ["champion", "default"], "2": []}
    assert world.endpoints == {"digits": {"1": 100}}


def test_an_alias_that_moves_at_the_last_moment_takes_the_traffic_back(world):
    world.release(0.8, NOBODY)
    plain = dataclasses.replace(PARAMS, endpoint="")
    registry = world.registry()
    target = VertexTarget(PARAMS, registry)
    facts = {"metrics": {}, "reasons": [], "lineage": {}}
    version = target.register(*world.folders(0.9), **facts)

    def overtaken():
        with target.serving(version, Sure(0.9), world.digest(0.8)):
            assert world.endpoints == {"digits": {"1": 0, version.number: 100}}
            world.release(0.95, world.digest(0.8), plain)
            registry.promote(version.number, "champion", "", world.digest(0.8))

    with pytest.raises(InputError, match=r"it was compared with 1, but the champion is now 3"):
        overtaken()
    assert world.versions["3"] == ["champion", "default"]
    assert world.endpoints == {"digits": {"1": 100}}


def move_by_hand(world, number, *aliases):
    """A rollback, as somebody does it in the console or with Google's client."""
    request = {"name": f"{ROOT}/digits@{number}", "version_aliases": aliases}
    world.registry().call("ModelService", "merge_version_aliases", request)


def export_again(world, sure):
    """Another export of the same model."""
    write_model(world.folder / str(sure), str(sure), "another LiteRT")


@pytest.mark.parametrize("aliases", [("champion",), ("champion", "default")])
@pytest.mark.parametrize("is_exported_again", [False, True])
def test_a_model_that_was_rolled_back_by_hand_does_not_return(world, aliases, is_exported_again):
    world.release(0.8, NOBODY)
    world.release(0.9, world.digest(0.8))
    move_by_hand(world, "1", *aliases)
    if is_exported_again:
        export_again(world, 0.9)
    words = "version 2, which has the same model," if is_exported_again else "it"
    refused = (
        rf"Cannot promote version . of 'digits': {words} was rolled back \(somebody moved the champion to 1 by hand"
    )
    with pytest.raises(InputError, match=refused):
        world.release(0.9, world.digest(0.8))
    assert "champion" in world.versions["1"]
    assert world.registry().alias_of("1") == "champion"
    assert world.endpoints == {"digits": {"2": 100}}, "only the alias was moved by hand"
    number = world.release(0.95, world.digest(0.8))
    with pytest.raises(InputError, match=f"{words} was rolled back"):
        world.release(0.9, world.digest(0.95))
    assert world.versions[number] == ["champion", "default"], "also after the next promotion"
    move_by_hand(world, "2", "champion")
    world.release(0.97, world.digest(0.9))
    assert world.release(0.9, world.digest(0.97)) in ("2", "3"), "a promotion by hand cancels the rollback"


def test_a_model_that_a_better_one_replaced_may_return(world):
    for sure, champion in ((0.8, NOBODY), (0.9, world.digest(0.8)), (0.95, world.digest(0.9))):
        world.release(sure, champion)
    assert world.release(0.9, world.digest(0.95)) == "2"
    assert world.release(0.8, world.digest(0.9)) == "1"
    move_by_hand(world, "3", "champion")
    with pytest.raises(InputError, match="version 1 of 'digits': it was rolled back"):
        world.release(0.8, world.digest(0.95))


def test_a_rollback_of_a_version_that_an_earlier_release_promoted_is_seen_by_the_alias_default(world):
    world.release(0.8, NOBODY)
    world.release(0.9, world.digest(0.8))
    del world.fake.models[canonical(f"{ROOT}/digits")][1].labels["tpu_pipelines_turn_champion"]
    move_by_hand(world, "1", "champion")
    export_again(world, 0.9)
    with pytest.raises(InputError, match="version 2, which has the same model, was rolled back"):
        world.release(0.9, world.digest(0.8))


def test_each_promotion_gets_the_next_number_and_a_repeated_one_keeps_it(world):
    def turns():
        return [
            model.labels.get("tpu_pipelines_turn_champion") for model in world.fake.models[canonical(f"{ROOT}/digits")]
        ]

    world.release(0.8, NOBODY)
    for _ in range(2):
        world.release(0.9, world.digest(0.8))
        assert turns() == [None, "1"]
    world.release(0.95, world.digest(0.9))
    assert turns() == [None, "1", "2"]


def test_a_label_that_cannot_be_written_leaves_the_promotion_as_it_is(world, capsys):
    world.release(0.8, NOBODY)
    world.fake.fail_next(1, "PERMISSION_DENIED", "update_model")
    assert world.release(0.9, world.digest(0.8)) == "2"
    assert world.versions == {"1": [], "2": ["champion", "default"]}
    assert "its rollback could go unnoticed" in capsys.readouterr().err
    world.release(0.9, world.digest(0.8))
    assert world.fake.models[canonical(f"{ROOT}/digits")][1].labels["tpu_pipelines_turn_champion"] == "1"


def test_a_refusal_is_an_error_in_the_services_words(world):
    world.fake.fail_next(1, "PERMISSION_DENIED", "upload_model")
    with pytest.raises(
        InputError, match=r"refused to upload model in my-project, us-west1: .*Injected into upload_model"
    ):
        world.release(0.9, NOBODY)
    assert world.versions == {}


def test_without_a_place_for_its_files_nothing_is_registered(world):
    with pytest.raises(InputError, match=r"without a folder for the versions' files\. Set artifacts_uri=gs://"):
        world.release(0.9, NOBODY, dataclasses.replace(PARAMS, artifacts_uri=""))


# Calls that are lost, processes that die, others at the same time


def second_release(world, service=None):
    """The second version takes half of the traffic of the first."""
    world.release(0.9, world.digest(0.8), dataclasses.replace(PARAMS, endpoint_traffic=50), service)


def assert_released(world, note):
    assert world.versions == {"1": [], "2": ["champion", "default"]}, note
    assert world.endpoints == {"digits": {"1": 50, "2": 50}}, note


@pytest.fixture
def stories(tmp_path, storage_server):
    """Worlds in which the first version has been released, one after another."""

    def begin(seconds=0.0):
        storage_server.wipe(keep_buckets=True)
        world = World(tmp_path)
        world.fake.__enter__()
        worlds.append(world)
        world.release(0.8, NOBODY)
        world.fake.operation_seconds = seconds
        return world

    worlds = []
    yield begin
    for world in worlds:
        world.fake.__exit__()


_CHANGES = ("upload_model", "deploy_model", "update_endpoint", "undeploy_model", "merge_version_aliases")


def test_a_change_whose_answer_is_lost_is_found_and_not_made_twice(stories):
    """Each lasts five minutes, and shows nothing before."""
    world = stories(seconds=300)
    for method in _CHANGES:
        world.fake.drop_next(1, "after", method)
    second_release(world)
    assert_released(world, "without these answers")
    assert {call.method for call in world.fake.calls if call.status == 0} == set(_CHANGES)


def test_an_endpoint_whose_creation_is_not_heard_of_is_found_and_not_made_twice(world):
    world.fake.operation_seconds = 300
    world.fake.drop_next(2, "after", "create_endpoint")
    assert world.release(0.8, NOBODY) == "1"
    created = [call.request.endpoint_id for call in world.fake.called("create_endpoint")]
    assert sorted(set(created)) == ["digits", "digits-candidate"]
    assert world.endpoints == {"digits": {"1": 100}}


@pytest.mark.slow  # Some 50 releases each: half a minute.
@pytest.mark.parametrize("seconds", [0, 300])
@pytest.mark.parametrize("fault", ["before", "after", "halfway", "UNAVAILABLE"])
def test_whichever_request_is_lost_there_is_one_version_and_one_deployment(stories, fault, seconds):
    """Every request of the release, one at a time, meets the fault; its operations may take their time."""
    world = stories(seconds)
    start = len(world.fake.calls)
    second_release(world)
    assert_released(world, "without a fault")
    for skip in range(len(world.fake.calls) - start):
        world = stories(seconds)
        if fault.isupper():
            world.fake.fail_next(1, fault, skip=skip)
        else:
            world.fake.drop_next(1, fault, skip=skip)
        second_release(world)
        assert_released(world, skip)


@pytest.mark.slow  # Some 50 releases each: half a minute.
@pytest.mark.parametrize("seconds", [0, 300])
def test_whenever_the_process_dies_the_next_one_goes_on(stories, seconds):
    died = 1
    while died:
        world = stories(seconds)
        service = Mortal("my-project", "us-west1", world.fake.url, AnonymousCredentials())
        service.calls_left = died
        try:
            second_release(world, service)
        except Killed:
            died += 1
            second_release(world)
        else:
            assert died > 20
            died = 0
        assert_released(world, died)


def test_the_same_model_released_by_many_at_once_is_one_version_on_one_deployment(world):
    world.fake.latency_seconds = 0.01
    world.folders(0.9)
    barrier = threading.Barrier(4)

    def release(_):
        barrier.wait()
        return world.release(0.9, NOBODY)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(release, range(4)))) == 1
    assert list(world.versions.values()) == [["champion", "default"]]
    assert list(world.endpoints) == ["digits"]
    assert list(world.endpoints["digits"].values()) == [100]


# What evaluate_model asks


def test_the_champion_is_where_the_alias_stands(world, tmp_path, monkeypatch):
    for name, value in world.fake.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    champion = f"{ROOT}/digits@champion"
    assert find_champion(champion, "new", tmp_path) is None, "there is no model yet"
    world.fake.fail_next(1, "PERMISSION_DENIED")
    with pytest.raises(InputError, match=r"refused to get model .*Injected into get_model"):
        find_champion(champion, "new", tmp_path)
    VertexTarget(PARAMS, world.registry()).register(*world.folders(0.7), metrics={}, reasons=[], lineage={})
    assert find_champion(champion, "new", tmp_path) is None, "the alias stands nowhere yet"
    world.release(0.8, NOBODY)
    world.release(0.9, world.digest(0.8))
    found = find_champion(champion, "new", tmp_path)
    assert (found.number, found.digest) == ("3", world.digest(0.9)[:63])
    assert (found.directory / "best.weights.h5").read_text() == "0.9"
    beaten = find_champion(champion, world.digest(0.9), tmp_path)
    assert beaten.number == "2", "a model is never its own champion"
    assert find_champion(f"{ROOT}/digits@3", world.digest(0.9), tmp_path).number == "2"
    assert find_champion(f"{ROOT}/digits@1", "new", tmp_path).number == "1"
    with pytest.raises(InputError, match="has no version '7'"):
        find_champion(f"{ROOT}/digits@7", "new", tmp_path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_name": "My.Model"}, r"model name 'My\.Model': expected at most 63 lower-case .* on Vertex AI"),
        ({"registry": "projects/p/locations/us-west1/models/digits"}, "expected a folder, or projects/PROJECT"),
        ({"artifacts_uri": "/tmp"}, "artifacts_uri must be on gs://. Received: artifacts_uri='/tmp'"),
        ({"endpoint": "Digits"}, "Received: endpoint='Digits'"),
        ({"registry": "/registry"}, "endpoint='digits' with registry='/registry'"),
        ({"endpoint_traffic": 0}, "endpoint_traffic must be from 1 to 100. Received: endpoint_traffic=0"),
        ({"endpoint_max_replicas": 0}, "Received: endpoint_max_replicas=0"),
        ({"endpoint_service_account": "server"}, "endpoint_service_account must be like .*='server'"),
        ({"endpoint_access": "dedicate"}, "must be one of public, dedicated. .*='dedicate'. Did you mean"),
        ({"endpoint_access": "dedicated", "endpoint": ""}, "endpoint_access='dedicated' requires an endpoint"),
        ({"encryption_key": "key"}, "encryption_key must be projects/.* Received: encryption_key='key'"),
        ({"encryption_key": KEY + ";id"}, "encryption_key must be projects/"),
        ({"endpoint_service_account": "a@b;id"}, "endpoint_service_account must be like server@"),
        ({"encryption_key": KEY.replace("west1", "east1")}, "must be in the registry's region, 'us-west1'"),
        (
            {"encryption_key": KEY, "registry": "/registry", "endpoint": ""},
            "encryption_key requires a registry on Vertex AI",
        ),
    ],
)
def test_params_for_vertex_check_themselves(values, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(PARAMS, **values)


@pytest.mark.parametrize(
    "private",
    [
        {"endpoint_access": "private"},
        {"endpoint_network": "projects/my-project/global/networks/inside"},
        {"endpoint_projects": ["their-project"]},
    ],
)
def test_an_earlier_compiled_component_with_a_private_endpoint_is_refused_and_one_without_is_accepted(private):
    """They pass every input, also those that no longer exist."""
    earlier = {"registry": ROOT, "model_name": "digits", "endpoint": "digits", "endpoint_access": "public"}
    earlier |= {"endpoint_network": "", "endpoint_projects": []}
    assert params_from(earlier, DeployParams).endpoint == "digits"
    with pytest.raises(
        InputError, match=r"was removed\. Leave deploy\.endpoint out, .*gcloud ai endpoints deploy-model"
    ):
        params_from(earlier | private, DeployParams)


def test_an_alias_on_vertex_has_two_characters_at_least():
    registry = "projects/my-project/locations/us-west1/models"
    with pytest.raises(InputError, match=r"Cannot use the alias 'b': expected at least two characters on Vertex AI"):
        DeployParams(registry=registry, model_name="digits", alias="b")
    assert DeployParams(registry="/registry", model_name="digits", alias="b").alias == "b"
