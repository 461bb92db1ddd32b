"""Processes of `RunOnCpu`: one runs a pipeline, the other replaces Google's launcher."""

import copy
import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import yaml


def run(path: Path) -> int:
    """Run a submitted pipeline with kfp.local; prints the progress of its tasks."""
    warnings.simplefilter("ignore")
    from kfp import components, local

    from tests.support.fakes import gcsfuse
    from tests.support.fakes.execution import is_custom_job

    logging.basicConfig(stream=sys.stdout, level=logging.INFO, force=True)
    request = json.loads(path.read_text())
    spec = copy.deepcopy(request["spec"])
    for name, component in spec["components"].items():
        if is_custom_job(spec, name):
            spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"] = {
                "image": "python",
                # The last word makes kfp.local treat this as the function that it runs.
                "command": ["python3", "-m", "tests.support.fakes.pipeline_process", "launch", str(path), name],
                "args": ["{{$}}", "kfp.dsl.executor_main"],
            }
    if request.get("mount"):  # Not set for this process, which belongs to the service.
        os.environ.update(gcsfuse.environment(Path(request["mount"])))
    if "pods" in request:
        for label, executor in spec["deploymentSpec"]["executors"].items():
            container, pod = executor["container"], json.dumps(request["pods"].get(label, {}))
            container["command"] = ["python3", "-m", "tests.support.fakes.kfp_launcher", pod, *container["command"]]
    declared = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    values = {
        name: int(value) if declared[name]["parameterType"] == "NUMBER_INTEGER" else value
        for name, value in request["parameters"].items()
    }
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=request["root"], raise_on_error=True)
    # Not JSON: it would be read as YAML, in which 1e-09 is a string.
    components.load_component_from_text(yaml.safe_dump(spec))(**values)
    return 0


def launch(path: Path, component: str, executor_input: str) -> int:
    """Create the custom job of a component at the fake service, wait for it, and print its state."""
    warnings.simplefilter("ignore")
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import aiplatform_v1 as v1

    from tests.support.fakes.execution import create_custom_job, launcher_arguments

    request = json.loads(path.read_text())
    client = v1.JobServiceClient(
        client_options={"api_endpoint": request["endpoint"]}, transport="rest", credentials=AnonymousCredentials()
    )
    task: dict[str, Any] = json.loads(executor_input)
    arguments = launcher_arguments(request["spec"], component, task, request["placeholders"])
    job = create_custom_job(client, arguments)
    resources = {"resources": [{"resourceType": "CustomJob", "resourceUri": f"{request['endpoint']}/v1/{job.name}"}]}
    output = Path(arguments["gcp_resources"])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(resources))
    while not job.end_time:
        time.sleep(0.2)
        job = client.get_custom_job(name=job.name)
    print(f"{job.name}: {job.state.name} {job.error.message}")
    return 0 if job.state == v1.JobState.JOB_STATE_SUCCEEDED else 1


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[2])) if sys.argv[1] == "run" else launch(Path(sys.argv[2]), *sys.argv[3:5]))
