"""KFP wrapper of deploy_model."""

from typing import Any, Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import STEPS_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def deploy_model(
    records: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    exported: dsl.Input[dsl.Model],
    evaluation: dsl.Input[dsl.Artifact],
    deployment: dsl.Output[dsl.Artifact],
    registry: str,
    model_name: str,
    alias: str = "champion",
    health_check_examples: int = 32,
    health_check_tolerance: float = 0.01,
    artifacts_uri: str = "",
    serving_image: str = "",
    endpoint: str = "",
    endpoint_traffic: int = 100,
    endpoint_machine_type: str = "n1-standard-2",
    endpoint_max_replicas: int = 1,
    endpoint_service_account: str = "",
    endpoint_access: str = "public",
    endpoint_network: str = "",
    endpoint_projects: List[str] = [],
    encryption_key: str = "",
    signing_key: str = "",
    verify_key: str = "",
    lineage: Dict[str, Any] = {},
    preflight: Dict[str, Any] = {},
    licence: str = "",
    notes: str = "",
    fingerprint: Dict[str, str] = {},
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
