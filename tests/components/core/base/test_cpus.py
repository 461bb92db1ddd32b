import os

import pytest

from tpu_components.core.base import cpus


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("150000 100000", 2),
        ("400000 100000", 4),
        ("120000 100000", 1),
        ("20000 100000", 1),
        ("6400000 100000", 8),
        ("max 100000", 8),
    ],
)
def test_a_container_may_use_what_its_limit_allows(tmp_path, monkeypatch, quota, expected):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(cpus, "QUOTA_PATH", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert cpus.available_cpus() == expected


def test_a_system_without_groups_or_affinity_may_use_all(tmp_path, monkeypatch):
    monkeypatch.setattr(cpus, "QUOTA_PATH", tmp_path / "none")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cpus.available_cpus() == os.cpu_count()
