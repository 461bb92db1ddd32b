"""Client of the toy platform: each job is a folder and a process."""

import json
import re
import subprocess
import sys

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.states import State
from tpu_pipelines.platforms.jobs import DIGEST, Submission, fingerprints_in

_COLOUR = re.compile(r"\x1b\[\d+m")
_EVENT = re.compile(r"Executing task '([\w-]+)'|Task '([\w-]+)' finished with status (\w+)")


class ToyClient:
    """A `PlatformClient` whose jobs are in a folder."""

    def __init__(self, folder):
        self._folder = folder

    def create(self, job):
        folder = self._folder / job.job_id
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "pipeline.yaml").write_text(job.package)
            (folder / "job.json").write_text(json.dumps(self.describe(job)))
            (folder / "log.txt").touch()
            words = [sys.executable, "-m", "tests.pipelines.toy_platform.process", str(folder)]
            in_background = 'log="$1"; shift; "$@" > "$log" 2>&1 &'  # It outlives the command that submits it.
            subprocess.run(["sh", "-c", in_background, "sh", str(folder / "log.txt"), *words], check=True)
        return self.get(job.job_id)

    def describe(self, job):
        return {"name": job.name, "machine": job.machine.name, "labels": dict(job.labels)}

    def get(self, job_id):
        folder = self._folder / job_id
        if not (folder / "job.json").is_file():
            return None
        described = json.loads((folder / "job.json").read_text())
        log = _COLOUR.sub("", (folder / "log.txt").read_text())
        steps = {}
        for begun, ended, status in _EVENT.findall(log):
            state = State.RUNNING if begun else State.SUCCEEDED if status == "SUCCESS" else State.FAILED
            steps[(begun or ended).replace("-", "_")] = state
        code = folder / "code.txt"
        state = State.RUNNING if not code.exists() else State.FAILED if int(code.read_text()) else State.SUCCEEDED
        return Submission(
            job_id=job_id,
            name=described["name"],
            state=state,
            machine=described["machine"],
            url=folder.as_uri(),
            logs_url=(folder / "log.txt").as_uri(),
            steps=steps,
            error=log[-1000:] if state is State.FAILED else "",
            fingerprints=fingerprints_in(described["labels"]),
            digest=described["labels"][DIGEST],
        )

    def latest(self, name):
        jobs = sorted(self._folder.glob("*/job.json"), key=lambda path: path.stat().st_mtime)
        named = [path.parent.name for path in jobs if json.loads(path.read_text())["name"] == name]
        return self.get(named[-1] if named else name)

    def cancel(self, job_id):
        raise InputError("Cannot cancel a run on the toy platform. Wait for its end.")

    def find_output(self, job_id, step, output):
        found = sorted((self._folder / job_id).rglob(f"{step.replace('_', '-')}/{output}"))
        return str(found[0]) if found else ""

    def _refuse(self, *_):
        raise InputError("The toy platform has no schedules. Use --target vertex or kubeflow.")

    schedules = schedule_content = create_schedule = update_schedule = _refuse
    pause_schedule = resume_schedule = delete_schedule = _refuse
