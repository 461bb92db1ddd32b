"""KFP wrapper of deploy_model."""

from typing import Any, Dict

from kfp import dsl

from tpu_components.core.base.container_images import STEPS_IMAGE, in_place_of_shell
from tpu_components.core.step.step_inputs import with_inputs
from tpu_components.deploy_model.params import DeployParams


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
@with_inputs(DeployParams)
def deploy_model(
    records: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    exported: dsl.Input[dsl.Model],
    evaluation: dsl.Input[dsl.Artifact],
    deployment: dsl.Output[dsl.Artifact],
    fingerprint: Dict[str, str] = {},
    **inputs: Any,
) -> None:
    """Register a promoted model and, after a health check, make it the champion."""
    inputs = dict(locals())
    from tpu_components.core.step.step_record import run_component
    from tpu_components.deploy_model import DeployParams, deploy_model

    folders = ("records", "model", "exported", "evaluation", "deployment")
    run_component("deploy_model", deploy_model, DeployParams, inputs, *folders)
