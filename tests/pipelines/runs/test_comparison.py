import json
import re
import shutil

import pytest

from tests.support.browser import assert_opens, needs_browser
from tests.support.html_page import Page
from tpu_components.core.machines.device import describe_host
from tpu_pipelines import cli
from tpu_pipelines.runs.comparison import HIGHER, LOWER, Row, as_markdown, as_text, compare, write_page
from tpu_pipelines.runs.summary import Summary
from tpu_pipelines.runs.summary import as_text as summary_text


@pytest.fixture
def two_runs(finished_run, tmp_path):
    """The finished run, and a copy of it with other figures, another curve of the loss and another learning rate."""
    first, second = tmp_path / "first" / "digits", tmp_path / "second" / "digits"
    for folder in (first, second):
        shutil.copytree(finished_run[0] / "digits", folder)

    summary = json.loads((second / "summary.json").read_text())
    summary["config"]["training"]["learning_rate"] = 0.5
    summary["metrics"] |= {"accuracy": 0.25, "loss": 0.0, "top_k_accuracy": None}
    _edit(second / "summary.json", **summary)
    history = second / "model" / "history.jsonl"
    epochs = [json.loads(line) for line in history.read_text().splitlines()]
    history.write_text("".join(json.dumps(epoch | {"loss": 3 + epoch["loss"]}) + "\n" for epoch in epochs))
    return first, second


@pytest.fixture
def twelve_runs(finished_run, tmp_path):
    """The finished run with 12 learning rates; the best on the validation split is not that of the test."""
    folders = []
    for i in range(12):
        folder = tmp_path / f"digits-with-a-long-name-{i}"
        shutil.copytree(finished_run[0] / "digits", folder)
        summary = json.loads((folder / "summary.json").read_text())
        summary["config"]["training"]["learning_rate"] = 0.001 * (i + 1)
        summary["metrics"]["accuracy"] = 0.9 + i / 1000
        _edit(folder / "summary.json", **summary)
        history = folder / "model" / "history.jsonl"
        epochs = [json.loads(line) for line in history.read_text().splitlines()]
        better = {"validation_accuracy": 0.95 - abs(i - 7) / 100}
        history.write_text("".join(json.dumps(epoch | better) + "\n" for epoch in epochs))
        folders.append(folder)
    return folders


def test_many_runs_fit_a_terminal_and_are_ranked_by_validation(twelve_runs):
    found = compare(twelve_runs)
    text = as_text(found)
    assert max(map(len, text.splitlines())) <= 110
    assert len(text.splitlines()) <= 50
    assert [run.label[-2:] for run in found.runs[:3]] == ["-7", "-6", "-8"]
    header, first = text.splitlines()[:2]
    assert header.split("  ")[0] == "run"
    assert "validation accuracy" in header
    assert "test accuracy" in header
    assert "learning_rate" in text
    assert first.startswith("digits-with-a-long-name-7")
    assert "0.9500*" in first
    assert "Choose a run by the validation split, not by the test split" in " ".join(text.split())
    assert "best of 12 runs" in " ".join(text.split())
    assert found.as_dict()["ranked_by"] == "validation accuracy"


@pytest.mark.parametrize("count", [5, 6, 12])
def test_no_table_of_a_page_has_more_columns_than_fit(twelve_runs, tmp_path, count):
    write_page(compare(twelve_runs[:count]), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    heads = re.findall(r"<thead>.*?</thead>", page, re.DOTALL)
    assert heads
    assert max(head.count("<th") for head in heads) <= 8
    assert all(f"digits-with-a-long-name-{i}" in page for i in range(count))


def test_runs_without_validation_keep_their_order(two_runs):
    for folder in two_runs:
        history = folder / "model" / "history.jsonl"
        epochs = [json.loads(line) for line in history.read_text().splitlines()]
        plain = [{name: value for name, value in epoch.items() if "validation" not in name} for epoch in epochs]
        history.write_text("".join(json.dumps(epoch) + "\n" for epoch in plain))
    found = compare(two_runs)
    assert (found.ranked_by, found.advice) == ("", "")
    assert [run.label for run in found.runs] == ["first/digits", "second/digits"]


def _edit(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _cells(text, name):
    """Of the first row of that name."""
    line = next(line for line in text.splitlines() if line.startswith(f"  {name}  "))
    return line.removeprefix(f"  {name}").split()


def test_the_best_of_each_metric_is_marked_whichever_way_it_goes(two_runs):
    found = compare(two_runs)
    text = as_text(found)
    accuracy = found.runs[0].summary.metrics["accuracy"]
    assert _cells(text, "accuracy") == [f"{accuracy:.4f}*", "0.2500"]
    assert _cells(text, "loss")[1] == "0.0000*"
    assert _cells(text, "top_k_accuracy")[1] == "–"
    assert text.splitlines()[1].split() == ["first/digits", "second/digits"]
    assert _cells(text, "sessions") == ["1", "1"]
    assert _cells(text, "goodput") == [f"{found.runs[0].trained['goodput']:.0%}"] * 2


@pytest.mark.parametrize(
    ("values", "direction", "best"),
    [
        ((1, 2, 3), HIGHER, {2}),
        ((1, 2, 2), HIGHER, set()),
        ((0.98331, 0.98334, 0.5), HIGHER, set()),
        ((1, 2, None), LOWER, {0}),
        ((1, 1), HIGHER, set()),
        ((1, None), HIGHER, set()),
        ((1, 2), 0, set()),
    ],
)
def test_best_stands_out_only_where_something_is_worse(values, direction, best):
    texts = tuple("–" if value is None else f"{value:.4f}" for value in values)
    assert Row("", values, texts, direction).best == best


def test_an_epoch_alone_is_seen_and_runs_are_named_in_the_legend(drawings, two_runs, tmp_path):
    path = two_runs[1] / "model" / "history.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    write_page(compare(two_runs), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    told = re.sub(r"<title>.*?</title>", "", page)  # A point's own, under the pointer; there is one for every epoch.
    assert told.count("1 first/digits") == told.count("2 second/digits") > 0
    assert "<title>first/digits, second/digits: 2 runs</title>" in page
    drawing = page[page.index("<svg") : page.index("</svg>")]
    assert drawing.count("<use") > len(path.read_text().splitlines())  # A marker each.
    assert "learning rate" in page
    assert "batch per replica" in page


def test_the_configuration_shows_what_differs_and_nothing_else(two_runs):
    rows = compare(two_runs).sections["configuration"]
    assert [(row.name, row.texts) for row in rows] == [("training.learning_rate", ("0.002", "0.5"))]


def test_a_section_that_is_switched_off_in_one_run_is_one_row(two_runs):
    """What it would say if it were on is no setting of that run."""
    for folder, value in zip(two_runs, [{"max_step_ms": 0.0, "max_price_usd": 0.0}, False], strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        summary["config"]["preflight"] = value
        _edit(folder / "summary.json", **summary)
    rows = {row.name: row.texts for row in compare(two_runs).sections["configuration"]}
    assert rows.pop("training.learning_rate") == ("0.002", "0.5")
    assert rows == {"preflight": ("–", "false")}


def test_results_on_other_data_are_not_ranked(two_runs):
    _edit(two_runs[1] / "model" / "model.json", dataset_fingerprint="other")
    found = compare(two_runs)
    assert found.notes == ("The runs were trained and scored on different data, so their results are not comparable.",)
    assert not any(row.best for row in found.sections["results"])


def _score(folder, split):
    """Change a finished run into one whose gate and export used another split."""
    summary = json.loads((folder / "summary.json").read_text())
    for step in ("gate", "export"):
        summary["config"][step]["split"] = split
    _edit(folder / "summary.json", **summary)


def test_metrics_of_different_examples_of_a_split_are_not_ranked(two_runs):
    """A fine-tuned model was scored without the examples that the first model had been trained on, and won."""
    summary = json.loads((two_runs[1] / "summary.json").read_text())
    summary["metrics"]["num_examples"] -= 100
    _edit(two_runs[1] / "summary.json", **summary)
    found = compare(two_runs)
    assert found.notes == (
        "The gates scored the runs on different examples, because a gate leaves out examples on which a model was "
        "trained. The results are not comparable.",
    )
    assert not any(row.best for row in found.sections["results"])


def test_metrics_of_different_splits_are_not_ranked(two_runs):
    _score(two_runs[1], "validation")
    found = compare(two_runs)
    assert found.notes == ("The gates scored different splits (gate.split), so the results are not comparable.",)
    scores = [row for row in found.sections["export"] if row.name.endswith(", accuracy")]
    assert scores
    assert not any(row.best for row in (*found.sections["results"], *scores))
    assert "test accuracy" not in as_text(found)
    markdown = as_markdown(found)
    assert "on the test split" not in markdown
    assert found.notes[0] in markdown


def test_metrics_are_named_after_the_split_that_the_gate_scored(two_runs):
    for folder in two_runs:
        _score(folder, "validation")
    found = compare(two_runs)
    assert found.notes == ()
    assert any(row.best for row in found.sections["results"])
    assert "| on the validation split |" in as_markdown(found)
    summary = Summary.load(two_runs[0])
    assert re.search(r"\n  validation: .*accuracy", summary_text(summary))
    assert "test:" not in summary_text(summary)


def test_a_failed_run_is_compared_by_what_it_has(two_runs):
    _edit(two_runs[1] / "summary.json", status="failed", metrics={}, export={}, preflight={}, error="train_model: no")
    shutil.rmtree(two_runs[1] / "model")
    found = compare(two_runs)
    assert found.notes == ("second/digits failed: train_model: no",)
    assert _cells(as_text(found), "epochs") == ["4", "–"]


def test_markdown_has_a_line_for_each_run(two_runs):
    header, rule, first, second, _, host = as_markdown(compare(two_runs)).splitlines()
    assert header.count("|") == rule.count("|") == first.count("|") == second.count("|")
    assert second.startswith("| second/digits | accuracy 0.2500 | ")
    assert host == f"Host: {describe_host()}."


def test_markdown_of_several_runs_has_intervals_and_preflight_beside_each_other(two_runs, capsys):
    assert cli.main(["compare", *map(str, two_runs), "--markdown"]) == 0
    _, intervals, preflight = re.split(r"\n(?=\| with|\| preflight)", capsys.readouterr().out)
    assert intervals.startswith("| with 95% confidence | first/digits | second/digits |\n|---|--:|--:|\n")
    (accuracy,) = (line for line in intervals.splitlines() if line.startswith("| Accuracy |"))
    assert re.fullmatch(r"\| Accuracy(?: \| [\d.]+% \([\d.]+% to [\d.]+%\)){2} \|", accuracy)
    for name, line in zip(("first", "second"), preflight.splitlines()[2:], strict=True):
        assert re.fullmatch(
            rf"\| {name}/digits \| v5e-1 \| [\d.]+ µs \| [\d.]+ MiB \| (?:&lt;)?\\\$[\d.]+, Vertex AI's price \|", line
        ), line


def test_markdown_names_each_runs_host_where_they_differ(two_runs):
    _edit(two_runs[0] / "summary.json", host="4 × abacus")
    header, _, first, second = as_markdown(compare(two_runs)).splitlines()
    assert header.endswith("| host |")
    assert [line.split(" | ")[-1] for line in (first, second)] == ["4 × abacus |", f"{describe_host()} |"]


def test_the_page_shows_every_run_with_its_curves_and_needs_nothing_else(two_runs, tmp_path):
    _edit(two_runs[0] / "summary.json", error="<script>", status="failed")
    write_page(compare(two_runs), tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    words = " ".join(" ".join(page.words).split())
    assert "first/digits failed: <script>" in words
    assert "training.learning_rate" in words
    assert [tag for tag, _ in page.tags].count("svg") == 4
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe"})
    assert page.values("src") == []


@needs_browser
def test_the_page_opens_in_a_browser_without_a_complaint(drawings, two_runs, tmp_path):
    write_page(compare(two_runs), tmp_path / "page.html")
    assert_opens(tmp_path / "page.html", tmp_path)


def test_the_command_prints_each_run_once_and_writes_beside_the_first(two_runs, tmp_path, capsys):
    (tmp_path / "latest").symlink_to(two_runs[1])
    assert cli.main(["compare", *map(str, two_runs), str(tmp_path / "latest"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["runs"] == ["first/digits", "second/digits"], "a run that a link names too counts once"
    assert said["configuration"] == {"training.learning_rate": [0.002, 0.5]}
    assert (two_runs[0].parent / "comparison.html").is_file()


def write_run(folder):
    """A run of which only a summary is left."""
    folder.mkdir(parents=True)
    summary = {"status": "failed", "config": {}, "metrics": {}, "preflight": {}, "export": {}, "error": "no"}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_what_is_no_run_is_left_out_and_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "flowers"):
        write_run(tmp_path / "runs" / name)
    for name in ("registry", "digits-preflight"):
        (tmp_path / "runs" / name).mkdir()
    (tmp_path / "runs" / "comparison.html").write_text("")
    assert cli.main(["compare", *sorted(map(str, (tmp_path / "runs").iterdir())), "--markdown"]) == 0
    said = capsys.readouterr()
    assert [line.split(" | ")[0] for line in said.out.splitlines()[2:4]] == ["| digits", "| flowers"]
    left_out = ", ".join(f"{tmp_path}/runs/{name}" for name in ("comparison.html", "digits-preflight", "registry"))
    assert said.err == f"hint: left out because they are not finished runs: {left_out}\n"


def test_what_is_no_run_is_refused(two_runs, tmp_path, capsys):
    def error(*folders):
        assert cli.main(["compare", *map(str, folders)]) == 2
        return capsys.readouterr().err

    assert "summary.json was not found there. Expected folders of runs that have ended" in error(tmp_path)
    assert "Cannot compare /nowhere: there is no such folder" in error(two_runs[0], "/nowhere")
    assert "Cannot compare a run with itself" in error(two_runs[0], two_runs[0])
    (two_runs[0] / "summary.json").write_text("{}")
    assert "it is not the summary of a run in the current format (it lacks the field 'status'" in error(*two_runs)
    (two_runs[0] / "summary.json").write_text("[")
    assert "summary.json: it is not valid JSON (Expecting value" in error(*two_runs)
