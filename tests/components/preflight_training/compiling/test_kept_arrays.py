"""What an example needs at least, of networks for which it can be counted by hand: bfloat16 takes two bytes."""

import pytest

_EXAMPLE = 64 + 4 + 4  # An image of 8×8 bytes, its label and its weight.
_CODE = """
import sys, keras
from keras import layers
from tests.components.preflight_training.conftest import DIGITS, TRAINING
from tpu_components.core.models.training_step.compiling import compile_model
from tpu_components.preflight_training.compiling.kept_arrays import least_example_bytes

class SelfAttention(layers.Layer):
    def build(self, shape):
        self.attention = layers.MultiHeadAttention(1, 4)
        self.attention.build(shape, shape)

    def call(self, inputs):
        return self.attention(inputs, inputs)

keras.config.set_dtype_policy("mixed_bfloat16")
dense = lambda units, **more: layers.Dense(units, **more)
last = layers.Dense(10, activation="softmax", dtype="float32")
model = keras.Sequential([keras.Input((8, 8, 1), dtype="uint8"), *eval(sys.argv[1]), last])
compile_model(model, DIGITS, TRAINING, 1, 10, jit_compile=True, class_weights=[])
print(least_example_bytes(model, DIGITS))
"""


@pytest.mark.parametrize(
    ("network", "kept"),
    [
        ("[layers.Flatten()]", 10 * 4),
        ("[layers.Flatten(), dense(32, activation='gelu')]", 32 * 2 + 10 * 4),
        ("[layers.Conv2D(16, 3, padding='same', activation='gelu'), layers.Flatten()]", 8 * 8 * 16 * 2 + 10 * 4),
        # Of 64 pixels: queries, keys, values and what they give, 4 features each, and one projected; not 64×64 scores.
        ("[layers.Reshape((64, 1)), SelfAttention(), layers.Flatten()]", 64 * (4 * 4 + 1) * 2 + 10 * 4),
        # The backward pass needs the average alone: half of its 16 values in float32, and of what the head keeps.
        ("[layers.Conv2D(16, 3, padding='same'), layers.GlobalAveragePooling2D()]", None),
        # What is frozen keeps nothing.
        ("[layers.Flatten(), dense(4096, trainable=False), dense(16, trainable=False)]", None),
    ],
    ids=["linear", "dense", "conv", "attention", "averaged", "frozen"],
)
def test_what_the_backward_pass_needs_of_an_example(network, kept, warm):
    needed = int(warm.run(_CODE, network))
    if kept is None:
        assert _EXAMPLE < needed < _EXAMPLE + 4096 * 2
    else:
        assert needed == _EXAMPLE + kept


def test_a_model_with_a_training_step_of_its_own_needs_its_examples(warm):
    code = _CODE.replace("print(", "model.compute_loss_and_updates = None\nprint(")
    assert int(warm.run(code, "[layers.Flatten()]")) == _EXAMPLE


def test_softened_labels_and_a_margin_change_nothing_but_the_images(warm):
    code = (
        _CODE.replace("import sys, keras", "import dataclasses, sys, keras")
        .replace("DIGITS, TRAINING, 1, 10", "DIGITS, dataclasses.replace(TRAINING, label_smoothing=0.1), 1, 10")
        .replace(
            "print(least_example_bytes(model, DIGITS))",
            "wide = dataclasses.replace(DIGITS, input=dataclasses.replace(DIGITS.input, margin=(4, 4)))\n"
            "print(least_example_bytes(model, wide, softens_labels=True))",
        )
    )
    needed = int(warm.run(code, "[layers.Flatten(), dense(32, activation='gelu')]"))
    assert needed == 12 * 12 + 4 + 4 + 32 * 2 + 10 * 4
