"""Claims about the memory of several processes."""

import subprocess
import sys

from tests.evidence.benchmarks.processes import proportional_bytes


def test_what_a_process_has_started_counts_and_what_has_ended_does_not():
    alone = "import time; held = bytearray(b'1') * 50_000_000; print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {alone!r}])"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert 50_000_000 < proportional_bytes(process.pid) < 150_000_000
    subprocess.run(["kill", "--", f"-{process.pid}"], check=True)
    process.wait()
    process.stdout.close()
    assert proportional_bytes(process.pid) == 0
