"""What a training makes of what it finds around it."""

import subprocess
import sys


def test_a_training_may_lock_all_the_memory_that_it_is_allowed_to():
    """A TPU's driver asks for it; the soft limit that a container begins with may be 64 KiB."""
    code = (
        "import resource\n"
        "from tpu_components.train_model.environment_report import raise_locked_memory\n"
        "_, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, most))\n"
        "raise_locked_memory()\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)\n"
        "print(soft == hard, hard >= most or hard == -1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
