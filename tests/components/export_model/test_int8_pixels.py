"""An int8 file takes pixels as they are, however dark the pictures were that it was calibrated with."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from tpu_components.export_model import formats


class _Scores(tf.Module):
    """Three scores from the mean brightness of thirds of an image, in [0, 1]."""

    def __init__(self):
        self.weights = tf.constant(np.kron(np.eye(3), np.ones((16, 1))).astype(np.float32) / 16)

    @tf.function(input_signature=[tf.TensorSpec((None, 4, 4, 3), tf.float32, name="image")])
    def __call__(self, image):
        return {"scores": tf.reshape(image / 255, (-1, 48)) @ self.weights}


def _converted(brightest):
    """The converter's own file, calibrated with pixels up to a value."""
    module = _Scores()
    random = np.random.default_rng(0)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.__call__.get_concrete_function()], module)
    converter.experimental_lower_to_saved_model = False
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    some = random.integers(0, brightest + 1, (50, 1, 4, 4, 3)).astype(np.float32)
    converter.representative_dataset = lambda: ([image] for image in some)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = tf.uint8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return converter.convert()


def _answers(content, pixels):
    """As the export's README says: pixels in, scores out, with nothing but LiteRT."""
    interpreter = Interpreter(model_content=content)
    (given,), (answer,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], pixels.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], pixels)
    interpreter.invoke()
    return given, interpreter.get_tensor(answer["index"])


@pytest.mark.parametrize("brightest", [40, 100, 220, 255])
def test_raw_pixels_give_the_float_models_answers(brightest):
    content = _converted(brightest)
    pixels = np.random.default_rng(1).integers(0, brightest + 1, (64, 4, 4, 3), dtype=np.uint8)
    expected = _Scores()(pixels.astype(np.float32))["scores"].numpy()
    given, answers = _answers(formats.with_plain_pixels(content), pixels)
    assert (given["dtype"], given["quantization"]) == (np.uint8, (1.0, 0))
    np.testing.assert_allclose(answers, expected, atol=0.02 * brightest / 255 + 0.005)
    if brightest < 255:
        of_converter, wrong = _answers(content, pixels)
        assert of_converter["quantization"][0] == pytest.approx(brightest / 255, rel=0.01), "the case that is mended"
        assert np.abs(wrong - expected).max() > np.abs(answers - expected).max()
