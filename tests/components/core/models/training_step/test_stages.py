import json
import math
from dataclasses import replace

import keras
import numpy as np
import pytest

from tests.components.train_model.interrupting import continue_training, train_alone, train_until_sigterm
from tests.components.train_model.weights import assert_equal_models
from tpu_components.core.base.errors import InputError
from tpu_components.core.models.training_step.hyperparameters import Stage, TrainParams
from tpu_components.core.models.training_step.stages import Freezer, freeze_least, plan_stages, stage_of
from tpu_components.train_model.checkpoints.checkpoint import CHECKPOINT_FILE, load_arrays

_TWO = (Stage(2, ("conv*",), 0.01), Stage(3))


def test_stages_refuse_a_value_by_name():
    with pytest.raises(InputError, match=r"the sum of the epochs of all stages\. Received: epochs=4, and 5 in"):
        TrainParams("digits_cnn", epochs=4, stages=_TWO)
    with pytest.raises(InputError, match=r"at least 1\. Received: epochs=0"):
        Stage(0)
    with pytest.raises(InputError, match=r"learning_rate=-0\.5"):
        Stage(1, learning_rate=-0.5)


def test_every_stage_is_a_training_of_its_own():
    planned = plan_stages(TrainParams("digits_cnn", epochs=5, learning_rate=0.1, stages=_TWO))
    assert [(stage.first_epoch, stage.params.epochs, stage.params.learning_rate) for stage in planned] == [
        (0, 2, 0.01),
        (2, 3, 0.1),
    ]
    assert [stage_of(planned, epoch).number for epoch in range(6)] == [1, 1, 2, 2, 2, 2]
    (alone,) = plan_stages(TrainParams("digits_cnn", epochs=5))
    assert (alone.number, stage_of((alone,), 7)) == (0, alone)


@pytest.fixture
def model():
    layers = keras.layers
    backbone = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, name="block_1"), layers.Dense(2, name="block_2", trainable=False)],
        name="backbone",
    )
    return keras.Sequential([keras.Input((4,)), backbone, layers.Dense(1, name="head")])


def test_layers_rest_by_name_or_pattern_and_learn_again(model):
    freezer = Freezer(model)
    own = model.get_config()
    assert freezer.freeze(()) == 4 * 3 + 3 + 2 + 1
    assert freezer.freeze(("backbone",)) == freezer.freeze(("block_*",)) == 2 + 1
    assert freezer.freeze(("head",)) == 4 * 3 + 3, "what the model itself does not train does not learn"
    freezer.freeze(())
    assert model.get_config() == own


def test_a_name_of_no_layer_and_nothing_left_to_learn_are_refused(model):
    with pytest.raises(InputError, match=r"Cannot freeze 'backbon'.*Did you mean 'backbone'\?"):
        Freezer(model).freeze(("backbon",))
    with pytest.raises(InputError, match="has no other trainable weights"):
        Freezer(model).freeze(("backbone", "head"))


def test_the_largest_stage_is_that_in_which_the_most_learns(model):
    params = TrainParams("any", epochs=3, stages=(Stage(1, ("backbone",)), Stage(1, ("head",)), Stage(1, ("block_1",))))
    assert freeze_least(model, params).number == 2
    assert len(model.trainable_variables) == 2
    with pytest.raises(InputError, match="'nothing'"):
        freeze_least(model, replace(params, stages=(*params.stages[:2], Stage(1, ("nothing",)))))


@pytest.mark.heavy  # Three trainings: 5 s.
def test_frozen_layers_rest_and_a_session_that_begins_between_stages_gives_the_same(
    quick, digits_records, tmp_path, capfd
):
    stages = (Stage(1, ("conv*",), 0.01), Stage(1, ("dense*",)))
    params = replace(quick, epochs=2, stages=stages, ema_decay=0.9, learning_rate_schedule="cosine")
    train_alone(params, digits_records, tmp_path / "whole")
    assert train_until_sigterm(params, digits_records, tmp_path / "killed", looks=40) == (1, 0)
    after_first, _ = load_arrays(tmp_path / "killed-checkpoints" / CHECKPOINT_FILE)
    continue_training(params, digits_records, tmp_path / "killed", capfd)
    assert_equal_models(tmp_path / "whole", tmp_path / "killed")

    last, _ = load_arrays(tmp_path / "whole-checkpoints" / CHECKPOINT_FILE)
    kernels = {name: array for name, array in after_first.items() if name.startswith("weight/") and array.ndim > 1}
    learned = {array.ndim for name, array in kernels.items() if not np.array_equal(array, last[name])}
    assert learned == {4}, "kernels of convolutions, and no dense layer's"
    history = [json.loads(line) for line in (tmp_path / "whole" / "history.jsonl").read_text().splitlines()]
    assert [entry["stage"] for entry in history] == [1, 2]
    # The last of 40 steps from the peak to nothing, in each.
    end = (1 + math.cos(math.pi * 39 / 40)) / 2
    assert [entry["learning_rate"] for entry in history] == pytest.approx([0.01 * end, 0.005 * end], rel=1e-3)
    architecture = (tmp_path / "whole" / "architecture.json").read_text()
    assert '"trainable": false' not in architecture, "the model is saved as it was built"
