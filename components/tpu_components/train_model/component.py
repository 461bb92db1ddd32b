"""KFP wrapper of train_model."""

from typing import Any, Dict

from kfp import dsl

from tpu_components.core.base.container_images import IMAGE, in_place_of_shell
from tpu_components.core.models.step.hyperparameters import TrainParams
from tpu_components.core.step.step_inputs import with_inputs


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
    import functools

    from tpu_components.core.machines.hosts import is_writer
    from tpu_components.core.step.step_record import run_component
    from tpu_components.train_model import TrainParams, jobset, train_model

    ask = jobset.asked()
    work = functools.partial(jobset.train_on_hosts, ask) if ask else train_model
    run_component("train_model", work, TrainParams, inputs, "records", "trained")
    if not is_writer():
        raise SystemExit(0)  # Otherwise KFP's executor would overwrite the outputs of host 0.
