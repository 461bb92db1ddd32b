"""Exit task of a pipeline: sends a notification when a run has ended."""

from kfp import dsl

from tpu_components.core.base.container_images import LOCAL_IMAGE, in_place_of_shell, with_image
from tpu_components.core.base.terminal import hide_credentials
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.platform import Platform


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def notify(run: str, address: str, page: str, run_id: str, status: dsl.PipelineTaskFinalStatus) -> None:
    """Send a message to a webhook if the run did not succeed.

    Args:
        run: Name of the run.
        address: URL of the webhook, or URI of a file in a bucket that contains this URL.
        page: Address of the run's page on the platform, without `run_id`.
        run_id: ID of the run.
        status: Final status of the run, from the platform.
    """
    from tpu_components.core.base.terminal import in_one_line
    from tpu_components.core.component.notification import message, post, reasons

    resource = status.pipeline_job_resource_name
    error = reasons(resource) or status.error_message or ""
    text = message(run, status.state, error, resource, page + run_id)
    if not text:
        print("The run succeeded: no message is sent.")
        return
    print(in_one_line(text))
    post(address, text)


def exit_task(run: str, platform: Platform, settings: Settings) -> dsl.PipelineTask:
    """Add the exit task to the pipeline that is being built, and return it.

    Args:
        run: Name of the run.
        platform: The platform. If it can send the notification itself, its task is used in place of `notify`.
        settings: Settings of the platform. This function uses `notify` (the receiver), the images, and `kfp_host` (for
            the link to the run).
    """
    task = platform.exit_task(settings)
    if task is None:
        host = hide_credentials(settings.kfp_host, "").rstrip("/")
        page = f"{host}/#/runs/details/"
        # KFP's driver replaces a placeholder that is the entire value of an input: backend/src/v2/driver/resolve.go.
        send = with_image(notify, settings.images.steps)
        task = send(run=run, address=settings.notify, page=page, run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER)
        task.set_cpu_limit("1").set_memory_limit("2G")
    return task.set_caching_options(False)
