"""Longest texts that Kubeflow Pipelines and Vertex AI store. Each text is checked before it is sent.

The texts that only a pattern limits are checked where they enter: labels, volumes, secrets and accounts by
`config.settings`, the model's name, alias and endpoint by `deploy_model.params`, machines by `machine_spec`.
"""

import dataclasses
from collections.abc import Mapping

from tpu_components.core.base.errors import InputError


@dataclasses.dataclass(frozen=True)
class Limit:
    """Longest text that a field of a platform stores.

    Attributes:
        what: Name of the field, for messages.
        most: Largest number of characters or bytes.
        source: Where the platform's code or documentation says so.
        counts_bytes: Whether bytes of UTF-8 are counted, and not characters.
        advice: What to do about a longer text.
    """

    what: str
    most: int
    source: str
    counts_bytes: bool = False
    advice: str = "Choose a shorter name."

    def length(self, text: str) -> int:
        """Return the length of a text as the platform counts it."""
        return len(text.encode()) if self.counts_bytes else len(text)


# Columns of MySQL and MariaDB. KFP answers a longer text with 500, and by then it has started a workflow that belongs
# to no run (resource/resource_manager.go: CreateRun), so a longer text must never be sent. Paths are those of
# kubeflow/pipelines, backend/src/apiserver; a string without a size is VARCHAR(255) (client_manager/client_manager.go:
# DefaultStringSize).
KUBEFLOW_LIMITS = {
    "experiment": Limit("name of the experiment", 128, "validation/length.go: LengthSpecs", counts_bytes=True),
    "run": Limit("name of the run", 255, "model/run.go: DisplayName"),
    "description": Limit("description of the run", 255, "model/run.go and model/job.go: Description"),
    "recurring_run": Limit("name of the recurring run", 255, "model/job.go: DisplayName"),
    "cron": Limit(
        "cron expression", 255, "model/cron_schedule.go: Cron", advice="Use ranges and steps, as in '0 3 * * 1-5'."
    ),
    "pipeline": Limit(
        "compiled pipeline",
        700_000,
        "model/pipeline_version.go: PipelineSpec, on Argo's limit",
        counts_bytes=True,
        advice="Shorten the longest values of the configuration, or put them into a file that the model reads.",
    ),
}
# Fields of the service's API, by their file in googleapis google/cloud/aiplatform/v1. No document limits the size of a
# pipeline or of a version's description.
VERTEX_LIMITS = {
    "pipeline_job_id": Limit("id of the pipeline job", 127, "pipeline_service.proto: pipeline_job_id"),
    "pipeline_job": Limit("name of the pipeline job", 128, "pipeline_job.proto: display_name"),
    "custom_job": Limit("name of the custom job", 128, "custom_job.proto: display_name"),
    "schedule": Limit("name of the schedule", 128, "schedule.proto: display_name"),
}


def check_texts(limits: Mapping[str, Limit], texts: Mapping[str, str]) -> None:
    """Check the texts of a request.

    Args:
        limits: Limits of the platform, by field.
        texts: Texts by field.

    Raises:
        InputError: If a text is longer than its field.
    """
    for field, text in texts.items():
        limit = limits[field]
        if (length := limit.length(text)) > limit.most:
            unit = "bytes" if limit.counts_bytes else "characters"
            raise InputError(
                f"The {limit.what} is too long: expected at most {limit.most:,} {unit}, received {length:,}: "
                f"{text[:60]!r}{'…' * (len(text) > 60)}. {limit.advice}"
            )
