"""Stores what is sent to Kubeflow in a real MariaDB: `python -m tests.evidence.databases`.

Random names and labels are submitted and scheduled through KFP's client, and each schedule is replaced once. MariaDB,
in strict mode and with the tables of KFP's models, must take every text that was sent. Descriptions of earlier
versions, with all labels, show that it would refuse longer ones.

Needs Debian's package: `apt-get install mariadb-server`. 1,000 runs take half a minute of CPU time.
"""

import argparse
import collections
import dataclasses
import json
import random
import sys
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from tests.evidence.benchmarks.submissions import Idle
from tests.evidence.databases.mariadb import is_installed, running
from tests.support.fakes.kubeflow import FakeKubeflow
from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import MachineSpec
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.jobs import DIGEST, FINGERPRINTS, Job, slug
from tpu_pipelines.platforms.kubeflow.client import KubeflowClient
from tpu_pipelines.submission.schedule import upsert

_LETTERS = "abcxyzABCXYZ0189äöüßéñçøжд日本語العע"
_LABEL_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_-"
_PIPELINE = "pipelineInfo: {name: training-pipeline}\nroot: {dag: {tasks: {}}}\n"
_MACHINES = ("v5e-1", "v5e-4", "v5e-256", "v6e-8", "v5p-12288", "a100-80gb-8", "7x-1")


def random_jobs(number: int, seed: int = 0) -> Iterator[tuple[Job, Settings]]:
    """Jobs whose names, labels, machines and digests are random, with the settings that have the labels."""
    chance = random.Random(seed)
    settings = Settings(kfp_host="http://kfp")
    for _ in range(number):
        name = chance.choice(_LETTERS) + "".join(chance.choices(f"{_LETTERS}-_.", k=chance.randrange(64)))
        labels = {f"a{_label(chance, 62)}": _label(chance, 63) for _ in range(chance.choice((0, 1, 2, 3, 8, 40)))}
        digests = [f"{chance.getrandbits(48):012x}" for _ in range(4)]
        if not chance.randrange(4):  # YAML must not read one as a number.
            digests = [f"{chance.randrange(10**12):012d}" for _ in range(4)]
        machine = chance.choice(_MACHINES)
        own = {f"tpu_pipelines_{part}": digest for part, digest in zip(FINGERPRINTS, digests[1:], strict=True)}
        own |= {"tpu_pipelines_machine": machine, "tpu_pipelines_region": "northamerica-northeast1"}
        own |= {"tpu_pipelines_run": slug(name), DIGEST: digests[0], "tpu_pipelines_fallback": "1"}
        job_id = f"{slug(name)}-{digests[0]}" + chance.choice(("", "-f1", "-r12", "-r3-f2"))
        job = Job(job_id, name, _PIPELINE, MachineSpec("v5e-4"), {**labels, **own})
        yield job, dataclasses.replace(settings, labels=labels)


def _label(chance: random.Random, most: int) -> str:
    return f"{''.join(chance.choices(_LABEL_LETTERS, k=chance.randrange(most)))}x"[:most].lstrip("_-")


def earlier_description(job: Job) -> str:
    """What versions before this one described a run by: all of its labels."""
    return yaml.safe_dump(dict(job.labels))


def send(job: Job, settings: Settings, fake: FakeKubeflow, chance: random.Random) -> None:
    """Submit a job, schedule it, and replace the schedule.

    Raises:
        InputError: If something about the job is refused.
    """
    platform = KubeflowClient(dataclasses.replace(settings, kfp_host=fake.url))
    platform.create(job)
    upsert(platform, job, "0 3 * * *")
    changed = {**job.labels, DIGEST: f"{chance.getrandbits(48):012x}"}
    upsert(platform, dataclasses.replace(job, labels=changed), "TZ=America/Argentina/ComodRivadavia 0 4 * * 1-5")


def rows_of(fake: FakeKubeflow) -> dict[str, list[dict[str, str]]]:
    """Return the rows of the requests that the server took, by table."""
    rows = collections.defaultdict(list)
    for call in fake.calls:
        if call.status != 200:
            continue
        if call.method == "experiment_service_create_experiment":
            experiment = call.request["experiment"]
            rows["experiments"].append({"UUID": experiment.experiment_id, "Name": experiment.display_name})
        if call.method == "run_service_create_run":
            rows["run_details"].append(_row(call.request["run"]))
        if call.method == "recurring_run_service_create_recurring_run":
            recurring = call.request["recurring_run"]
            rows["jobs"].append({**_row(recurring), "Schedule": recurring.trigger.cron_schedule.cron})
    return rows


def _row(item: Any) -> dict[str, str]:
    return {
        "UUID": str(uuid.uuid4()),
        "DisplayName": item.display_name,
        "Description": item.description,
        "ExperimentUUID": item.experiment_id,
        "PipelineSpecManifest": json.dumps(item.pipeline_spec),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Send, store, and print what became of it; 0 if everything that was sent is stored."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.databases", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="runs with random names and labels")
    parser.add_argument("--seed", type=int, default=0, help="of the random names and labels")
    asked = parser.parse_args(arguments)
    if not is_installed():
        print("This needs MariaDB's server: apt-get install mariadb-server", file=sys.stderr)
        return 2
    chance = random.Random(asked.seed)
    refused = []
    earlier = []
    with FakeKubeflow(Idle()) as fake, running() as database:
        for job, settings in random_jobs(asked.runs, asked.seed):
            earlier.append(earlier_description(job))
            try:
                send(job, settings, fake, chance)
            except InputError as error:
                refused.append(str(error))
        rows = rows_of(fake)
        errors = [error for table, those in rows.items() for error in database.insert(table, those)]
        print(database.ask("SELECT VERSION(), @@sql_mode"))
        for table, those in rows.items():
            longest = max(len(row.get("Description", "")) for row in those)
            print(f"{table}: {len(those):,} rows sent, longest description {longest}, {_count(database, table)} stored")
        too_long = database.insert("jobs", [_earlier_row(text) for text in earlier])
        print(f"descriptions of earlier versions: {len(earlier):,}, of which {len(too_long):,} refused")
        cases = [{"UUID": name, "Name": name} for name in ("cased-Name", "cased-name")]
        print(f"names that differ in case only: 2, of which {len(database.insert('experiments', cases))} refused")
    print(f"names refused locally: {len(refused):,}")
    print("\n".join(errors[:5]))
    return 1 if errors else 0


def _count(database: Any, table: str) -> str:
    return f"{int(database.ask(f'SELECT COUNT(*) FROM kfp.{table}').split()[-1]):,}"


def _earlier_row(description: str) -> dict[str, str]:
    return {"UUID": str(uuid.uuid4()), "DisplayName": "x", "Description": description, "ExperimentUUID": "x"}


if __name__ == "__main__":
    sys.exit(main())
