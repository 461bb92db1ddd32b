import math
import threading
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tpu_components.train_model.checkpoints.checkpoint import (
    TrainingProgress,
    Writer,
    all_finite,
    load_arrays,
    restore,
    save_arrays,
)


def test_checkpoint_keeps_arrays_and_progress_to_the_bit(tmp_path):
    arrays = {
        "weight/00000": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),
        "optimizer/00000": np.array(7, np.int64),
        "metric/00000": np.array([], np.float32),
    }
    progress = TrainingProgress(
        "abc", epoch=2, step=5, seconds=1.25, best_epoch=1, best_loss=1 / 3, history=[{"a": 0.1}]
    )
    save_arrays(tmp_path / "new" / "checkpoint.npz", arrays, progress)
    loaded, its_progress = load_arrays(tmp_path / "new" / "checkpoint.npz")
    assert its_progress == progress
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert np.array_equal(loaded[name], array)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["checkpoint.npz"]


def test_arrays_can_be_saved_without_progress(tmp_path):
    save_arrays(tmp_path / "best.npz", {"a": np.ones(2)})
    assert load_arrays(tmp_path / "best.npz")[1] is None


def test_one_job_at_a_time_is_written_in_the_background_and_a_failure_is_not_lost():
    writer, gate, done = Writer(), threading.Event(), []

    def slow():
        gate.wait(10)
        done.append("slow")

    writer.submit(slow)
    assert done == []
    gate.set()
    writer.submit(lambda: done.append(1 / 0))
    assert done == ["slow"]
    with pytest.raises(ZeroDivisionError):
        writer.submit(lambda: done.append("never"))
    writer.wait()
    writer.close()
    assert done == ["slow"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_found_among_others(value, dtype):
    good = {"a": np.ones((2, 2), dtype), "seed": np.array([1, 2], np.uint32)}
    assert all_finite(good)
    assert not all_finite({**good, "b": np.array([0.0, value], dtype)})


def test_restore_refuses_the_names_of_another_model():
    variables = {"weight/00000": SimpleNamespace(assign=lambda value: None)}
    with pytest.raises(ValueError, match="weight/00001"):
        restore(variables, {"weight/00000": np.ones(1), "weight/00001": np.ones(1)})
