"""Maximum lengths of texts in Kubeflow Pipelines."""

from tpu_pipelines.platforms.limits import Limit

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
