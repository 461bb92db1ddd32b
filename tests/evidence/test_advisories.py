"""What pip-audit is told by a copy of PyPA's advisories."""

import json
import urllib.request
from pathlib import Path

import pytest

from tests.evidence.advisories import affects, load_advisories, server_of

_ADVISORY = """
id: PYSEC-2026-1
published: "2026-07-08T17:17:27Z"
affected:
- package: {name: Some.Package, ecosystem: PyPI}
  ranges:
  - {type: GIT, events: [{introduced: "0"}]}
  - type: ECOSYSTEM
    events: [{introduced: "2.0"}, {introduced: "0"}, {fixed: 1.10}, {last_affected: "2.3"}]
  versions: ["3.0.post1"]
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    (tmp_path / "vulns/some-package").mkdir(parents=True)
    (tmp_path / "vulns/some-package/PYSEC-2026-1.yaml").write_text(_ADVISORY)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.1", True),
        ("1.9", True),
        ("1.10", False),
        ("1.99", False),
        ("2.0", True),
        ("2.3", True),
        ("2.3.1", False),
        ("3.0.post1", True),
    ],
)
def test_an_advisory_is_about_versions_between_its_events_and_those_it_lists(
    database: Path, version: str, known: bool
) -> None:
    (advisory,) = load_advisories(database)["some-package"]
    assert affects(advisory, "some-package", version) is known
    assert not affects(advisory, "another-package", version)


def test_the_server_answers_as_osv_does(database: Path) -> None:
    with server_of(load_advisories(database)) as server:
        for version, expected in [("1.9", ["PYSEC-2026-1"]), ("1.10", [])]:
            query = {"package": {"name": "some-package", "ecosystem": "PyPI"}, "version": version}
            with urllib.request.urlopen(f"{server.url}/v1/query", json.dumps(query).encode(), timeout=10) as answer:
                assert [advisory["id"] for advisory in json.load(answer).get("vulns", [])] == expected


def test_a_folder_without_advisories_is_an_error_and_not_a_clean_bill(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no advisory in"):
        load_advisories(tmp_path)
