import os
import signal
import subprocess
import sys
import threading

import pytest

from tpu_components.core.base import termination

_WORK = """
import sys, time
from pathlib import Path
from tpu_components.core.files import storage; from tpu_components.core.base import termination

termination._GRACE_SECONDS = 0.5
with termination.heard(), storage.staged_directory(Path(sys.argv[1])) as staged:
    (staged / "half").write_text("half of it")
    {what}
"""


def _ended(what, folder):
    """The exit code of work that hears SIGTERM once it has said that it has begun."""
    command = [sys.executable, "-c", _WORK.format(what=what), str(folder / "whole")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        process.terminate()
    return process.returncode


def test_what_is_half_written_is_removed(tmp_path):
    assert _ended("print('begun', flush=True); time.sleep(60)", tmp_path) == 143
    assert list(tmp_path.iterdir()) == []


def test_who_swallows_it_is_not_waited_for(tmp_path):
    swallow = """try:
        print("begun", flush=True)
        time.sleep(60)
    except BaseException:
        time.sleep(60)"""
    assert _ended(swallow, tmp_path) == 143
    assert not (tmp_path / "whole").exists()


def test_put_off_it_ends_the_block_when_that_is_ready():
    done = []

    def work():
        with termination.heard(), termination.put_off() as is_asked:
            assert not is_asked()
            os.kill(os.getpid(), signal.SIGTERM)
            assert is_asked()
            done.append("saved")

    with pytest.raises(termination.Terminated) as ended:
        work()
    assert (done, ended.value.code) == (["saved"], 143)


def test_signals_of_a_caller_stay_theirs():
    before = signal.getsignal(signal.SIGTERM)
    with termination.put_off() as is_asked:
        assert signal.getsignal(signal.SIGTERM) is before
        assert not is_asked()
    with termination.heard():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_nothing_is_asked_for():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with termination.heard():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
