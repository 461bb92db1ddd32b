"""Process group of the hosts that train together: discovery, messages and common shutdown.

Host 0 runs JAX's coordination service. Messages are sent through the key-value store of this service. Arrays are sent
from device to device.
"""

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tpu_components.core.base import progress, termination
from tpu_components.core.base.errors import InputError, chain_of, describe
from tpu_components.core.base.frameworks import jax
from tpu_components.core.base.partition import Share
from tpu_components.core.base.terminal import paragraph

# Index of this host and address of host 0, in the form of `parse_host`; overrides the platform's variables.
HOST_VARIABLE = "TPU_PIPELINES_HOST"
# Expected number of hosts. Training fails if it finds fewer.
COUNT_VARIABLE = "TPU_PIPELINES_HOST_COUNT"
# Variables that may describe the hosts: of TPUs (without libtpu's own settings), clusters and multislice.
_TELLS_HOSTS = re.compile(
    rf"{HOST_VARIABLE}|(?!TPU_(PIPELINES|SKIP|LIBRARY|ML)_)(TPU|MEGASCALE|CLOUD_ML|CLUSTER|TF_CONFIG)(_\w+)?"
)
_PORT = 8476  # As in JAX's examples; usually free. JAX_COORDINATOR_PORT overrides it.
# Metadata of TPU VMs about their slice; JAX reads it too: jax/_src/clusters/cloud_tpu_cluster.py, GceTpuCluster.
_METADATA = "http://{host}/computeMetadata/v1/instance/attributes/{key}"
_NUMBER, _ENDPOINTS = "agent-worker-number", "worker-network-endpoints"
_METADATA_TRIES, _METADATA_SECONDS = 3, 5
# JAX aborts a process when a host sends no heartbeat for this time; the exit code is `LOST`.
_HEARTBEAT_SECONDS = 30
_ARRIVAL_SECONDS = 600  # Time limit for all hosts to pull the image and start.
_FAREWELL_SECONDS = 5  # Time for the other hosts to read the reason of a failure.
_ASK_EVERY_SECONDS = 0.5
_END, _LEAVE = "tpu_pipelines/end", "tpu_pipelines/leave"
_TOLD, _MEETING = "tpu_pipelines/told", "tpu_pipelines/meeting"
_FOREVER_MS = 10**9
# Exit code of an aborted process. Vertex AI restarts a job with this code, and so does a JobSet by default.
LOST = 128 + signal.SIGABRT


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Hosts of a training run, and the index of this host.

    Attributes:
        index: Index of this host, from 0. Only host 0 writes.
        count: Number of hosts.
        coordinator: Address and port of host 0's coordination service. Empty for a single host.
    """

    index: int = 0
    count: int = 1
    coordinator: str = ""

    @property
    def is_writer(self) -> bool:
        """Whether this is host 0, the only host that writes outputs."""
        return self.index == 0

    @property
    def share(self) -> Share:
        """The part of the examples that this host reads: one contiguous range per host."""
        return Share(self.index, self.count)


ALONE = Hosts()


def parse_host(text: str) -> Hosts:
    """Parse `INDEX/COUNT@ADDRESS[:PORT]`, where ADDRESS is the address of host 0.

    Raises:
        InputError: If the text has another form.

    Example:
        >>> parse_host("1/4@10.0.0.1")
        Hosts(index=1, count=4, coordinator='10.0.0.1:8476')
    """
    parts = re.fullmatch(r"(\d+)/(\d+)@([^@/\s]+)", text)
    if not parts or not int(parts[1]) < int(parts[2]):
        raise InputError(
            f"Cannot read the index of this host: expected INDEX/COUNT@ADDRESS[:PORT], with an index from 0 and the "
            f"address of host 0, such as 1/4@10.0.0.1. Received: {text!r}."
        )
    return _hosts(int(parts[1]), int(parts[2]), parts[3])


def find_hosts(environment: Mapping[str, str]) -> Hosts:
    """Return the hosts that train together, according to TPU_PIPELINES_HOST or the platform's variables.

    Return `ALONE`, a single host, if the variables describe only one host or no host.

    Raises:
        InputError: If a variable is malformed, if the index of this host is not below the number of hosts, or if
            TPU_PIPELINES_HOST_COUNT is above 1 and the variables do not describe this number of hosts.
    """
    if own := environment.get(HOST_VARIABLE):
        return parse_host(own)
    expected = _number(environment, COUNT_VARIABLE, "1", "number of hosts")
    for addresses, index, variables in _told(environment, expected):
        if not addresses or not 0 <= index < len(addresses):
            raise InputError(
                f"Cannot find the hosts of this training run: according to {variables}, this host has the index "
                f"{index}, but there are {len(addresses)} hosts. Expected an index from 0 to one less than the number "
                "of hosts."
            )
        if len(addresses) > 1:
            if expected not in (1, len(addresses)):
                raise InputError(
                    f"Cannot find the hosts of this training run: {variables} list {len(addresses)} hosts, but the "
                    f"machine has {expected} hosts. {_say_it(expected)}"
                )
            return _hosts(index, len(addresses), addresses[0], environment.get("JAX_COORDINATOR_PORT", _PORT))
    if expected > 1:
        raise InputError(
            f"Cannot find the index of this host among the {expected} hosts of the machine. Without the "
            "index, each host would train alone and overwrite the outputs of the others. Expected one of: (1) "
            f"TPU_WORKER_HOSTNAMES and TPU_WORKER_ID; (2) CLUSTER_SPEC with {expected} members; (3) {_ENDPOINTS} and "
            f"{_NUMBER} from the metadata server. Received: "
            f"{'; '.join(f'{name}: {answer}' for name, answer in tell_hosts(environment).items())}. "
            f"{_say_it(expected)}"
        )
    return ALONE


def _say_it(count: int) -> str:
    return (
        f"Start each host with --hosts INDEX/{count}@ADDRESS, where ADDRESS is the address of host 0, or set "
        f"{HOST_VARIABLE} to the same value."
    )


def _number(environment: Mapping[str, str], variable: str, default: str, sought: str) -> int:
    text = environment.get(variable, default)
    if not text.isdecimal():
        raise InputError(f"Cannot find the {sought}: {variable} must be a number. Received: {text!r}.")
    return int(text)


def _hosts(index: int, count: int, first: str, port: int | str = _PORT) -> Hosts:
    if count == 1:
        return ALONE
    return Hosts(index, count, first if ":" in first else f"{first}:{port}")


def _told(environment: Mapping[str, str], expected: int) -> Iterator[tuple[list[str], int, str]]:
    """Yield the platform's descriptions of the hosts, as (addresses of all hosts, index of this host, source's name).

    The TPU's variables come first, because libtpu uses them to number the hosts. The metadata server is queried only if
    `expected`, the number of hosts of the machine, is above 1. Vertex AI does not document the variables that it
    sets on the hosts of a slice. The environment report of a training run lists these variables.
    """
    # GKE sets both for a container that requests google.com/tpu, and JAX uses the first list:
    # https://cloud.google.com/kubernetes-engine/docs/how-to/tpus and jax/_src/clusters/cloud_tpu_cluster.py
    for variable in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"):
        if workers := environment.get(variable):
            # Without an index, each of several hosts would take itself for the first.
            index = _number(environment, "TPU_WORKER_ID", "" if "," in workers else "0", "index of this host")
            # Drop the port: libtpu's own process listens on it.
            addresses = [address.strip().partition(":")[0] for address in workers.split(",") if address.strip()]
            yield addresses, index, f"{variable} and TPU_WORKER_ID"
    # https://cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables
    if spec := environment.get("CLUSTER_SPEC"):
        try:
            content = json.loads(spec)
            pools = sorted((pool, members) for pool, members in content["cluster"].items() if "worker" in pool)
            task = content["task"]
            before = sum(len(members) for pool, members in pools if pool < task["type"])
            yield [member for _, members in pools for member in members], before + int(task["index"]), "CLUSTER_SPEC"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                "Cannot find the hosts of this training run: the variable CLUSTER_SPEC is not in Vertex AI's format "
                f"({describe(error)}). Received: {spec[:200]!r}."
            ) from error
    if expected > 1 and "TPU_SKIP_MDS_QUERY" not in environment:
        number = _metadata(_server(environment), _NUMBER)
        workers = _metadata(_server(environment), _ENDPOINTS)
        if number.isdecimal() and workers:
            # Names, or name:id:address on older VMs.
            addresses = [worker.rpartition(":")[2].strip() for worker in workers.split(",")]
            yield addresses, int(number), f"the metadata server's {_ENDPOINTS} and {_NUMBER}"


def tell_hosts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables and metadata that describe the hosts, as {name: value}, for reports.

    Variables that `find_hosts` ignores are included, because Vertex AI documents only TPU_NODE_NAME and TPU_CONFIG
    (https://cloud.google.com/vertex-ai/docs/training/training-with-tpu-vm).
    """
    told = {name: environment[name] for name in sorted(environment) if _TELLS_HOSTS.fullmatch(name)}
    if COUNT_VARIABLE in environment and "TPU_SKIP_MDS_QUERY" not in environment:
        told |= {key: _metadata(_server(environment), key) or "no answer" for key in (_NUMBER, _ENDPOINTS)}
    return told or {"environment": "nothing"}


def _server(environment: Mapping[str, str]) -> str:
    return environment.get("GCE_METADATA_IP", "metadata.google.internal")


@functools.cache
def _metadata(host: str, key: str) -> str:
    """Return a value from the metadata server, or an empty string if the server or the value is missing."""
    import urllib.request

    request = urllib.request.Request(_METADATA.format(host=host, key=key), headers={"Metadata-Flavor": "Google"})
    for _ in range(_METADATA_TRIES):
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=_METADATA_SECONDS) as response:
            return str(response.read().decode()).strip()
    return ""


def is_writer() -> bool:
    """Return whether this process writes the outputs of a step. Only host 0 writes outputs.

    The result is also True if the variables that describe the hosts are invalid. Training then fails on this host, and
    this host must write the error.
    """
    try:
        return find_hosts(os.environ).is_writer
    except InputError:
        return True


def connect(hosts: Hosts) -> None:
    """Connect to the other hosts before JAX initialises its devices. JAX then has the devices of all hosts.

    Raises:
        Terminated: If a host does not connect in time.
    """
    if hosts.count == 1 or jax.distributed.is_initialized():
        return
    progress.say(
        "train_model", f"host {hosts.index} of {hosts.count}: waiting for the other hosts at {hosts.coordinator}"
    )
    try:
        jax.distributed.initialize(
            hosts.coordinator,
            hosts.count,
            hosts.index,
            initialization_timeout=_ARRIVAL_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except RuntimeError as error:
        raise _lost(f"Not all of the {hosts.count} hosts connected in time ({describe(error)})") from error
    progress.say("train_model", f"all {hosts.count} hosts are connected")


class ProcessGroup:
    """Process group of connected hosts, or of a single host.

    All hosts must call the collective methods (`gather`, `agree`, `broadcast`, `wait_for_all`) in the same order.

    Args:
        hosts: The hosts.
        store: Key-value store of the coordination service. The default is JAX's store. A single host uses no store.
    """

    def __init__(self, hosts: Hosts, store: Any = None) -> None:
        self.hosts = hosts
        self._is_alone = hosts.count == 1
        self._asked_at, self._has_asked = 0.0, False
        self._blocks = self._meetings = self._meeting_at = 0
        if not self._is_alone:
            # JAX's key-value store is not public: https://github.com/jax-ml/jax/blob/main/jax/_src/distributed.py
            from jax._src import distributed

            self._store: Any = store or distributed.global_state.client
            self._listener = threading.Thread(target=self._listen, daemon=True)
            self._listener.start()

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Return, on every host, the arrays of all hosts, concatenated along the first axis in the order of the hosts.

        The arrays may have different lengths. Their dtype is kept, even if it is float64.
        """
        if self._is_alone:
            return array
        from jax.experimental import multihost_utils

        counts = multihost_utils.process_allgather(np.array([len(array)], np.int32), tiled=True)
        # Sent as bytes, because JAX would convert float64 to float32.
        padded = np.zeros((int(counts.max()), *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        raw = np.frombuffer(padded.tobytes(), np.uint8)
        rows = np.asarray(multihost_utils.process_allgather(raw)).reshape(self.hosts.count, -1)
        parts = (np.frombuffer(row.tobytes(), array.dtype).reshape(padded.shape) for row in rows)
        return np.concatenate([part[:count] for part, count in zip(parts, counts, strict=True)])

    def agree(self, value: int) -> int:
        """Return host 0's value on every host. All hosts must call this method."""
        return value if self._is_alone else int(self.gather(np.array([value], np.int64))[0])

    def broadcast(self, content: bytes) -> bytes:
        """Return on every host the bytes that host 0 passes. All hosts must call this method."""
        return self.gather(np.frombuffer(content if self.hosts.is_writer else b"", np.uint8)).tobytes()

    def broadcast_arrays(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return host 0's arrays on every host. All hosts must pass the same names, shapes and types."""
        if self._is_alone:
            return arrays
        from jax.experimental import multihost_utils

        names = sorted(arrays)
        raw = np.frombuffer(b"".join(arrays[name].tobytes() for name in names), np.uint8)  # As bytes, like `gather`.
        received = np.asarray(multihost_utils.broadcast_one_to_all(raw))
        ends = np.cumsum([arrays[name].nbytes for name in names])[:-1]
        parts = dict(zip(names, np.split(received, ends), strict=True))
        return {
            name: np.frombuffer(parts[name].tobytes(), array.dtype).reshape(array.shape)
            for name, array in arrays.items()
        }

    def wait_for_all(self, what: str) -> None:
        """Wait until all hosts have called this method with the same `what`, the name of the barrier."""
        if not self._is_alone:
            self._store.wait_at_barrier(f"tpu_pipelines/{what}", _FOREVER_MS)

    def tell(self, name: str, content: str) -> None:
        """Send a message to all hosts. Each `name` can be used only once."""
        self._store.key_value_set(f"{_TOLD}/{name}", content)

    def hear(self, name: str) -> str:
        """Wait until a host has sent a message under this name with `tell`, and return its content."""
        return str(self._store.blocking_key_value_get(f"{_TOLD}/{name}", _FOREVER_MS))

    def meet(self, wish: bool) -> bool:
        """Agree on a moment at which all hosts do something together, for example save a checkpoint.

        Training runs in blocks of steps. All hosts call this method once per block, after the preceding block is done.
        If host 0 passes `wish=True`, and no moment is agreed on yet, the second call after this one returns True on
        every host.

        This needs no barrier. A block is done only when all hosts have computed it. Therefore, no host is two calls
        ahead of host 0, and every host reads the request in time.

        Args:
            wish: Whether host 0 requests such a moment. On other hosts, this argument is ignored.

        Returns:
            Whether this call is the requested moment. The result is the same on all hosts.
        """
        self._blocks += 1
        if self._meeting_at == 0:
            name = f"{_MEETING}/{self._meetings:08d}"
            if self.hosts.is_writer:
                if wish:
                    self._meeting_at = self._blocks + 2
                    self._store.key_value_set(f"{name}/at", str(self._meeting_at))
            elif told := self._store.key_value_dir_get(name):
                self._meeting_at = int(told[0][1])
        if self._meeting_at != self._blocks:
            return False
        self._meetings = self._meetings + 1
        self._meeting_at = 0
        return True

    def ask_to_end(self) -> None:
        """Inform host 0 that the platform is stopping this host, so that a checkpoint is saved and all hosts exit."""
        if not self._is_alone and not self._has_asked:
            self._has_asked = True
            self._store.key_value_set(f"{_END}/{self.hosts.index}", "")

    def is_asked_to_end(self) -> bool:
        """Return whether a host has called `ask_to_end`.

        The key-value store is queried at most once per half second. A call that does not query the store returns False.
        """
        if self._is_alone or time.monotonic() - self._asked_at < _ASK_EVERY_SECONDS:
            return False
        self._asked_at = time.monotonic()
        return bool(self._store.key_value_dir_get(_END))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Context manager: run the `with` block on all hosts together. If one host fails, all hosts exit.

        At the end of the block, all hosts wait until host 0 has written its outputs.

        Raises:
            Terminated: If another host is lost.
        """
        if self._is_alone:
            yield
            return
        try:
            yield
            self.wait_for_all("done")
            if self.hosts.is_writer:
                self._store.key_value_set(_LEAVE, json.dumps(None))
            self._listener.join()  # A thread that waits in the store at exit would abort the process.
        except termination.Terminated as error:
            self._leave(error.exit_code, str(error))
            raise
        except Exception as error:
            if (cause := find_lost_host_error(error)) is None:
                self._leave(2, str(error)) if isinstance(error, InputError) else self._leave(1, describe(error))
                raise
            lost = f"connection to another host lost ({describe(cause)})"
            self._leave(LOST, lost)
            raise _lost(lost) from error

    def _leave(self, code: int, reason: str) -> None:
        """Send the exit code and the reason to the other hosts, and wait up to 5 s until they have read them.

        This process then exits with the code, without JAX's shutdown.
        """
        _end_at_once(code)
        word = json.dumps({"host": self.hosts.index, "code": code, "reason": reason})
        with contextlib.suppress(Exception):  # Another host was first, or host 0 has ended.
            self._store.key_value_set(_LEAVE, word)
        with contextlib.suppress(Exception):
            self._store.wait_at_barrier(f"{_LEAVE}/heard", _FAREWELL_SECONDS * 1000)

    def _listen(self) -> None:
        """Wait until training is done or another host fails. If a host fails, exit with that host's exit code."""
        try:
            told = json.loads(self._store.blocking_key_value_get(_LEAVE, _FOREVER_MS))
        except Exception:  # Host 0 has ended: JAX ends this process.
            return
        if told is None or told["host"] == self.hosts.index:
            return
        print(paragraph(f"error: host {told['host']} exited: {told['reason']}"), file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):
            self._store.wait_at_barrier(f"{_LEAVE}/heard", _FAREWELL_SECONDS * 1000)
        os._exit(told["code"])


def find_lost_host_error(error: BaseException) -> BaseException | None:
    """Find out whether an error was raised because another host was lost.

    Return the first error, among `error` and its causes, that shows the loss. Return None if there is none.
    """
    from jax.errors import JaxRuntimeError

    for cause in chain_of(error):
        # Gloo connects CPUs. In a step that runs synchronously, its errors are ValueErrors.
        if "Gloo" in str(cause) or (isinstance(cause, JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(cause)):
            return cause
    return None


def _lost(what: str) -> termination.Terminated:
    _end_at_once(LOST)
    return termination.Terminated(LOST, f"{what}. Start all hosts again to continue from the checkpoint.")


def _end_at_once(code: int) -> None:
    """Make this process exit with `code` and without JAX's shutdown, which would wait half a minute for lost hosts."""

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(end)  # The last registered function runs first.
