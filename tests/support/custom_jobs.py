"""Custom jobs of Vertex AI as Google's launcher sends them."""

import json
import re
from typing import Any

from google.protobuf import json_format

from tpu_components.core.base.typed_values import whole_numbers


def submitted_job(step: Any) -> tuple[str, Any]:
    """Return location and custom job that Google's own launcher sends for a step, as the service's types read them.

    A field that these types do not have is an error. Inputs have their defaults.
    """
    from google.cloud import aiplatform_v1
    from google_cloud_pipeline_components.container.v1.custom_job import remote_runner
    from google_cloud_pipeline_components.container.v1.gcp_launcher.utils import json_util

    spec = json_format.MessageToDict(getattr(step, "make_task", step).pipeline_spec)
    (component,) = spec["components"].values()
    assert spec["root"]["inputDefinitions"] == component["inputDefinitions"]
    (executor,) = spec["deploymentSpec"]["executors"].values()
    arguments = dict(zip(executor["container"]["args"][::2], executor["container"]["args"][1::2], strict=True))

    def fill_in(match: re.Match[str]) -> str:
        value = component["inputDefinitions"]["parameters"][match[1]]["defaultValue"]
        # The service writes whole numbers as such; they travel as doubles.
        return value if isinstance(value, str) else json.dumps(whole_numbers({"": value})[""])

    class Client:
        def create_custom_job(self, parent: str, custom_job: dict[str, Any]) -> Any:
            return aiplatform_v1.CustomJob(custom_job)

    pattern = r"\{\{\$\.inputs\.parameters\['(\w+)'\]\}\}"
    location, payload = (re.sub(pattern, fill_in, arguments[name]) for name in ("--location", "--payload"))
    job = json_util.recursive_remove_empty(json.loads(payload))
    return location, remote_runner.create_custom_job_with_client(Client(), "parent", job)
