"""Stages of a training run, each with epochs, frozen layers and a learning rate.

The model is compiled again for every stage, with a new optimizer and learning-rate schedule. The weights are kept.
"""

import dataclasses
import fnmatch
import math
from collections.abc import Sequence
from typing import Any

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.models.training_step.hyperparameters import TrainParams


@dataclasses.dataclass(frozen=True)
class PlannedStage:
    """A stage with its complete hyper-parameters.

    Attributes:
        params: Hyper-parameters of the stage, with its epochs and learning rate, without `stages`.
        frozen: Names and patterns of the layers that are not trained.
        first_epoch: Number of epochs before the stage.
        number: Number of the stage, from 1, or 0 for a training run without stages.
    """

    params: TrainParams
    frozen: tuple[str, ...] = ()
    first_epoch: int = 0
    number: int = 0


def plan_stages(params: TrainParams) -> tuple[PlannedStage, ...]:
    """Return the stages of a training run. A training run without stages has a single stage.

    Example:
        >>> from tpu_components.core.models.training_step.hyperparameters import Stage
        >>> params = TrainParams("digits_cnn", epochs=8, stages=(Stage(3, ("conv*",)), Stage(5, learning_rate=1e-5)))
        >>> [(stage.first_epoch, stage.params.learning_rate) for stage in plan_stages(params)]
        [(0, 0.001), (3, 1e-05)]
    """
    if not params.stages:
        return (PlannedStage(params),)
    planned = []
    first_epoch = 0
    for number, stage in enumerate(params.stages, 1):
        own = dataclasses.replace(params, epochs=stage.epochs, stages=())
        if stage.learning_rate:  # It replaces a compiled model's optimizer, even if it equals the default.
            own = dataclasses.replace(own, learning_rate=stage.learning_rate, optimizer=params.optimizer_name)
        planned.append(PlannedStage(own, stage.frozen, first_epoch, number))
        first_epoch += stage.epochs
    return tuple(planned)


def stage_of(planned: Sequence[PlannedStage], epoch: int) -> PlannedStage:
    """Return the stage of an epoch, counted from 0. For epochs after the end, return the last stage."""
    return next(stage for stage in reversed(planned) if stage.first_epoch <= epoch)


class Freezer:
    """Freezes and unfreezes layers of a model. Layers that the model itself declares as not trainable stay frozen."""

    def __init__(self, model: Any) -> None:
        """Record which layers of a keras.Model are trainable."""
        self._model = model
        self._own = [(layer, layer.trainable) for layer in model._flatten_layers(include_self=False)]

    def freeze(self, frozen: Sequence[str]) -> int:
        """Freeze only the named layers and their sublayers. Return the number of trainable parameters.

        Args:
            frozen: Names of layers or sublayers, or patterns such as `block_*`.

        Raises:
            InputError: If a name matches no layer, or no trainable parameter is left.
        """
        for layer, learns in self._own:  # Layers come before their sublayers.
            layer.trainable = learns
        for pattern in frozen:
            fitting = [layer for layer, _ in self._own if fnmatch.fnmatchcase(layer.name, pattern)]
            if not fitting:
                names = [layer.name for layer, _ in self._own]
                raise InputError(
                    f"Cannot freeze {pattern!r}: the model has no layer with this name. Expected names or patterns of "
                    "layers such as "
                    f"{', '.join(names[:12])}{', …' * (len(names) > 12)}.{did_you_mean(pattern, names)} Change "
                    "training.stages."
                )
            for layer in fitting:
                layer.trainable = False
        learning = sum(math.prod(variable.shape) for variable in self._model.trainable_variables)
        if frozen and not learning:
            raise InputError(
                f"Cannot train with {', '.join(map(repr, frozen))} frozen: the model has no other trainable weights. "
                "Freeze fewer layers in training.stages."
            )
        return learning


def freeze_least(model: Any, params: TrainParams) -> PlannedStage:
    """Freeze the layers that are frozen in the stage with the most trainable parameters, and return this stage.

    Preflight compiles only this stage. If several stages tie, the last one is used. The names of frozen layers are
    checked for all stages.

    Raises:
        InputError: If a name matches no layer, or no trainable parameter is left in a stage.
    """
    freezer, planned = Freezer(model), plan_stages(params)
    largest = max(reversed(planned), key=lambda stage: freezer.freeze(stage.frozen))
    freezer.freeze(largest.frozen)
    return largest
