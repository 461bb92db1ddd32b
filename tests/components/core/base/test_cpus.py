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


def test_the_load_is_what_other_processes_use(tmp_path, monkeypatch):
    """Of 4 CPUs in 100 s: 220 s busy with 20 s stolen by other virtual machines, 180 s idle or waiting for a disk."""
    monkeypatch.setattr(cpus, "STAT_PATH", tmp_path / "stat")
    ticks = os.sysconf("SC_CLK_TCK")
    spent = [150, 20, 20, 150, 30, 5, 5, 20, 7, 7]  # Guests' time, at the end, is in the first two too.
    fields = " ".join(str(seconds * ticks) for seconds in spent)
    (tmp_path / "stat").write_text(f"cpu  {fields}\ncpu0 1 2 3 4\n")
    now = cpus.cpu_times()
    assert (now.whole, now.busy) == (400, 220)
    assert now.others_since(cpus.CpuTimes(0.0, 0.0, now.own - 60)) == pytest.approx(160 / 400)


def test_without_the_systems_figures_no_load_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(cpus, "STAT_PATH", tmp_path / "none")
    before = cpus.cpu_times()
    assert cpus.cpu_times().others_since(before) == 0
