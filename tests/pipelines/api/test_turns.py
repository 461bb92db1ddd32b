"""Only one thread of a process works at a time where the work changes the process."""

import threading

from tpu_pipelines.api import turns
from tpu_pipelines.api.turns import in_turn


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_calls_of_several_threads_follow_each_other_and_the_second_says_that_it_waits(capsys, monkeypatch):
    """The first goes on when the second has said that it waits, or has begun without its turn."""
    spans = []
    has_begun, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(turns, "in_one_line", lambda text: goes_on.set() or text)

    @in_turn
    def run(name):
        spans.append(f"{name} begins")
        has_begun.set()
        assert goes_on.wait(60)
        spans.append(f"{name} ends")

    def second():
        has_begun.wait()
        predict("second")

    @in_turn
    def predict(name):
        goes_on.set()
        run(name)

    in_threads(lambda: run("first"), second)
    assert spans == ["first begins", "first ends", "second begins", "second ends"]
    assert capsys.readouterr().err == "hint: predict waits for another thread of this process\n"


def test_an_error_ends_the_turn():
    @in_turn
    def fail():
        raise ValueError("no data")

    def swallow():
        try:
            fail()
        except ValueError as error:
            said.append(str(error))

    said = []
    in_threads(swallow, swallow)
    assert said == ["no data"] * 2
