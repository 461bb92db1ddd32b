import dataclasses
import re
import runpy
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.terminal import visible
from tpu_components.core.examples.artifacts import (
    TRAIN,
    Manifest,
    ModelInfo,
    Quarantined,
    Shard,
    Split,
)
from tpu_components.core.examples.interface import CorpusInput, ImageInput, TextInput
from tpu_components.core.metrics.comparisons import Difference
from tpu_components.core.metrics.definitions import task_metrics
from tpu_components.core.models.trained import load_trained_model
from tpu_components.core.results.evaluation_info import (
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
from tpu_components.deploy_model.card import write_card

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


def facts_of(kind="classes of images", names=("cat", "dog"), source="csv:animals.csv", has_code=False, **stated):
    """The arguments of `write_card` for a small model, with everything that a card can tell."""
    inputs, task, _ = KINDS[kind]
    counted = () if task == "regression" else tuple(range(50, 50 - len(names), -1))
    cut = {"num_truncated": 9, "num_tokens": 400, "num_unknown": 10} if inputs is TEXTS else {}
    split = Split(90, counted, (Shard("train", 90, 9, "0" * 8),), cut)
    test = dataclasses.replace(split, num_examples=30, statistics={**cut, "num_also_in_train": 3})
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
    row = {"support": 30, "precision": 0.5, "recall": 0.25, "f1": 0.33}
    if task == "regression":
        row = {"mean_absolute_error": 0.5, "r2": 0.25}
    figures["per_target" if task == "regression" else "per_class"] = [{"name": name, **row} for name in names]
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
        intervals={judged: (0.2, 0.3)},
        differences={judged: better},
        slices=tuple(
            SliceMetric("class", name, 10 + i, "accuracy", 0.5 + i / 100, (0.1, 0.9), 0.4, better)
            for i, name in enumerate(names[:50])
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
        "learning_rate": 0.002,
        "seed": 0,
        "accelerator": "cpu",
        "backend": "jax",
        "precision": "float32",
        "num_replicas": 2,
        "host": "2 × abacus",
        "seconds": 3600.0,
        "examples_per_second": 900.0,
    }
    return {
        "params": DeployParams("registry", "animals", **stated),
        "manifest": manifest,
        "model": ModelInfo("cnn", {"width": 8}, names, inputs, task, "f" * 64, training),
        "evaluation": evaluation,
        "export": export,
        "has_code": has_code,
    }


def card_of(*arguments, **options):
    return write_card(**facts_of(*arguments, **options))


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
    (tmp_path / "README.md").write_text(card_of(kind))
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
def test_its_main_sections_are_those_of_the_hubs_template(kind):
    template = (Path(huggingface_hub.__file__).parent / "templates" / "modelcard_template.md").read_text()
    known = [section.removesuffix(" [optional]") for section in re.findall("^## (.+)$", template, re.MULTILINE)]
    text = card_of(kind)
    ours = re.findall("^## (.+)$", text, re.MULTILINE)
    assert ours == ["Model Details", "How to Get Started with the Model", "Training Details", "Evaluation"]
    assert ours == [section for section in known if section in ours], "in the template's order"
    assert "information needed" not in text.lower()


def test_of_a_first_model_the_card_names_no_champion():
    facts = facts_of()
    changes = {"champion": None, "differences": {}, "slices": ()}
    text = write_card(**{**facts, "evaluation": dataclasses.replace(facts["evaluation"], **changes)})
    assert "None" not in text
    assert "hampion" not in text
    assert "| metric | value | interval |\n" in text


def test_the_card_tells_what_the_report_tells_of_the_gate_the_metrics_slices_and_classes():
    text = card_of()
    assert "## Evaluation\n\nPassed the gate\n\n- ✓ it is good\n\n| metric | value | interval | champion | " in text
    assert "| Accuracy | 25.00% | 20.00% to 30.00% | 20.00% | **\\+5.00 points (+1.00 to +9.00)** |" in text
    assert "### Slices, the worst compared with the champion first\n" in text
    assert "| class 'cat' (10 examples) | 50.00% | 10.00% to 90.00% | 40.00% |" in text
    assert "### Classes, weakest first\n\n| Class | Examples | Precision | Recall | F1 |" in text
    assert "| cat | 30 | 0.500 | 0.250 | 0.330 | 0.500 | 0.250 |\n" in text
    numbers = card_of("numbers of images", ("mass",))
    assert "and returns mass. R² on 30 images" in numbers
    assert "| Target | Mean absolute error | R² |" in numbers


def test_the_card_tells_of_data_and_training():
    text = card_of()
    for line in (
        "- **Data:** csv:animals.csv",
        "- **Splits:** train 90, test 30",
        "- **Quarantined:** 1 unreadable inputs",
        "- **Trained on:** 2 × cpu, jax, float32",
        "- **Training:** 3 epochs, 3,600 s, 900 images/s",
        "- **Also in train:** 3 images, exact copies",
        "- **model.width:** 8",
        "- **training.optimizer:** adam",
        "- **training.learning\\_rate:** 0.002",
    ):
        assert f"{line}\n" in text.replace("learning_rate", "learning\\_rate"), line
    texts = card_of("classes of texts")
    assert (
        "- **Texts:** the last 5 tokens of each text; 9 texts are longer\n- **Unknown words:** 2.50% of the tokens\n"
        in texts
    )


def test_examples_that_were_trained_on_are_no_part_of_the_figures():
    seen = Unseen(20, 10, (10, 0), ("x",), ({"accuracy": 0.125}, {"accuracy": 0.0625}))
    facts = facts_of()
    text = write_card(**{**facts, "evaluation": dataclasses.replace(facts["evaluation"], unseen=seen)})
    assert [result.metric_value for result in ModelCard(text).data.eval_results] == [0.125]
    assert "Accuracy on 20 images of its test split: 12.50%" in text


def test_of_a_thousand_classes_the_card_has_the_weakest():
    text = card_of(names=tuple(f"class number {i}" for i in range(1_000)))
    assert "The first 20 of 1,000 rows." in text
    assert len(text) < 12_000


@pytest.mark.parametrize("name", HOSTILE)
def test_what_strangers_named_stays_text(name):
    friendly, hostile = (card_of(names=(named, "dog"), source=f"csv:{named}") for named in ("cat", name))
    assert structure(hostile) == structure(friendly)
    before, after = ModelCard(friendly).data, ModelCard(hostile).data
    assert after.to_dict().keys() == before.to_dict().keys()
    assert (after.license, after.tags, after.model_name) == (before.license, before.tags, before.model_name)
    expected = visible(" ".join(name.split()))
    assert f"csv:{expected}" == after.eval_results[0].dataset_name
    assert f"Data: csv:{expected}" in shown(hostile)


def test_addresses_and_mentions_become_no_links():
    """GitHub's Markdown finds them in the text itself: https://github.github.com/gfm/#autolinks-extension-."""
    friendly, hostile = (card_of(names=(name, "dog"), notes=name) for name in ("cat", HOSTILE[-1]))
    for mark in ("@", "://", "www."):
        assert ModelCard(hostile).text.count(mark) == ModelCard(friendly).text.count(mark)


@pytest.mark.parametrize("notes", [text for text in HOSTILE if "{{" not in text])
def test_notes_stay_a_quotation_whatever_they_hold(notes):
    text = card_of(notes=f"first\n{notes}\nlast")
    inside = [token.type for token in tokens_of(text)]
    inside = inside[inside.index("blockquote_open") + 1 : inside.index("blockquote_close")]
    assert set(inside) == {"paragraph_open", "inline", "paragraph_close"}
    assert ModelCard(text).data.license is None
    assert sections(text) == sections(card_of())


def test_notes_keep_their_lines_and_paragraphs():
    assert "> one\\\n> two\n>\n> \\- three\n" in card_of(notes="one\ntwo\n\n- three\n")


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
    text = card_of(licence=licence)
    data = ModelCard(text).data
    assert (data.license, data.get("license_name")) == fields
    assert f"- **License:** {licence or 'not stated'}\n" in text


@pytest.mark.parametrize("licence", ["all rights reserved", "mit\nmit", "-mit", "m" * 65, "mit: yes"])
def test_what_can_be_no_licences_identifier_is_refused(licence):
    with pytest.raises(InputError, match=rf"licence must be an identifier .*licence={re.escape(repr(licence))}\."):
        DeployParams("registry", "animals", licence=licence)


def test_notes_as_long_as_a_book_are_refused():
    with pytest.raises(InputError, match=r"notes must be at most 10,000 characters\. Received: 10,001\."):
        DeployParams("registry", "animals", notes="x" * 10_001)


def test_notes_that_a_pipeline_would_fill_in_are_refused():
    with pytest.raises(InputError, match=r"notes must not contain '\{\{', .*Received: 'of \{\{workflow\.name\}\}'\."):
        DeployParams("registry", "animals", notes="of {{workflow.name}}")


def test_the_same_facts_give_the_same_bytes():
    assert card_of(notes="note") == card_of(notes="note")


def test_the_cards_keras_code_builds_the_trained_model(
    digits_records, trained_digits, exported_digits, tmp_path, monkeypatch
):
    loaded = {
        "manifest": Manifest.load(digits_records),
        "model": ModelInfo.load(trained_digits),
        "export": ExportInfo.load(Path(exported_digits.path)),
    }
    text = write_card(**{**facts_of(), **loaded})
    assert "Files in export/: " in text
    assert "the model takes uint8[batch, 8, 8, 1]: pixels in [0, 255], which the model scales.\n\n```python\n" in text
    monkeypatch.chdir(trained_digits.parent)
    code = tmp_path / "code_of_the_card.py"
    code.write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    model = runpy.run_path(str(code))["model"]
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1)).astype(np.uint8)
    expected = load_trained_model(trained_digits).predict(pixels, verbose=0)
    np.testing.assert_allclose(model.predict(pixels, verbose=0), expected, atol=1e-6)
