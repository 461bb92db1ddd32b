"""Claims about the mounted bucket that steps meet on the fake Vertex AI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import gcsfuse


def run_there(code, folder, owner=None):
    """What a program prints that has the folder mounted; it finds the folder's name in `mount`."""
    imports = "import errno, fcntl, os, shutil\nfrom pathlib import Path\n"
    imports += "from tpu_components.core.files import storage\n"
    program = f"{imports}mount = Path({str(folder)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", program + code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **gcsfuse.environment(folder, owner)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CODE_OF = """
def code_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "gcs" / "bucket" / "full").mkdir(parents=True)
    (tmp_path / "gcs" / "bucket" / "empty").mkdir()
    (tmp_path / "gcs" / "bucket" / "full" / "file").write_text("content")
    (tmp_path / "here").write_text("here")
    return tmp_path / "gcs"


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("os.rename, mount/'bucket/full', mount/'bucket/other'", "EMFILE"),
        ("os.rename, mount/'bucket/empty', mount/'bucket/other'", "done"),
        ("os.rename, mount/'bucket/full/file', mount/'bucket/file'", "done"),
        ("os.replace, mount/'../here', mount/'bucket/here'", "EXDEV"),
        ("os.link, mount/'bucket/full/file', mount/'bucket/other'", "ENOSYS"),
        ("shutil.move, mount/'../here', mount/'bucket/here'", "done"),
    ],
)
def test_what_a_mounted_bucket_does_not_do_fails(files, call, answer):
    assert run_there(f"{CODE_OF}\nprint(code_of({call}))", files) == answer


def test_modes_and_inodes_mean_nothing_and_free_space_has_no_end(files):
    code = """
path = mount / "bucket/full/file"
path.chmod(0o400)
found = path.stat()
print(oct(found.st_mode & 0o777), found.st_ctime == found.st_mtime, shutil.disk_usage(mount).free > 2**40, found.st_ino)
"""
    first, second = run_there(code, files).split(), run_there(code, files).split()
    assert first[:3] == ["0o644", "True", "True"]
    assert first[3] != second[3]


def test_a_lock_is_had_by_two_at_once(files):
    code = """
files = [open(mount / "bucket/lock", "w") for _ in range(2)]
for file in files:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("both")
"""
    assert run_there(code, files) == "both"


def test_who_has_not_mounted_the_bucket_is_denied(files):
    answers = "code_of(open, mount / 'bucket/full/file'), code_of(os.listdir, mount), os.access(mount, os.R_OK)"
    code = f"{CODE_OF}\nprint({answers})"
    assert run_there(code, files, owner=os.getuid() + 1) == "EACCES EACCES False"


def test_what_is_written_whole_arrives_whole_and_nothing_else_does(files):
    code = """
for number in range(2):
    with storage.staged_directory(mount / "bucket/model") as staged:
        (staged / "weights").mkdir()
        (staged / "weights/w").write_text(f"w{number}")
        (staged / "model.json").write_text("{}")
    storage.write_bytes(mount / "bucket/one", b"1")
    storage.copy_tree(mount / "bucket/full", mount / "bucket/copied")
try:
    with storage.staged_directory(mount / "bucket/broken"):
        raise RuntimeError
except RuntimeError:
    print((mount / "bucket/broken").exists(), storage.read_bytes(str(mount / "bucket/copied/file")))
"""
    assert run_there(code, files) == "False b'content'"
    found = sorted(str(path.relative_to(files / "bucket")) for path in files.rglob("*") if path.is_file())
    assert found == ["copied/file", "full/file", "model/model.json", "model/weights/w", "one"]


def test_a_step_that_may_not_use_the_bucket_is_told_so(files):
    code = """
from tpu_components.core.base.errors import InputError
try:
    storage.require_writable(mount / "bucket/model")
except InputError as error:
    print(error)
"""
    assert "may not be written" in run_there(code, files, owner=os.getuid() + 1)


def test_the_rules_are_kept_only_below_the_mount(files, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    assert run_there(f"{CODE_OF}\nprint(code_of(os.rename, mount / '../folder', mount / '../other'))", files) == "done"
    assert Path(tmp_path / "other" / "file").exists()


OTHERS = """
import subprocess
def for_others(path):
    return subprocess.run(["cat", path], capture_output=True, text=True).stdout or "nothing"
def others_write(path, content):
    subprocess.run(["sh", "-c", f"printf {content} > {path}"], check=True)
"""


def test_a_file_is_there_for_others_once_it_is_closed(files):
    code = """
told = []
path = mount / "bucket/new"
with open(path, "w") as file:
    print("whole", file=file, flush=True)
    told.append(for_others(path))
told.append(for_others(path).strip())
with open(path, "a") as file:
    file.write("more")
    told.append(for_others(path).strip())
told.append(for_others(path).replace("\\n", "+"))
print(*told)
"""
    assert run_there(OTHERS + code, files) == "nothing whole whole whole+more"


@pytest.mark.parametrize(
    ("opened", "used"),
    [
        ("file = open(path, 'rb', buffering=0)", "file.read()"),
        ("file = open(path)", "file.read()"),
        ("file = os.open(path, os.O_RDONLY)", "os.read(file, 10)"),
        ("file = open(path, 'w')", "file.close()"),
        ("file = open(path, 'a'); file.write('more')", "file.close()"),
    ],
)
@pytest.mark.parametrize("change", ["others_write(path, 'other')", "os.unlink(path)"])
def test_a_file_that_is_changed_while_it_is_open_is_stale(files, opened, used, change):
    code = f"path = mount / 'bucket/full/file'\n{opened}\n{change}\nprint(code_of(lambda: {used}))"
    assert run_there(OTHERS + CODE_OF + code, files) == "ESTALE"


def test_a_step_that_meets_a_stale_file_says_so_in_a_sentence(files):
    code = """
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.step.step_record import StepRecord, step_record
def read(path):
    with open(path, "rb", buffering=0) as file:
        others_write(path, "other")
        file.read()
try:
    with step_record("export_model", str(mount / "bucket/run/exported")):
        read(mount / "bucket/full/file")
except PlatformError as error:
    print(error)
print(StepRecord.load(mount / "bucket/run").error)
"""
    (files / "bucket" / "run").mkdir()
    said, recorded = run_there(OTHERS + code, files).splitlines()
    assert said == recorded
    assert said.startswith(f"{files}/bucket/full/file was changed in the bucket while it was open here")
    assert said.endswith("Run again once nothing else writes there.")
