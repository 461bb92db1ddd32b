"""`make audit ADVISORIES=FOLDER`: known vulnerabilities of what is locked, by a copy of the advisories.

The folder is a checkout of PyPA's advisory database (github.com/pypa/advisory-database). pip-audit asks a local server
for them as it asks osv.dev (https://google.github.io/osv.dev/post-v1-query).
"""

import http.server
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.fakes.local_server import LocalServer

Advisory: TypeAlias = Mapping[str, Any]


def load_advisories(folder: Path) -> dict[str, list[Advisory]]:
    """Load the advisories of each package, under its normalized name.

    Args:
        folder: Checkout of the database: `vulns/PACKAGE/ID.yaml`, in OSV's schema.

    Raises:
        FileNotFoundError: The folder holds no advisory.
    """
    by_package = defaultdict(list)
    for path in folder.glob("vulns/*/*.yaml"):
        # All scalars stay strings, as OSV's times and versions are.
        by_package[canonicalize_name(path.parent.name)].append(yaml.load(path.read_text(), yaml.BaseLoader))
    if not by_package:
        raise FileNotFoundError(f"no advisory in {folder}: expected vulns/PACKAGE/ID.yaml")
    return dict(by_package)


def affects(advisory: Advisory, name: str, version: str) -> bool:
    """Tell whether an advisory is about a version: one that it lists, or one within its ranges.

    Source: https://ossf.github.io/osv-schema/#evaluation
    """
    return any(
        version in affected.get("versions", [])
        or any(_covers(span["events"], version) for span in affected.get("ranges", []) if span["type"] == "ECOSYSTEM")
        for affected in advisory.get("affected", [])
        if canonicalize_name(affected["package"]["name"]) == name
    )


def _covers(events: Sequence[Mapping[str, str]], version: str) -> bool:
    """Tell whether a version is vulnerable after the events up to it."""
    vulnerable = False
    for kind, at in sorted(
        ((kind, Version(at)) for event in events for kind, at in event.items()), key=lambda event: event[1]
    ):
        if kind == "introduced" and Version(version) >= at:
            vulnerable = True
        if (kind == "fixed" and Version(version) >= at) or (kind == "last_affected" and Version(version) > at):
            vulnerable = False
    return vulnerable


def server_of(advisories: Mapping[str, Sequence[Advisory]]) -> LocalServer:
    """Return a server that answers `POST /v1/query` as osv.dev does."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = canonicalize_name(asked["package"]["name"])
            hits = [advisory for advisory in advisories.get(name, []) if affects(advisory, name, asked["version"])]
            body = json.dumps({"vulns": hits} if hits else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return LocalServer(Handler)


def main() -> int:
    """Run pip-audit, the command after the folder, against the folder's advisories, and return its exit code."""
    advisories = load_advisories(Path(sys.argv[1]))
    newest = max(advisory["published"] for several in advisories.values() for advisory in several)
    count = sum(map(len, advisories.values()))
    print(f"{count} advisories, the newest of {newest}, on {len(advisories)} packages", flush=True)
    with server_of(advisories) as server:
        asked = [*sys.argv[2:], "--vulnerability-service", "osv", "--osv-url", f"{server.url}/v1/query"]
        return subprocess.run(asked, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
