import json
import re
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

import numpy as np
import pytest

from tests.support.fakes.local_server import LocalServer
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.partition import Share
from tpu_components.core.machines import hosts
from tpu_components.core.machines.hosts import (
    ALONE,
    Hosts,
    ProcessGroup,
    find_hosts,
    find_lost_host_error,
    parse_host,
    tell_hosts,
)

_POOLS = {"workerpool0": ["first:2222"], "workerpool1": ["second:2222", "third:2222"]}
_NO_METADATA = {"TPU_SKIP_MDS_QUERY": "1"}


def _spec(pool, index, pools=_POOLS):
    return {"CLUSTER_SPEC": json.dumps({"cluster": pools, "task": {"type": pool, "index": index}})}


def test_everything_that_may_say_which_host_this_is_is_told():
    told = {
        "TPU_NODE_NAME": "my-first-tpu-node",
        "TPU_CONFIG": '{"tpu_node_name": "my-first-tpu-node"}',
        "MEGASCALE_SLICE_ID": "0",
        "CLUSTER_SPEC": "{}",
    }
    others = {"TPU_PIPELINES_BUCKET": "gs://bucket", "PATH": "/bin", "TPU_PIPELINES_HOST": "0/2@there"}
    assert tell_hosts({**told, **others}) == {**told, "TPU_PIPELINES_HOST": "0/2@there"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ALONE),
        (_spec("workerpool0", 0, {"workerpool0": ["alone:2222"]}), ALONE),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, ALONE),
        (_spec("workerpool0", 0), Hosts(0, 3, "first:2222")),
        (_spec("workerpool1", 1), Hosts(2, 3, "first:2222")),
        ({"TPU_WORKER_HOSTNAMES": "a, b,c,d", "TPU_WORKER_ID": "3"}, Hosts(3, 4, "a:8476")),
        (
            # A slice of several machines whose one pool has one replica: the TPU's own variables tell.
            {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1", **_spec("workerpool0", 0, {"workerpool0": ["x:1"]})},
            Hosts(1, 2, "a:8476"),
        ),
        ({"TPU_PROCESS_ADDRESSES": "a:8471,b:8471", "TPU_WORKER_ID": "1"}, Hosts(1, 2, "a:8476")),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0", "JAX_COORDINATOR_PORT": "99"}, Hosts(0, 2, "a:99")),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0", "TPU_PIPELINES_HOST_COUNT": "2"}, Hosts(0, 2, "a:8476")),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, ALONE),
        ({"TPU_PIPELINES_HOST_COUNT": "4", "TPU_PIPELINES_HOST": "1/2@there:99"}, Hosts(1, 2, "there:99")),
        ({"TPU_PIPELINES_HOST": "1/2@there:99", **_spec("workerpool0", 0)}, Hosts(1, 2, "there:99")),
        ({"TPU_PIPELINES_HOST": "0/1@there"}, ALONE),
    ],
)
def test_hosts_are_those_that_the_environment_tells_of(environment, expected):
    assert find_hosts(environment) == expected


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"TPU_PIPELINES_HOST": "4/4@there"}, r"expected INDEX/COUNT@ADDRESS.*Received: '4/4@there'"),
        ({"TPU_PIPELINES_HOST": "there"}, "Received: 'there'"),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "2"}, "this host has the index 2, but there are 2 hosts"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, r"TPU_WORKER_ID must be a number\. Received: ''"),
        ({"TPU_PIPELINES_HOST_COUNT": "four"}, r"TPU_PIPELINES_HOST_COUNT must be a number\. Received: 'four'"),
        (
            {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "second"},
            r"TPU_WORKER_ID must be a number\. Received: 'second'",
        ),
        (
            {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0", "TPU_PIPELINES_HOST_COUNT": "4"},
            r"TPU_WORKER_ID list 2 hosts, but the machine has 4 hosts\. Start each host with --hosts I",
        ),
        (
            {**_spec("workerpool0", 0, {"workerpool0": ["x:1"]}), "TPU_PIPELINES_HOST_COUNT": "4", **_NO_METADATA},
            r"this host among the 4 hosts of the machine.* TPU_WORKER_ID; .2. CLUSTER_SPEC with 4 members; .3. worker"
            r".*Received: CLUSTER_SPEC: .*x:1.*\. Start .* --hosts INDEX/4@ADDRESS, .* or set TPU_PIPELINES_HOST",
        ),
        ({"CLUSTER_SPEC": "{"}, "CLUSTER_SPEC is not in Vertex AI's format"),
        ({"CLUSTER_SPEC": "[]"}, "CLUSTER_SPEC is not in Vertex AI's format"),
    ],
)
def test_an_environment_that_does_not_fit_together_is_refused_in_a_sentence(environment, words):
    with pytest.raises(InputError, match=words):
        find_hosts(environment)


class _Attributes(BaseHTTPRequestHandler):
    """A TPU VM's metadata."""

    known: ClassVar[dict[str, str]] = {}

    def do_GET(self):
        value = self.known.get(self.path.rpartition("/instance/attributes/")[2])
        self.send_response(200 if value and self.headers["Metadata-Flavor"] == "Google" else 404)
        self.end_headers()
        self.wfile.write((value or "").encode())

    def log_message(self, *arguments):
        """Nothing on stderr."""


@pytest.mark.parametrize("workers", ["10.0.0.1,10.0.0.2", "unknown:unknown:10.0.0.1,unknown:unknown:10.0.0.2"])
def test_a_tpu_vm_asks_its_metadata_server_where_nothing_else_tells(workers):
    known = {"agent-worker-number": "1", "worker-network-endpoints": workers}
    with LocalServer(type("Handler", (_Attributes,), {"known": known})) as server:
        environment = {"TPU_PIPELINES_HOST_COUNT": "2", "GCE_METADATA_IP": server.url.removeprefix("http://")}
        assert find_hosts(environment) == Hosts(1, 2, "10.0.0.1:8476")


def test_a_metadata_server_that_does_not_answer_is_told():
    nowhere = {"TPU_PIPELINES_HOST_COUNT": "2", "GCE_METADATA_IP": "127.0.0.1:1"}
    with pytest.raises(InputError, match="agent-worker-number: no answer; worker-network-endpoints: no answer"):
        find_hosts(nowhere)


def test_host_0_alone_writes(monkeypatch):
    monkeypatch.setenv("TPU_PIPELINES_HOST", "1/2@there")
    assert not hosts.is_writer()
    assert parse_host("0/2@there").is_writer


def test_a_host_that_cannot_tell_which_it_is_says_so(monkeypatch):
    monkeypatch.setenv("TPU_PIPELINES_HOST_COUNT", "2")
    monkeypatch.setenv(*next(iter(_NO_METADATA.items())))
    assert hosts.is_writer()


def test_shares_of_hosts_are_all_and_nearly_equal():
    shares = [Share(host, 7).within(60) for host in range(7)]
    assert [place for share in shares for place in share] == list(range(60))
    assert {len(share) for share in shares} == {8, 9}


def test_who_is_alone_tells_nobody():
    alone = ProcessGroup(ALONE)
    values = np.arange(3)
    assert alone.gather(values) is values
    assert (alone.agree(5), alone.broadcast(b"word"), alone.is_asked_to_end()) == (5, b"word", False)
    with alone.together():
        alone.ask_to_end()
        alone.wait_for_all("done")


@pytest.mark.parametrize(
    ("words", "is_lost"), [("Gloo all-reduce failed: reset by peer", True), ("no such layer", False)]
)
def test_a_mistake_that_came_of_a_lost_host_is_none(words, is_lost):
    """A model's code that fails is a user's mistake, but not where it failed because another host was gone."""
    error = InputError("Cannot build the model")
    error.__cause__ = ValueError(words)
    assert (find_lost_host_error(error) is not None) == is_lost


class _Store:
    """The coordination service's words, as far as a meeting needs them."""

    def __init__(self):
        self.words = {}

    def key_value_set(self, name, value):
        self.words[name] = value

    def key_value_dir_get(self, folder):
        return [(name, value) for name, value in self.words.items() if name.startswith(f"{folder}/")]

    def blocking_key_value_get(self, name, timeout_ms):
        return "null"  # No host has failed.


@pytest.mark.parametrize("ahead", [-3, 0, 1])
def test_hosts_meet_after_the_same_block_though_one_is_ahead_of_host_0(ahead):
    """A block ends on no host before host 0 has begun it, so none is two calls ahead of host 0; it may be behind."""
    store = _Store()
    first, other = (ProcessGroup(Hosts(index, 2, "there:1"), store) for index in range(2))
    met_first, met_other = [], []
    for turn in range(40):
        if turn + ahead >= 0:
            met_other.append(other.meet(wish=True))  # What it wishes does not count.
        if turn >= ahead:
            block = len(met_first)
            met_first.append(first.meet(wish=block in (3, 4, 5, 6, 20)))  # Overdue, until they meet.
    count = min(len(met_first), len(met_other))
    assert met_first[:count] == met_other[:count]
    assert [block for block, met in enumerate(met_first) if met] == [5, 8, 22]


def test_a_training_that_is_not_told_its_host_ends_before_it_begins(
    quick, digits_records, tmp_path, run_step_here, monkeypatch
):
    monkeypatch.setenv("TPU_PIPELINES_HOST_COUNT", "4")
    monkeypatch.setenv(*next(iter(_NO_METADATA.items())))
    monkeypatch.delenv("TPU_LOG_DIR", raising=False)  # Of the tests; the message would name it.
    done = run_step_here("train_model", quick, records=digits_records, output=tmp_path / "model")
    assert (done.returncode, done.stdout) == (2, "")
    message = done.stderr.splitlines()[-1]
    assert message.startswith("error: Cannot find the index of this host among the 4 hosts of the machine. Without")
    assert "Received: environment: nothing. Start each host with --hosts INDEX/4@ADDRESS" in message
    assert list(tmp_path.iterdir()) == []


_PREPARE_AS_ANOTHER_HOST = """
import socket
import jax
from tpu_components.core.base.errors import InputError
from tpu_components.core.machines import device
from tpu_components.core.machines.hosts import Hosts
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{probe.getsockname()[1]}"
jax.distributed.initialize(address, num_processes=1, process_id=0)
try:
    device.prepare("jax", "cpu", 0, "float32", Hosts(1, 2, "there:1"))
except InputError as error:
    print(error)
"""


def test_devices_of_another_host_are_refused(run_with_jax):
    """As where libtpu numbers a slice's hosts otherwise, or where each of them takes itself for the only one."""
    said = run_with_jax(_PREPARE_AS_ANOTHER_HOST)
    assert re.search(r"as host 1 of 2: .* this is host 0 of 1\. Start", said)
