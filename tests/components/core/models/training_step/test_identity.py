import keras
import pytest

from tpu_components.core.base.typed_values import fields_of, with_role
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.models.training_step.hyperparameters import Part, TrainParams
from tpu_components.core.models.training_step.identity import _DECISIVE, _SWITCHES, step_digest

_INTERFACE = Interface(ImageInput((8, 8, 1), "raw"), 2)

# In the digest by another way: with the model's configuration, as an argument, or as `weighs_classes`.
OTHERWISE = {"model", "model_parameters", "metrics", "backend", "precision", "balance_classes", "class_weights"}
# Only constants, arguments or the number of calls of a step.
LEFT_OUT = {"epochs", "learning_rate", "learning_rate_scaling", "warmup_epochs", "stages", "callbacks"}
LEFT_OUT |= {"residency", "steps_per_execution"}


@pytest.mark.parametrize(("change", "is_same"), [({}, True), ({"kernel_size": (1, 3)}, False), ({"name": "b"}, True)])
def test_the_digest_of_a_step_depends_on_the_layers_and_not_on_their_names(change, is_same):
    def digest_with(**values):
        convolution = keras.layers.Conv2D(2, **{"kernel_size": (3, 1), "name": "a", **values})
        model = keras.Sequential([keras.Input((8, 8, 1)), convolution, keras.layers.Flatten(), keras.layers.Dense(2)])
        model.compile("sgd")
        return step_digest(model, _INTERFACE, TrainParams(model="digits_cnn"), "jax", "float32")

    assert (digest_with(**change) == digest_with()) is is_same


def test_each_hyper_parameter_is_in_the_digest_of_a_step_or_does_not_change_the_step():
    of_the_host = {*with_role(TrainParams, Part.HOST)}
    own = {*_DECISIVE, *_SWITCHES} - {"weighs_classes"}
    assert OTHERWISE | LEFT_OUT | of_the_host | own == fields_of(TrainParams).keys(), "a new one belongs to one of them"
    assert not own & (OTHERWISE | LEFT_OUT | of_the_host)
