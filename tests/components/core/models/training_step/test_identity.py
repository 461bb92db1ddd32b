from tpu_components.core.base.typed_values import fields_of, with_role
from tpu_components.core.models.training_step.hyperparameters import Part, TrainParams
from tpu_components.core.models.training_step.identity import _DECISIVE, _SWITCHES

# In the digest by another way: with the model's configuration, as an argument, or as `weighs_classes`.
OTHERWISE = {"model", "model_parameters", "metrics", "backend", "precision", "balance_classes", "class_weights"}
# Only constants, arguments or the number of calls of a step.
LEFT_OUT = {"epochs", "learning_rate", "learning_rate_scaling", "warmup_epochs", "stages", "callbacks"}
LEFT_OUT |= {"residency", "steps_per_execution"}


def test_each_hyper_parameter_is_in_the_digest_of_a_step_or_does_not_change_the_step():
    of_the_host = {*with_role(TrainParams, Part.HOST)}
    own = {*_DECISIVE, *_SWITCHES} - {"weighs_classes"}
    assert OTHERWISE | LEFT_OUT | of_the_host | own == fields_of(TrainParams).keys(), "a new one belongs to one of them"
    assert not own & (OTHERWISE | LEFT_OUT | of_the_host)
