"""Stages of a training: which layers rest in which epochs, and how fast the others learn.

Every stage is compiled for itself, with an optimizer and a learning-rate schedule of its own that start anew; the
weights go on from one to the next.
"""

import dataclasses
import fnmatch
import math
from collections.abc import Sequence
from typing import Any

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.models.step.hyperparameters import TrainParams


@dataclasses.dataclass(frozen=True)
class PlannedStage:
    """A stage as a training of its own.

    Attributes:
        settings: Hyper-parameters with the epochs and the learning rate of the stage, and without stages.
        frozen: Names and patterns of the layers that do not learn in it.
        first_epoch: Number of epochs before it.
        number: Its number, from 1; 0 for a training without stages.
    """

    settings: TrainParams
    frozen: tuple[str, ...] = ()
    first_epoch: int = 0
    number: int = 0


def plan_stages(params: TrainParams) -> tuple[PlannedStage, ...]:
    """Return the stages of a training; a training without stages is a single one.

    Example:
        >>> from tpu_components.core.models.step.hyperparameters import Stage
        >>> params = TrainParams("digits_cnn", epochs=8, stages=(Stage(3, ("conv*",)), Stage(5, learning_rate=1e-5)))
        >>> [(stage.first_epoch, stage.settings.learning_rate) for stage in plan_stages(params)]
        [(0, 0.001), (3, 1e-05)]
    """
    if not params.stages:
        return (PlannedStage(params),)
    planned, first_epoch = [], 0
    for number, stage in enumerate(params.stages, 1):
        rate = stage.learning_rate or params.learning_rate
        settings = dataclasses.replace(params, epochs=stage.epochs, learning_rate=rate, stages=())
        planned.append(PlannedStage(settings, stage.frozen, first_epoch, number))
        first_epoch += stage.epochs
    return tuple(planned)


def stage_of(planned: Sequence[PlannedStage], epoch: int) -> PlannedStage:
    """Return the stage to which an epoch, counted from 0, belongs; the last one for those after the end."""
    return next(stage for stage in reversed(planned) if stage.first_epoch <= epoch)


class Freezer:
    """Lets layers of a model rest, and learn again; a layer that the model itself does not train never learns."""

    def __init__(self, model: Any) -> None:
        """Remember which layers of a keras.Model learn by themselves."""
        self._model = model
        self._own = [(layer, layer.trainable) for layer in model._flatten_layers(include_self=False)]

    def freeze(self, frozen: Sequence[str]) -> int:
        """Let exactly these layers rest, with all that they hold; returns how many values of the model learn then.

        Args:
            frozen: Names of layers, or patterns as `block_*`; a layer within another counts too.

        Raises:
            InputError: If a name fits no layer, or nothing is left that learns.
        """
        for layer, learns in self._own:  # A layer comes before those that it holds.
            layer.trainable = learns
        for pattern in frozen:
            fitting = [layer for layer, _ in self._own if fnmatch.fnmatchcase(layer.name, pattern)]
            if not fitting:
                names = [layer.name for layer, _ in self._own]
                raise InputError(
                    f"Cannot freeze {pattern!r}: the model has no layer of that name. Expected some of "
                    f"{', '.join(names[:12])}{', …' * (len(names) > 12)}.{did_you_mean(pattern, names)} Change "
                    "training.stages."
                )
            for layer in fitting:
                layer.trainable = False
        learning = sum(math.prod(variable.shape) for variable in self._model.trainable_variables)
        if frozen and not learning:
            raise InputError(
                f"Cannot train with {', '.join(map(repr, frozen))} frozen: no weight of the model is left to learn. "
                "Expected fewer in training.stages."
            )
        return learning


def freeze_least(model: Any, params: TrainParams) -> PlannedStage:
    """Freeze a model as in that stage in which the most of it learns, and return that stage.

    Of several alike it is the last. All names of layers are looked up.

    Raises:
        InputError: See `Freezer.freeze`.
    """
    freezer, planned = Freezer(model), plan_stages(params)
    largest = max(reversed(planned), key=lambda stage: freezer.freeze(stage.frozen))
    freezer.freeze(largest.frozen)
    return largest
