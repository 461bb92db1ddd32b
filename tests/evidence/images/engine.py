"""What builds and runs containers here: docker, or podman where no docker daemon answers."""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.cli import REPOSITORY

CERTIFICATES = Path("/etc/ssl/certs")
_DEBIAN, _RELEASE = "localhost/debian-13:latest", "trixie"
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"  # What docker/Dockerfile asks of a base.
_FOR_APT = ("var/cache/apt", "var/lib/apt/lists", "usr/share/man", "usr/share/locale")
# Where this machine is a container or a small virtual machine itself, it has no network and no control groups to give.
_PLAIN = """
[containers]
netns = "host"
cgroupns = "host"
default_ulimits = ["nofile=20000:20000", "nproc=32000:32000"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


def tagged(name: str, tag: str) -> str:
    """Return the variable by which the Makefile is told what an image is called."""
    return f"{'IMAGE' if name == 'train' else f'{name.upper()}_IMAGE'.replace('-', '_')}={tag}"


class CannotRunError(Exception):
    """Containers cannot be built or run here; its text says why."""


class Engine:
    """Docker or podman.

    Args:
        work: Folder for its settings and for the base.
    """

    def __init__(self, work: Path) -> None:
        self._work, self.environment = work, dict(os.environ)
        self.name = self._choose()

    def _choose(self) -> str:
        if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
            return "docker"
        if not shutil.which("podman"):
            raise CannotRunError("no docker daemon answers, and podman is not installed (apt-get install podman runc)")
        return "podman"

    def call(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Call it; `CalledProcessError` holds what it said."""
        command = [self.name, *map(str, arguments)]
        return subprocess.run(command, check=check, text=True, capture_output=True, env=self.environment)

    def find_base(self, asked: str) -> str:
        """Return an image that containers can be made of: the one asked for, else the Dockerfile's, else Debian's own.

        Raises:
            CannotRunError: If there is none, or none runs.
        """
        base = asked or self._pull() or self._import_debian()
        if not self._runs(base):
            settings = self._work / "containers.conf"
            settings.write_text(_PLAIN)
            self.environment["CONTAINERS_CONF"] = str(settings)
            if not self._runs(base):
                said = self.call("run", "--rm", base, "true", check=False).stderr.strip()
                raise CannotRunError(f"{self.name} runs no container here: {said[-300:]}")
        return base

    def _runs(self, image: str) -> bool:
        return self.call("run", "--rm", image, "true", check=False).returncode == 0

    def _pull(self) -> str:
        text = (REPOSITORY / "docker" / "Dockerfile").read_text()
        base = next(line.removeprefix("ARG BASE=") for line in text.splitlines() if line.startswith("ARG BASE="))
        return base if self.call("pull", f"docker.io/library/{base}", check=False).returncode == 0 else ""

    def _import_debian(self) -> str:
        """Make Debian 13 from its own packages, without what only its package manager needs."""
        if not shutil.which("debootstrap") or os.geteuid() != 0:
            raise CannotRunError("no registry has the base image for us, and debootstrap, as root, is not there either")
        with tempfile.TemporaryDirectory(dir=self._work) as folder:
            made = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _RELEASE, folder]
            subprocess.run(made, check=True, capture_output=True)
            self._update(Path(folder))
            for needless in _FOR_APT:
                shutil.rmtree(Path(folder) / needless)
            for document in Path(folder).glob("usr/share/doc/*/*"):
                if document.is_dir() and not document.is_symlink():
                    shutil.rmtree(document)
                elif document.name != "copyright":  # The licences, which are to be passed on with what they are of.
                    document.unlink()
            command = [self.name, "import", "-", _DEBIAN]
            with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as packed:
                subprocess.run(command, stdin=packed.stdout, check=True, capture_output=True, env=self.environment)
        return _DEBIAN

    def _update(self, root: Path) -> None:
        """Bring a Debian below a folder up to date, from where this machine has its own packages: security's too."""
        if not _SOURCES.is_file():
            return
        here = platform.freedesktop_os_release()["VERSION_CODENAME"]
        listed = root / "etc" / "apt" / "sources.list.d" / _SOURCES.name
        listed.write_text(_SOURCES.read_text().replace(here, _RELEASE))
        for words in (["update"], ["--yes", "upgrade"]):
            subprocess.run(["chroot", root, "apt-get", *words], check=True, capture_output=True)
        listed.unlink()

    def make(self, *words: str) -> str:
        """Make something of the Makefile with this engine; returns what it prints. `CalledProcessError` says more."""
        command = ["make", "--silent", f"ENGINE={self.name}", *words]
        return subprocess.run(
            command, check=True, text=True, capture_output=True, cwd=REPOSITORY, env=self.environment
        ).stdout

    def build(self, name: str, tag: str, base: str, afresh: bool = False) -> None:
        """Build an image of the repository; this machine's certificates are seen while it is built, not kept."""
        here = "--network host" + (" --no-cache" if afresh else "")
        if self.name == "podman":  # Needs no rights beyond those of a container of its own.
            here += f" --isolation chroot --volume {CERTIFICATES}:{CERTIFICATES}:ro"
        self.make(f"image-{name}", f"BASE={base}", f"BUILD_FLAGS={here}", tagged(name, tag))

    def labels(self, image: str) -> dict[str, str]:
        """Return what an image says of itself."""
        return dict(json.loads(self.call("image", "inspect", image).stdout)[0]["Config"]["Labels"])

    def size(self, image: str) -> int:
        """Return the bytes of all of an image's layers."""
        return int(json.loads(self.call("image", "inspect", image).stdout)[0]["Size"])

    def files(self, image: str) -> Iterator[tarfile.TarInfo]:
        """Yield what is in an image: every file and folder, with its mode."""
        with self._unpacked(image) as archive:
            yield from archive

    def contents(self, image: str) -> dict[str, tuple[object, ...]]:
        """Return what is in an image, by name: kind, mode, owner, target and a digest of the content; no times."""
        held = {}
        with self._unpacked(image) as archive:
            for entry in archive:
                file = archive.extractfile(entry) if entry.isfile() else None
                digest = hashlib.file_digest(file, "sha256").hexdigest() if file else ""
                held[entry.name] = (entry.type, entry.mode, entry.uid, entry.gid, entry.linkname, digest)
        return held

    @contextlib.contextmanager
    def _unpacked(self, image: str) -> Iterator[tarfile.TarFile]:
        container = self.call("create", image, "none").stdout.strip()
        packed = subprocess.Popen([self.name, "export", container], stdout=subprocess.PIPE, env=self.environment)
        try:
            with tarfile.open(fileobj=packed.stdout, mode="r|") as archive:
                yield archive
        finally:
            packed.wait()
            self.call("rm", container)

    def run(self, image: str, command: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container that is gone afterwards."""
        return self.call("run", "--rm", *options, image, *command)

    @contextlib.contextmanager
    def socket(self) -> Iterator[Mapping[str, str]]:
        """Give the variables by which Docker's own client finds this engine."""
        if self.name == "docker":
            yield {}
            return
        address = f"unix://{self._work}/podman.sock"
        service = subprocess.Popen(["podman", "system", "service", "--time=0", address], env=self.environment)
        try:
            yield {"DOCKER_HOST": address}
        finally:
            service.terminate()
            service.wait()
