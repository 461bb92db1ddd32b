"""Maximum lengths of texts on Vertex AI."""

from tpu_pipelines.platforms.limits import Limit

# Fields of the service's API, by their file in googleapis google/cloud/aiplatform/v1. No document limits the size of a
# pipeline or of a version's description.
VERTEX_LIMITS = {
    "pipeline_job_id": Limit("id of the pipeline job", 127, "pipeline_service.proto: pipeline_job_id"),
    "pipeline_job": Limit("name of the pipeline job", 128, "pipeline_job.proto: display_name"),
    "custom_job": Limit("name of the custom job", 128, "custom_job.proto: display_name"),
    "schedule": Limit("name of the schedule", 128, "schedule.proto: display_name"),
}
