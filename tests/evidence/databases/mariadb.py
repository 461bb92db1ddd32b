"""A private MariaDB with the tables of Kubeflow Pipelines: on a socket in a temporary folder, in strict mode."""

import contextlib
import getpass
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_START_SECONDS = 60
# The text columns of KFP's models at 7b70c7b, kubeflow/pipelines backend/src/apiserver/model: experiment.go, run.go,
# job.go, pipeline_spec.go, runtime_config.go, cron_schedule.go. A string without a size is VARCHAR(255)
# (client_manager/client_manager.go: DefaultStringSize), a LargeText is LONGTEXT (model/common.go: GormDBDataType).
_SPECIFICATION = """
    PipelineId VARCHAR(255) NOT NULL DEFAULT '',
    PipelineVersionId VARCHAR(255) DEFAULT NULL,
    PipelineName VARCHAR(255) NOT NULL DEFAULT '',
    PipelineSpecManifest LONGTEXT,
    RuntimeParameters LONGTEXT,
    PipelineRoot LONGTEXT
"""
_TABLES = f"""
CREATE TABLE experiments (
    UUID VARCHAR(191) NOT NULL PRIMARY KEY,
    Name VARCHAR(128) NOT NULL,
    Description VARCHAR(255) NOT NULL DEFAULT '',
    Namespace VARCHAR(63) NOT NULL DEFAULT '',
    UNIQUE INDEX idx_name_namespace (Name, Namespace)
);
CREATE TABLE run_details (
    UUID VARCHAR(191) NOT NULL PRIMARY KEY,
    DisplayName VARCHAR(255) NOT NULL,
    Name VARCHAR(255) NOT NULL DEFAULT '',
    Description VARCHAR(255) NOT NULL,
    Namespace VARCHAR(63) NOT NULL DEFAULT '',
    ExperimentUUID VARCHAR(64) NOT NULL,
    JobUUID VARCHAR(255) DEFAULT NULL,
    ServiceAccount VARCHAR(255) NOT NULL DEFAULT '',
    {_SPECIFICATION}
);
CREATE TABLE jobs (
    UUID VARCHAR(191) NOT NULL PRIMARY KEY,
    DisplayName VARCHAR(255) NOT NULL,
    Name VARCHAR(255) NOT NULL DEFAULT '',
    Description VARCHAR(255) NOT NULL,
    Namespace VARCHAR(255) NOT NULL DEFAULT '',
    ExperimentUUID VARCHAR(255) NOT NULL,
    ServiceAccount VARCHAR(255) NOT NULL DEFAULT '',
    Schedule VARCHAR(255),
    {_SPECIFICATION}
);
"""


def is_installed() -> bool:
    """Whether this machine has MariaDB's server."""
    return all(map(shutil.which, ("mariadbd", "mariadb", "mariadb-install-db")))


class Database:
    """A database with KFP's tables; see `running`."""

    def __init__(self, socket: Path) -> None:
        self._client = [
            "mariadb",
            "--no-defaults",
            f"--socket={socket}",
            "--user=root",
            "--default-character-set=utf8mb4",
        ]

    def ask(self, statements: str) -> str:
        """Run statements; what they print."""
        return subprocess.run(
            [*self._client, "--batch"], input=statements, text=True, capture_output=True, check=True
        ).stdout

    def insert(self, table: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
        """Insert each row on its own; the database's errors."""
        statements = []
        for row in rows:
            values = ", ".join(f"CONVERT(X'{text.encode().hex()}' USING utf8mb4)" for text in row.values())
            statements.append(f"INSERT INTO kfp.{table} ({', '.join(row)}) VALUES ({values});")
        done = subprocess.run(
            [*self._client, "--force"], input="\n".join(statements), text=True, capture_output=True, check=False
        )
        return [line for line in done.stderr.splitlines() if line.startswith("ERROR")]


@contextlib.contextmanager
def running() -> Iterator[Database]:
    """Start a server with empty tables, and end it."""
    with tempfile.TemporaryDirectory(prefix="kfp-database-") as name:
        folder = Path(name)
        user = f"--user={getpass.getuser()}"
        files, socket = folder / "data", folder / "socket"
        install = ["mariadb-install-db", "--no-defaults", user, f"--datadir={files}", "--skip-test-db"]
        subprocess.run([*install, "--auth-root-authentication-method=normal"], check=True, capture_output=True)
        options = [f"--datadir={files}", f"--socket={socket}", "--skip-networking", "--sql-mode=STRICT_TRANS_TABLES"]
        options += ["--character-set-server=utf8mb4", f"--pid-file={folder / 'pid'}", f"--log-error={folder / 'log'}"]
        server = subprocess.Popen(["mariadbd", "--no-defaults", user, *options])
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not socket.exists() and server.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            database = Database(socket)
            database.ask(f"CREATE DATABASE kfp; USE kfp; {_TABLES}")
            yield database
        finally:
            server.terminate()
            server.wait()
