"""A platform examined for one configuration: all of it, or what takes a second and stops a run for sure."""

import dataclasses
from collections.abc import Sequence

from tpu_components.core.base.errors import InputError
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import TARGET_SETTINGS, Settings
from tpu_pipelines.doctor.findings import Check, Finding, Verdict, ask_all, missing_of
from tpu_pipelines.doctor.google_apis import GoogleApis


def examine(config: Config, target: str, settings: Settings, context: str = "", image: str = "") -> Sequence[Finding]:
    """Return whether everything that a run needs is there.

    Args:
        config: Configuration that is to run.
        target: The platform, as `vertex`.
        settings: Project, region, bucket and images.
        context: Context of Kubernetes, for Kubeflow; empty asks the cluster nothing.
        image: Image that every step is to run in; empty is what TPU_PIPELINES_IMAGE says.

    Raises:
        InputError: If settings are missing, or the configuration names no machine that the platform has.
    """
    return ask_all(*_checks(config, target, settings, context, image))


def require_ready(config: Config, target: str, settings: Settings, image: str) -> list[Finding]:
    """Check what takes a second: sign-in, bucket, image, service account. The arguments as in `examine`.

    Returns:
        What is not as it should be, or not known, and stops nothing.

    Raises:
        InputError: If something is missing without which a run surely fails; names all of it, and what to do.
    """
    first, others = _checks(config, target, settings, "", image)
    findings = ask_all(first if first.is_cheap else None, [check for check in others if check.is_cheap])
    if fatal := [finding for finding in missing_of(findings) if finding.is_fatal]:
        said = "; ".join(f"{finding.what}: {finding.said} → {finding.remedy}" for finding in fatal)
        raise InputError(
            f"Refused to send a run that cannot work. Missing: {said}. `tpu-pipelines doctor` asks for everything, and "
            "--no-doctor sends it all the same."
        )
    return [finding for finding in findings if finding.verdict is not Verdict.THERE]


def _checks(config: Config, target: str, settings: Settings, context: str, image: str) -> tuple[Check, Sequence[Check]]:
    from tpu_components.core.base.container_images import IMAGE

    settings.require(*TARGET_SETTINGS[target])
    image = image or IMAGE
    apis = GoogleApis(settings.project, settings.google_endpoint)
    if target == "kubeflow":
        from tpu_pipelines.doctor.kubeflow import KubeflowChecks

        return KubeflowChecks(config, settings, apis, context, image).checks()
    from tpu_pipelines.doctor.vertex import VertexChecks

    return VertexChecks(config, settings, apis, image).checks()


def as_dicts(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """Return findings as JSON has them; the verdict in a word."""
    return [{**dataclasses.asdict(finding), "verdict": finding.verdict.name.lower()} for finding in findings]
