"""Loads LiteRT files as functions.

This module imports no other module of this project, because it is also loaded in the process that verifies exports,
which cannot import the project.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

Predict = Callable[[np.ndarray], np.ndarray]
StepFunction = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]  # See `generation.StepFunction`.


def _interpreter(path: Path, num_threads: int) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(model_path=str(path), num_threads=num_threads)


def takes_one(path: Path) -> bool:
    """Return whether the batch size of a LiteRT file is fixed at 1."""
    return bool(_interpreter(path, 1).get_input_details()[0]["shape_signature"][0] == 1)


def load_predictor(path: Path, num_threads: int, factor: Any = 1.0, addend: Any = 0.0) -> Predict:
    """Load a LiteRT file as a function: pixels or IDs of N examples → float32[N, outputs], for any N.

    Args:
        path: The file.
        num_threads: Number of threads for one call.
        factor: Factor by which the outputs are multiplied. For a regression, `factor` and `addend` convert the outputs
            to the targets' units.
        addend: Number that is added to the multiplied outputs.
    """
    interpreter = _interpreter(path, num_threads)
    details, output = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    scale, zero_point = details["quantization"]
    size = 0

    def predict(inputs: np.ndarray) -> np.ndarray:
        nonlocal size
        if len(inputs) != size:  # Cheap: 5 µs for the digits' model, 0.1 ms for 1.7 M weights.
            interpreter.resize_tensor_input(details["index"], inputs.shape)
            interpreter.allocate_tensors()
            size = len(inputs)
        # An int8 model takes uint8 with the scale and zero point of its calibration, usually 1 and 0.
        if details["dtype"] == np.uint8 and (scale, zero_point) != (1.0, 0):
            inputs = np.clip(np.round(inputs / scale) + zero_point, 0, 255)
        interpreter.set_tensor(details["index"], inputs.astype(details["dtype"]))
        interpreter.invoke()
        return interpreter.get_tensor(output["index"])

    holds_one = details["shape_signature"][0] == 1
    run: Predict = _one_at_a_time(path, num_threads) if holds_one else predict
    factor, addend = np.float32(factor), np.float32(addend)
    return lambda inputs: run(inputs) * factor + addend


def _one_at_a_time(path: Path, num_threads: int) -> Predict:
    """Return a predictor for a LiteRT model whose batch size is fixed at 1. Each thread has its own interpreter."""
    own = threading.local()

    def start() -> None:
        own.interpreter = _interpreter(path, 1)
        own.interpreter.allocate_tensors()

    def predict_one(row: np.ndarray) -> np.ndarray:
        details = own.interpreter.get_input_details()[0]
        own.interpreter.set_tensor(details["index"], row[None].astype(details["dtype"]))
        own.interpreter.invoke()
        return own.interpreter.get_tensor(own.interpreter.get_output_details()[0]["index"])

    pool = ThreadPoolExecutor(num_threads, initializer=start)
    return lambda inputs: np.concatenate(list(pool.map(predict_one, inputs)))


def load_step(path: Path, num_threads: int, num_classes: int) -> tuple[StepFunction, int]:
    """Load the step function of a language model from its LiteRT file.

    The function takes the IDs of the current characters of N texts, int32[N], and the states, float32[N, state_size].
    It returns the probabilities of the next characters, float32[N, classes], and the new states.

    Args:
        path: The file.
        num_threads: Number of threads for one call.
        num_classes: Number of characters that the model can predict.

    Returns:
        The function and `state_size`, the number of values in the state of one text.
    """
    interpreter = _interpreter(path, num_threads)
    inputs = {details["dtype"]: details for details in interpreter.get_input_details()}
    tokens = inputs[np.int32]
    states = inputs[np.float32]
    output = interpreter.get_output_details()[0]
    size = 0

    def step(ids: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal size
        if len(ids) != size:
            interpreter.resize_tensor_input(tokens["index"], ids.shape)
            interpreter.resize_tensor_input(states["index"], state.shape)
            interpreter.allocate_tensors()
            size = len(ids)
        interpreter.set_tensor(tokens["index"], np.ascontiguousarray(ids, np.int32))
        interpreter.set_tensor(states["index"], state)
        interpreter.invoke()
        both = interpreter.get_tensor(output["index"])
        return both[:, :num_classes], both[:, num_classes:]

    return step, int(states["shape_signature"][1])
