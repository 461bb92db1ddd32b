"""Exit task by which Vertex AI sends e-mails when a run has ended."""

from typing import List  # noqa: UP035 (KFP's types)

from kfp import dsl

from tpu_pipelines.platforms.vertex.custom_job import LAUNCHER_IMAGE


@dsl.container_component
def vertex_pipelines_notification_email(
    recipients: List[str],  # noqa: UP006
    pipeline_task_final_status: dsl.PipelineTaskFinalStatus,
) -> dsl.ContainerSpec:
    """Let Vertex AI send an e-mail.

    The service reads the name and inputs of this component, and never runs it.

    Source of its name, inputs and container: google_cloud_pipeline_components/v1/vertex_notification_email/component.py

    Args:
        recipients: E-mail addresses to send to.
        pipeline_task_final_status: Final status of the run, from the platform.
    """
    module = "google_cloud_pipeline_components.container.v1.vertex_notification_email.executor"
    return dsl.ContainerSpec(
        image=LAUNCHER_IMAGE,
        command=["python3", "-u", "-m", module],
        args=["--type", "VertexNotificationEmail", "--payload", ""],
    )
