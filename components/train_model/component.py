"""KFP wrapper of train_model."""

from typing import Any, Dict

from kfp import dsl

from tpu_components.core.base.container_images import IMAGE, in_place_of_shell
from tpu_components.core.step.component_inputs import with_inputs
from tpu_components.train_model.params import TrainParams


@in_place_of_shell
@dsl.component(base_image=IMAGE, install_kfp_package=False)
@with_inputs(TrainParams)
def train_model(
    records: dsl.Input[dsl.Dataset],
    trained: dsl.Output[dsl.Model],
    fingerprint: Dict[str, str] = {},
    **inputs: Any,
) -> None:
    """Train a Keras model; a restarted task continues from its checkpoint."""
    inputs = dict(locals())
    import dataclasses
    import pathlib

    from tpu_components.core.machines.hosts import is_writer
    from tpu_components.core.step.step_inputs import params_from
    from tpu_components.core.step.step_record import step_record
    from tpu_components.train_model import TrainParams, jobset, train_model

    with step_record("train_model", trained.path):
        params, ask = params_from(inputs, TrainParams), jobset.asked()
        paths = pathlib.Path(records.path), pathlib.Path(trained.path)
        result = jobset.train_on_hosts(ask, params, *paths) if ask else train_model(params, *paths)
        trained.metadata.update(dataclasses.asdict(result))
    if not is_writer():
        raise SystemExit(0)  # Otherwise KFP's executor would overwrite the outputs of host 0.
