"""Rules about the settings of a run on Vertex AI."""

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import Mistakes
from tpu_pipelines.config.settings import Settings, setting

REQUIRED = ("project", "region", "bucket")
_OF_REGION = ("network_attachment", "encryption_key", "tensorboard")  # Named projects/…/…/REGION/….
# Labels of a job: 64, of which submissions set 8 and the service sets 1.
# https://cloud.google.com/resource-manager/docs/labels-overview
_MOST_LABELS = 55


def check(settings: Settings) -> None:
    """Check that the service accepts all settings together.

    Raises:
        InputError: If the service would reject them. The message names all mistakes.
    """
    mistakes = Mistakes()
    if len(settings.labels) > _MOST_LABELS:
        mistakes.add(
            f"Too many labels: expected at most {_MOST_LABELS} in the {setting('labels')} on Vertex AI, "
            f"received {len(settings.labels)}. Remove some."
        )
    with mistakes.kept():
        check_region(settings, settings.region)
    if settings.network and settings.network_attachment:
        mistakes.add(
            f"A job cannot have both a network and a network attachment. Received: network={settings.network!r} and "
            f"network_attachment={settings.network_attachment!r}. Remove one of them."
        )
    if settings.tensorboard and not settings.service_account:
        mistakes.add(
            f"TensorBoard requires a service account. Received: tensorboard={settings.tensorboard!r} without a "
            f"service account. Add the {setting('service_account')}."
        )
    mistakes.raise_all()


def check_region(settings: Settings, region: str) -> None:
    """Check that regional resources are in the region of a job.

    Raises:
        InputError: If a resource is in another region. The message names the resource.
    """
    for name in _OF_REGION:
        value = getattr(settings, name)
        if value and region and value.split("/")[3] != region:
            raise InputError(
                f"The {setting(name)} must be in the region {region}, where the job runs. "
                f"Received: {value!r}. Use a resource in that region."
            )
