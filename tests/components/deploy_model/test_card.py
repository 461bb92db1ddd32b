import dataclasses
import re
import runpy
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from tests.support.registered import write_model
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.terminal import visible
from tpu_components.core.drift.shifts import Shift
from tpu_components.core.drift.sketches import DataSketch
from tpu_components.core.examples.artifacts import (
    TRAIN,
    Distribution,
    Manifest,
    ModelInfo,
    Quarantined,
    Shard,
    Split,
    TargetStatistics,
)
from tpu_components.core.examples.interface import CorpusInput, ImageInput, TextInput
from tpu_components.core.metrics.comparisons import Difference
from tpu_components.core.metrics.definitions import task_metrics
from tpu_components.core.models.trained import load_trained_model
from tpu_components.core.registry.folder import ModelRegistry
from tpu_components.core.results.evaluation_info import (
    Baseline,
    Decision,
    EvaluatedModel,
    Evaluation,
    RegisteredChampion,
    Rule,
    SliceMetric,
    Unseen,
)
from tpu_components.core.results.export_info import ComparedOn, ExportInfo, FormatFacts, Output
from tpu_components.deploy_model import DeployParams
from tpu_components.deploy_model.card import CardFacts, read_facts, write_card

IMAGES = ImageInput((8, 8, 1), "raw")
TEXTS = TextInput(5, 100, "a" * 64, "words", "start")
CORPUS = CorpusInput(40, 30)
KINDS = {
    "classes of images": (IMAGES, "classification", "image-classification"),
    "labels of images": (IMAGES, "multi_label", "image-classification"),
    "numbers of images": (IMAGES, "regression", None),
    "classes of texts": (TEXTS, "classification", "text-classification"),
    "a language model": (CORPUS, "language_model", "text-generation"),
}
OURS = {"Exported Formats"}  # The only section that is none of the hub's template.
FOOTPRINT = {
    "machine": "v5e-1",
    "region": "",
    "spot": False,
    "num_examples": 90,
    "num_validation": 0,
    "epochs": 100,
    "global_batch": 32,
    "parameters": 1_234,
    "step_ms": 100.0,
    "peak_bytes": 3 << 20,
    "capacity_bytes": 16 << 30,
    "usd_per_hour": 1.2,
    "compiler": {"libtpu": "0.0.42", "jax": "0.10.2"},
}
# What would be code, markup, a table's cell, a heading or YAML of its own, if it were not shown as what it is.
HOSTILE = (
    "---\nlicense: evil\n---",
    "# heading\r\n- item",
    "a | b | c",
    "<script>alert(1)</script>&amp;",
    "[click](javascript:alert(1)) ![x](http://x/y.png)",
    "```\ncode\n``` `x` **bold** _em_ ~~no~~ $x$ \\",
    "{{ 7 * 7 }} {% raw %} ${HOME}",
    "1. first\u2028second\x00\u202e",
    "'\": {a: [b",
    "@octocat me@example.com http://a.example HTTPS://b.example www.c.example",
)


def facts_of(kind="classes of images", names=("cat", "dog"), source="csv:animals.csv", **changes):
    """The facts of a small model, with everything that a card can tell."""
    inputs, task, _ = KINDS[kind]
    counted = () if task == "regression" else tuple(range(50, 50 - len(names), -1))
    targets = (TargetStatistics(0.5, 0.1, -1.0, 1.0),) * len(names) if task == "regression" else ()
    cut = {"num_truncated": 9, "num_tokens": 400, "num_unknown": 10} if inputs is TEXTS else {}
    bright = {"brightness": Distribution(90, 100.0, 5.0, 80.0, 120.0, (0.0, 256.0), (90,))} if inputs is IMAGES else {}
    split = Split(90, counted, (Shard("train", 90, 9, "0" * 8),), cut, targets, bright)
    test = dataclasses.replace(split, num_examples=30, statistics={"num_also_in_train": 3})
    manifest = Manifest(
        fingerprint="f" * 64,
        source=source,
        split_rule="by the file",
        input=inputs,
        task=task,
        features={},
        class_names=names,
        splits={TRAIN: split, "test": test},
        quarantined=(Quarantined("x.png", "not an image"),),
    )
    figures = dict.fromkeys(task_metrics(task), 0.25) | {"num_examples": 30, "top_k": 2}
    judged = next(iter(task_metrics(task)))
    better = Difference(0.05, 0.01, 0.09, 0.02)
    evaluation = Evaluation(
        split="test",
        dataset_fingerprint="f" * 64,
        model=EvaluatedModel("cnn", {}, "best", "d" * 64),
        class_names=names,
        gate=Decision(True, (Rule(True, "accuracy", "it is good"),)),
        challenger=figures,
        champion={**figures, judged: 0.2},
        registered_champion=RegisteredChampion("0007", "e" * 64),
        baseline=Baseline(judged, f"always answering {names[0]!r}", 0.1, 0.15, 0.05),
        intervals={judged: (0.2, 0.3)},
        differences={judged: better},
        slices=tuple(
            SliceMetric("class", name, 10 + i, "accuracy", 0.5 + i / 100, (0.1, 0.9)) for i, name in enumerate(names)
        ),
    )
    measured = FormatFacts(
        file="model.tflite", bytes=2048, score=0.25, agreement=0.99, max_difference=1e-6, latency_ms=0.5
    )
    export = ExportInfo(
        model="cnn",
        class_names=names,
        task=task,
        input=inputs,
        signatures={},
        output=Output("probabilities"),
        dataset_fingerprint="f" * 64,
        compared_on=ComparedOn("test", 30),
        judged=judged,
        trained_score=0.25,
        formats={"float": measured},
        left_out={"int8": "it was too far"},
    )
    training = {
        "epochs": 3,
        "best_epoch": 2,
        "judged_by": "validation_loss",
        "optimizer": "adam",
        "weight_decay": 0.0,
        "seed": 0,
        "accelerator": "cpu",
        "num_replicas": 2,
        "host": "2 × abacus",
        "steps": 9,
        "examples_seen": 270,
        "paid_seconds": {"trained": 3000.0, "waiting": 600.0},
    }
    facts = CardFacts(
        model_name="animals",
        manifest=manifest,
        copies={"exact": 3, "near": 1, "across_splits": 2, "contradictory": 1},
        model=ModelInfo("cnn", {"width": 8}, names, inputs, task, "f" * 64, training),
        has_code=False,
        evaluation=evaluation,
        export=export,
        lineage={"preflight": FOOTPRINT, "code": {"train_model": "b" * 64}, "config": {"name": "animals"}},
        champion="0007",
        shifts=(Shift("brightness", 0.5, "distance", 1e-9, "100 ± 5", "50 ± 5", drifted=True),),
    )
    return dataclasses.replace(facts, **changes)


def without_what_may_be_unknown(facts):
    """The same model, as a registry without a champion has it, of a run without preflight."""
    evaluation = dataclasses.replace(
        facts.evaluation, champion=None, baseline=None, intervals={}, differences={}, slices=()
    )
    return dataclasses.replace(
        facts,
        copies={},
        model=dataclasses.replace(facts.model, training={}),
        evaluation=evaluation,
        lineage={},
        champion="",
        shifts=None,
    )


@pytest.fixture
def read(digits_records, trained_digits, exported_digits, tmp_path):
    """Read the facts of the small model beside a version that keeps this lineage."""
    registry = ModelRegistry(tmp_path / "registry", "digits")
    folders = (digits_records, trained_digits, Path(exported_digits.path))

    def read(lineage):
        made = write_model(tmp_path / "champion", "one")
        champion = registry.register(*made, metrics={}, reasons=[], lineage=lineage).number
        params, manifest = DeployParams(str(registry.root), "digits"), Manifest.load(digits_records)
        return read_facts(params, registry, folders, manifest, facts_of().evaluation, {}, champion)

    return read


def tokens_of(text):
    """What CommonMark, with tables, makes of the card's text."""
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(ModelCard(text).text)


def structure(text):
    """Its blocks and, within them, its inline markup; the text itself left out."""
    blocks = []
    for token in tokens_of(text):
        blocks.append((token.type, token.tag, token.level))
        blocks += [child.type for child in token.children or () if child.type != "text"]
    return blocks


def shown(text):
    """The text that a reader sees, block by block."""
    return ["".join(child.content for child in token.children) for token in tokens_of(text) if token.children]


def sections(text):
    return re.findall(r"^#{2,} (.+)$", text, re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_hub_reads_of_the_card_of_any_task_what_was_measured(kind, tmp_path):
    (tmp_path / "README.md").write_text(write_card(facts_of(kind)))
    card = ModelCard.load(tmp_path / "README.md")
    _, task, pipeline = KINDS[kind]
    data = card.data
    assert (data.library_name, data.pipeline_tag, data.model_name) == ("keras", pipeline, "animals")
    assert data.license is None
    assert data.datasets is None
    assert {"tpu-pipelines", "tflite"} <= set(data.tags)
    assert [result.metric_value for result in data.eval_results] == [0.25] * len(task_metrics(task))
    assert {result.metric_type for result in data.eval_results} == set(data.metrics)
    for result in data.eval_results:
        assert (result.dataset_name, result.dataset_split) == ("csv:animals.csv", "test")
        assert result.dataset_revision == "f" * 64
        assert result.task_type == (pipeline or "image-regression")


@pytest.mark.parametrize("kind", KINDS)
def test_its_sections_are_those_of_the_hubs_template(kind):
    template = (Path(huggingface_hub.__file__).parent / "templates" / "modelcard_template.md").read_text()
    known = [section.removesuffix(" [optional]") for section in sections(template)]
    text = write_card(facts_of(kind))
    assert set(sections(text)) <= {*known, *OURS}
    inherited = [section for section in sections(text) if section not in OURS]
    assert inherited == [section for section in known if section in inherited], "in the template's order"
    assert "information needed" not in text.lower()


@pytest.mark.parametrize("kind", KINDS)
def test_of_what_nobody_knows_the_card_has_no_section(kind):
    facts = facts_of(kind)
    missing = set(sections(write_card(facts))) - set(sections(text := write_card(without_what_may_be_unknown(facts))))
    assert missing >= {"Environmental Impact", "Compute Infrastructure", "Speeds, Sizes, Times"}
    assert "None" not in text
    assert "Champion" not in text


def test_the_card_tells_the_champions_figures_the_gate_and_the_slices_beside_its_own():
    text = write_card(facts_of())
    assert "| Accuracy | 25.00% | 20.00% to 30.00% | 20.00% | **\\+5.00 points (+1.00 to +9.00)** |" in text
    assert "| metric | value | interval | champion | difference |" in text
    assert "the bounds of a difference from the champion, 0007, with the gate's" in text
    assert "- it is good\n- accuracy 0.2500 beats the 0.1000 of always answering 'cat'\n" in text
    assert text.index("| class 'cat' (10 examples) | 50.00%") < text.index("| class 'dog' (11 examples) | 51.00%")


def test_the_card_tells_what_the_training_took_and_what_preflight_found():
    text = write_card(facts_of())
    assert "- **Hardware Type:** cpu, 2 replicas, on a host of 2 × abacus\n- **Hours used:** 1\n" in text
    assert "| `model_parameters` | width 8 |\n" in text
    assert "| `optimizer` | adam |" in text
    assert "weight_decay" not in text, "it is off"
    assert "- **Memory:** 3.00 MiB of 16.0 GiB on each chip\n- **Step:** 100 ms for a batch of 32\n" in text
    assert (
        "- **Price of a run:** \\$0.010 at Compute Engine's list price" in text
    )  # 300 steps of 0.1 s at 1.2 $ an hour.
    assert f"- **Code of train_model:** {'b' * 16}\n" in text


def test_the_limits_follow_from_the_facts():
    text = write_card(facts_of())
    limits = text[text.index("### Out-of-Scope") : text.index("## How to Get Started")]
    for sentence in (
        "- Given anything else, it still answers one of its 2 classes.\n",
        "- No training example that was measured has a mean brightness (of 255) below 80 or above 120.\n",
        "- Accuracy was measured on 30 images; its 95% confidence interval is 20.00% to 30.00%.\n",
        "- The class that it was shown least is 'dog', in 49 of 90 images.\n",
        "- It is worst where class is 'cat': accuracy 50.00% (10.00% to 90.00%) on 10 images.\n",
        "- Its probabilities are off by 25.0% on average (expected calibration error).\n",
        "- 3 of the test images are in the training data too, so the figures are too good.\n",
        "- Sets of copies that have several labels, of which at least one is wrong: 1.\n",
        "- Compared with the data of version 0007, 1 of 1 figures has drifted: brightness.\n",
    ):
        assert sentence in limits
    texts = write_card(facts_of("classes of texts"))
    assert "- 10.0% of the training texts are longer than 5 tokens: it never saw their start.\n" in texts
    assert "- 2.5% of the training texts' tokens are not in its vocabulary.\n" in texts
    numbers = write_card(facts_of("numbers of images", ("mass",)))
    assert "and gives mass. R² on 30 images" in numbers
    assert "- No training example has a 'mass' below −1 or above 1.\n" in numbers


def test_examples_that_were_trained_on_are_no_part_of_the_figures():
    seen = Unseen(20, 10, (10, 0), ("x",), ({"accuracy": 0.125}, {"accuracy": 0.0625}))
    facts = facts_of()
    facts = dataclasses.replace(facts, evaluation=dataclasses.replace(facts.evaluation, unseen=seen))
    text = write_card(facts)
    assert [result.metric_value for result in ModelCard(text).data.eval_results] == [0.125]
    assert "Accuracy on 20 images of its test split: 12.50%" in text
    assert "- Judged on 20 examples, without 10 that were used in training" in text


def test_a_thousand_classes_are_a_table_of_the_largest_and_the_worst():
    text = write_card(facts_of(names=tuple(f"class number {i}" for i in range(1_000))))
    assert "The largest 20 of 1,000 classes." in text
    assert "The worst 10 of 1,000 slices." in text
    assert len(text) < 12_000


@pytest.mark.parametrize("name", HOSTILE)
def test_what_strangers_named_stays_text(name):
    friendly, hostile = (
        write_card(
            facts_of(
                names=(named, "dog"),
                source=f"csv:{named}",
                shifts=(Shift(named, 0.5, "distance", 1e-9, named, named, drifted=True),),
                lineage={"code": {named: named}, "preflight": {**FOOTPRINT, "machine": named}},
            )
        )
        for named in ("cat", name)
    )
    assert structure(hostile) == structure(friendly)
    before, after = ModelCard(friendly).data, ModelCard(hostile).data
    assert after.to_dict().keys() == before.to_dict().keys()
    assert (after.license, after.tags, after.model_name) == (before.license, before.tags, before.model_name)
    expected = visible(" ".join(name.split()))
    assert f"csv:{expected}" == after.eval_results[0].dataset_name
    assert f"Source: csv:{expected}" in shown(hostile)


def test_addresses_and_mentions_become_no_links():
    """GitHub's Markdown finds them in the text itself: https://github.github.com/gfm/#autolinks-extension-."""
    friendly, hostile = (write_card(facts_of(names=(name, "dog"), notes=name)) for name in ("cat", HOSTILE[-1]))
    for mark in ("@", "://", "www."):
        assert ModelCard(hostile).text.count(mark) == ModelCard(friendly).text.count(mark)


@pytest.mark.parametrize("notes", HOSTILE)
def test_notes_stay_a_quotation_whatever_they_hold(notes):
    text = write_card(facts_of(notes=f"first\n{notes}\nlast"))
    inside = [token.type for token in tokens_of(text)]
    inside = inside[inside.index("blockquote_open") + 1 : inside.index("blockquote_close")]
    assert set(inside) == {"paragraph_open", "inline", "paragraph_close"}
    assert ModelCard(text).data.license is None
    assert sections(text) == sections(write_card(facts_of()))


def test_notes_keep_their_lines_and_paragraphs():
    assert "> one\\\n> two\n>\n> \\- three\n" in write_card(facts_of(notes="one\ntwo\n\n- three\n"))


@pytest.mark.parametrize(
    ("licence", "fields"),
    [
        ("Apache-2.0", ("apache-2.0", None)),
        ("mit", ("mit", None)),
        ("BSD-4-Clause", ("other", "bsd-4-clause")),  # The hub does not know it.
        ("", (None, None)),
    ],
)
def test_a_licence_stands_as_the_hub_knows_it(licence, fields):
    text = write_card(facts_of(licence=licence))
    data = ModelCard(text).data
    assert (data.license, data.get("license_name")) == fields
    assert f"- **License:** {licence or 'none was stated'}\n" in text


@pytest.mark.parametrize("licence", ["all rights reserved", "mit\nmit", "-mit", "m" * 65, "mit: yes"])
def test_what_can_be_no_licences_identifier_is_refused(licence):
    with pytest.raises(InputError, match=rf"licence must be an identifier .*licence={re.escape(repr(licence))}\."):
        DeployParams("registry", "animals", licence=licence)


def test_notes_as_long_as_a_book_are_refused():
    with pytest.raises(InputError, match=r"notes must be at most 10,000 characters\. Received: 10,001\."):
        DeployParams("registry", "animals", notes="x" * 10_001)


def test_notes_that_a_pipeline_would_fill_in_are_refused():
    with pytest.raises(InputError, match=r"notes must be without '\{\{', .*Received: 'of \{\{workflow\.name\}\}'\."):
        DeployParams("registry", "animals", notes="of {{workflow.name}}")


def test_the_same_facts_give_the_same_bytes():
    assert write_card(facts_of(notes="note")) == write_card(facts_of(notes="note"))


def test_data_are_held_against_those_that_the_champion_keeps(read, digits_records):
    sketch = dataclasses.asdict(DataSketch.make(Manifest.load(digits_records)))
    facts = read({"sketch": sketch})
    assert "- **Beside the data of version 0001:** none of 8 figures has drifted\n" in write_card(facts)
    assert not any(shift.drifted for shift in facts.shifts)


def test_data_that_have_drifted_are_named(read, digits_records):
    sketch = dataclasses.asdict(DataSketch.make(Manifest.load(digits_records)))
    text = write_card(read({"sketch": {**sketch, "class_counts": {"0": 1_700, "1": 97}}}))
    assert "- **Beside the data of version 0001:** 1 of 8 figures has drifted: classes\n" in text
    assert "- Compared with the data of version 0001, 1 of 8 figures has drifted: classes.\n" in text


@pytest.mark.parametrize("lineage", [{}, {"sketch": {"source": "of another tool"}}])
def test_of_a_champion_that_keeps_no_sketch_nothing_is_said_of_drift(read, lineage):
    facts = read(lineage)
    assert facts.shifts is None
    assert "Beside the data" not in write_card(facts)


def test_the_cards_keras_code_builds_the_trained_model(read, trained_digits, tmp_path, monkeypatch):
    text = write_card(read({}))
    assert "it takes uint8[batch, 8, 8, 1]: pixels in [0, 255], which it scales itself.\n\n```python\n" in text
    monkeypatch.chdir(trained_digits.parent)
    code = tmp_path / "code_of_the_card.py"
    code.write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    model = runpy.run_path(str(code))["model"]
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1)).astype(np.uint8)
    expected = load_trained_model(trained_digits).predict(pixels, verbose=0)
    np.testing.assert_allclose(model.predict(pixels, verbose=0), expected, atol=1e-6)
