import json

import pytest

from tests.components.preflight_training.receipts.runs import OTHER, predict, receive
from tests.support.cli import assert_user_error, tpu_pipelines_here


@pytest.fixture
def call(tmp_path):
    def call(*words):
        return tpu_pipelines_here("receipts", *words, "--workspace", str(tmp_path / "runs"))

    return call


@pytest.fixture
def bucket_of_runs(tmp_path):
    for number, receipt in enumerate(
        (receive(13.0, predict()), receive(13.2, predict()), receive(9.0, predict(program=OTHER), program=OTHER))
    ):
        (tmp_path / "fleet" / str(number)).mkdir(parents=True)
        receipt.save(tmp_path / "fleet" / str(number))
    return str(tmp_path / "fleet")


def test_receipts_are_added_once_and_listed_with_the_intervals_that_follow(call, bucket_of_runs):
    assert call().stdout.startswith("no receipts; preflight uses the intervals of published step times")
    added = call("add", bucket_of_runs)
    assert (added.returncode, added.stdout) == (0, call("list").stdout)
    assert "3 added, 0 completed with a prediction, 0 unchanged" in added.stderr
    assert "0 added, 0 completed with a prediction, 3 unchanged" in call("add", bucket_of_runs, bucket_of_runs).stderr
    lines = [" ".join(line.split()) for line in added.stdout.splitlines()]
    assert "aaaaaaaa v5e-8 9,990 10.0 ms (8.70–15.4) 13.0 ms 1.30 3.00 GiB 3.33 min $0.60" in lines
    (own,) = [line for line in lines if line.endswith("2 runs of this program, 1 of others")]
    assert own.startswith("aaaaaaaa v5e-8 1.30 (1.09–1.40)")
    shown = json.loads(call("--json").stdout)
    assert len(shown["receipts"]) == 3
    (interval,) = [each for each in shown["intervals"] if each["own_runs"] == 2]
    assert (interval["low"], interval["high"]) == pytest.approx((1.0949, 1.4015), abs=0.0005)


def test_run_that_says_nothing_is_listed_with_the_reason(call, tmp_path):
    receive(prediction=predict(), machine="cpu").save(tmp_path)
    shown = call("add", str(tmp_path / "receipt.json")).stdout
    assert "predicted for v5e-8" in shown
    assert "no run can be used; preflight uses the intervals of published step times" in shown


def test_damaged_file_adds_nothing(call, bucket_of_runs, tmp_path):
    damaged = tmp_path / "fleet" / "2" / "receipt.json"
    damaged.write_text(damaged.read_text()[:-20])
    assert_user_error(call("add", bucket_of_runs), str(damaged), "is not a receipt", "Remove the file")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [(("add",), "Nothing to add"), (("list", "runs"), "Cannot list 'runs'"), (("add", "none"), "none")],
)
def test_mistakes_are_named(call, words, message):
    assert_user_error(call(*words), message)
