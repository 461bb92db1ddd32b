"""Claims about work that is shared out."""

import itertools
import multiprocessing
import os
import sys
import time

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.work.workers import in_fresh_process, in_processes, in_threads


@pytest.mark.parametrize(("place", "most"), [("gs://bucket/x", 20), ("/tmp/x", 3)])
def test_results_come_in_order_and_never_far_ahead_of_who_takes_them(place, most):
    drawn = []

    def numbers():
        for number in itertools.count():
            drawn.append(number)
            yield number

    results = in_threads(lambda number: number * 2, place, numbers())
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    assert len(drawn) <= most
    results.close()


def test_all_results_come():
    assert list(in_threads(pow, "gs://bucket/x", range(40), [2] * 40)) == [number**2 for number in range(40)]
    assert list(in_threads(pow, "gs://bucket/x", range(40), itertools.repeat(2))) == [number**2 for number in range(40)]


def test_workers_that_are_there_follow_into_another_folder(tmp_path, monkeypatch):
    for folder in (tmp_path, tmp_path.parent):
        monkeypatch.chdir(folder)
        with in_processes(os.getcwd, [()] * 3, 2) as results:
            assert {*results} == {str(folder)}


def test_a_fresh_process_answers_or_says_why_it_does_not():
    assert in_fresh_process(os.getpid) != os.getpid()
    for function, argument, message in (
        (int, "x", "ValueError: invalid literal"),
        (sys.exit, 3, "SystemExit: 3"),
        (os._exit, 3, r"the worker process ended without a result, with \{EXIT\(3\)\}"),
    ):
        with pytest.raises(RuntimeError, match=message):
            in_fresh_process(function, argument)
    with pytest.raises(InputError, match="there is no such file"):
        in_fresh_process(storage.read_bytes, "no/such/file")
    with pytest.raises(RuntimeError, match=r"the call did not finish within 0\.5 s"):
        in_fresh_process(time.sleep, 60, seconds=0.5)


def test_no_worker_is_left_where_no_program_lists_processes(tmp_path, monkeypatch):
    """As in slim images: joblib would ask `pgrep`, and a step would wait for the worker that it could not end."""
    before = multiprocessing.active_children()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="the call did not finish"):
        in_fresh_process(time.sleep, 20, seconds=0.5)
    left = [child for child in multiprocessing.active_children() if child not in before]
    for child in left:
        child.terminate()  # Else these tests would wait for it too.
    assert not left
