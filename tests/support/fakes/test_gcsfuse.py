"""Claims about the mounted bucket that steps see on the fake Vertex AI."""

import os
import subprocess
import sys

import pytest

from tests.support.fakes import gcsfuse


def run_there(code, folder, owner=None):
    """Return the output of a program that has the folder mounted, as `mount`."""
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


def test_a_mounted_bucket_is_no_file_system(files, tmp_path):
    code = f"""{CODE_OF}
calls = (
    (os.rename, mount / "bucket/full", mount / "bucket/other"),
    (os.rename, mount / "bucket/empty", mount / "bucket/other"),
    (os.replace, mount / "../here", mount / "bucket/here"),
    (os.link, mount / "bucket/full/file", mount / "bucket/other"),
    (shutil.move, mount / "../here", mount / "bucket/here"),
    (os.rename, mount / "../folder", mount / "../other"),
)
print(*(code_of(*call) for call in calls))
locks = [open(mount / "bucket/lock", "w") for _ in range(2)]
print(*(code_of(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB) for file in locks))
path = mount / "bucket/full/file"
path.chmod(0o400)
found = path.stat()
print(oct(found.st_mode & 0o777), found.st_ctime == found.st_mtime, shutil.disk_usage(mount).free > 2**40)
print(found.st_ino)
"""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    renamed, locked, status, inode = run_there(code, files).splitlines()
    assert renamed == "EMFILE done EXDEV ENOSYS done done"
    assert locked == "done done"
    assert status == "0o644 True True"
    assert inode != run_there("print((mount / 'bucket/full/file').stat().st_ino)", files)


def test_who_has_not_mounted_the_bucket_is_denied(files):
    code = f"""{CODE_OF}
from tpu_components.core.base.errors import InputError
print(code_of(open, mount / "bucket/full/file"), code_of(os.listdir, mount), os.access(mount, os.R_OK))
try:
    storage.require_writable(mount / "bucket/model")
except InputError as error:
    print(error)
"""
    answers, said = run_there(code, files, owner=os.getuid() + 1).splitlines()
    assert answers == "EACCES EACCES False"
    assert "is not accessible" in said


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


def test_a_file_that_is_changed_while_it_is_open_is_stale(files):
    code = """
opens = (
    (lambda: open(path, "rb", buffering=0), lambda file: file.read()),
    (lambda: open(path), lambda file: file.read()),
    (lambda: os.open(path, os.O_RDONLY), lambda file: os.read(file, 10)),
    (lambda: open(path, "w"), lambda file: file.close()),
)
path = mount / "bucket/full/file"
for change in (lambda: others_write(path, "other"), lambda: os.unlink(path)):
    for open_it, use in opens:
        others_write(path, "content")
        file = open_it()
        change()
        print(code_of(use, file))
"""
    assert run_there(OTHERS + CODE_OF + code, files).split() == ["ESTALE"] * 8


def test_a_step_that_meets_a_stale_file_says_so_in_a_sentence(files):
    code = """
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.component.step_record import StepRecord, step_record
def read(path):
    with open(path, "rb", buffering=0) as file:
        others_write(path, "other")
        file.read()
try:
    with step_record("export_model", str(mount / "bucket/run/export")):
        read(mount / "bucket/full/file")
except PlatformError as error:
    print(error)
print(StepRecord.load(mount / "bucket/run").error)
"""
    (files / "bucket" / "run").mkdir()
    said, recorded = run_there(OTHERS + code, files).splitlines()
    assert said == recorded
    assert said.startswith(f"{files}/bucket/full/file was changed in the bucket while it was open:")
    assert said.endswith("Run again when nothing else writes there.")
