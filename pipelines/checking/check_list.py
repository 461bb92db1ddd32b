"""The one list of checks: what stops a run or spoils it, from a file's content to what a platform says when asked."""

from collections.abc import Collection
from pathlib import Path

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.states import Status
from tpu_pipelines.checking.config_check import ConfigChecks
from tpu_pipelines.checking.platform_check import PlatformChecks
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import TARGET_SETTINGS, Settings
from tpu_pipelines.doctor.findings import Check, Cost, Finding, ask_all, errors_in
from tpu_pipelines.doctor.google_apis import GoogleApis
from tpu_pipelines.pipeline.compile import step_image

UNASKED = (Cost.FILE, Cost.SECONDS)  # What can be known without asking a platform.
ASKED = (Cost.REQUEST, Cost.NETWORK)


def examine(
    config: Config,
    costs: Collection[Cost],
    target: str = "",
    settings: Settings | None = None,
    *,
    workspace: Path = Path("runs"),
    context: str = "",
    image: str = "",
) -> list[Finding]:
    """Ask the checks of some costs whether a run of a configuration has what it needs.

    Args:
        config: Configuration that is to run.
        costs: Costs of the checks to ask.
        target: The platform, as `vertex`; empty for a run on this machine.
        settings: Project, region, bucket and images.
        workspace: Folder for runs on this machine.
        context: Context of Kubernetes, for Kubeflow; empty asks the cluster nothing.
        image: Image that every step is to run in; empty is what TPU_PIPELINES_IMAGE says.

    Raises:
        InputError: If a platform cannot be asked: settings are missing, or the configuration names no machine of its.
    """
    settings, image = settings or Settings(), image or step_image()
    checks = ConfigChecks(config, None if target else workspace).checks()
    if target:
        checks += PlatformChecks(config, target, settings).checks()
    if target and set(ASKED) & set(costs):
        settings.require(*TARGET_SETTINGS[target])
        checks += _asked(config, target, settings, context, image)
    return ask_all([check for check in checks if check.cost in costs])


def _asked(config: Config, target: str, settings: Settings, context: str, image: str) -> list[Check]:
    apis = GoogleApis(settings.project, settings.google_endpoint)
    if target == "kubeflow":
        from tpu_pipelines.doctor.kubeflow import KubeflowChecks

        return KubeflowChecks(config, settings, apis, context, image).checks()
    from tpu_pipelines.doctor.vertex import VertexChecks

    return VertexChecks(config, settings, apis, image).checks()


def require_ready(config: Config, target: str, settings: Settings, image: str) -> list[Finding]:
    """Ask what takes a second: sign-in, bucket, image, service account. The arguments as in `examine`.

    Returns:
        What is not as it should be, or not known, and stops nothing.

    Raises:
        InputError: If something is missing without which a run surely fails; names all of it, and what to do.
    """
    findings = examine(config, (Cost.REQUEST,), target, settings, image=image)
    if errors := errors_in(findings):
        raise InputError(
            f"Refused to send a run that cannot work. Missing: {'; '.join(map(str, errors))}. `tpu-pipelines doctor` "
            "asks for everything, and --no-doctor sends it all the same."
        )
    return [finding for finding in findings if finding.state is not Status.OK]
