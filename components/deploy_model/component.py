"""KFP wrapper of deploy_model."""

from typing import Any, Dict

from kfp import dsl

from tpu_components.core.base.container_images import STEPS_IMAGE, in_place_of_shell
from tpu_components.core.step.component_inputs import with_inputs
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
    import dataclasses
    import pathlib

    from tpu_components.core.step.step_inputs import params_from
    from tpu_components.core.step.step_record import step_record
    from tpu_components.deploy_model import DeployParams, deploy_model

    with step_record("deploy_model", deployment.path):
        params = params_from(inputs, DeployParams)
        result = deploy_model(
            params,
            records_dir=pathlib.Path(records.path),
            model_dir=pathlib.Path(model.path),
            export_dir=pathlib.Path(exported.path),
            evaluation_dir=pathlib.Path(evaluation.path),
            output=pathlib.Path(deployment.path),
        )
        deployment.metadata.update(dataclasses.asdict(result))
