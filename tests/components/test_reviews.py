"""Claims about a model of texts, from the folder to the answer over HTTP: one small data set through every step."""

import dataclasses
import io
import json
import random
import shutil
import socket

import numpy as np
import pytest

from tests.components.conftest import QUICK
from tests.support.browser import assert_opens, needs_browser
from tests.support.cli import assert_user_error, tpu_pipelines_here
from tests.support.drawings import drawn
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import tf
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest, ModelInfo
from tpu_components.core.examples.text import WORDS, WORDS_AND_CHARACTERS, load_vocabulary
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.evaluate_model import EvaluateParams, evaluate_model
from tpu_components.export_model import ExportParams, export_model
from tpu_components.serving.exported import load_model
from tpu_components.serving.inputs import predict_inputs
from tpu_components.serving.instances import parse_request, render_predictions
from tpu_components.serving.params import ServeParams
from tpu_components.serving.server import _announce
from tpu_components.train_model import train_model

pytestmark = pytest.mark.heavy  # A model of texts is trained and exported, and another beside it: 20 s.

TEXTS = ["A lovely, SUPERB film<br />great", "dull plot; awful script", "", "wörter, die keiner kennt"]


def encoded(reader, texts):
    """The token IDs of texts, also of a text without a word."""
    return np.stack([reader.encode(text.encode()).ids for text in texts])


@pytest.fixture(scope="module")
def manifest(review_records):
    return Manifest.load(review_records)


def test_model_of_texts_learns(trained_reviews):
    history = [json.loads(line) for line in (trained_reviews / "history.jsonl").read_text().splitlines()]
    assert history[-1]["accuracy"] > 0.9
    assert history[-1]["validation_accuracy"] > 0.8


def test_model_of_texts_takes_its_vocabulary_along(trained_reviews, exported_reviews, manifest):
    info = ModelInfo.load(trained_reviews)
    assert info.fits(manifest)
    of_model, of_export = (load_vocabulary(folder, info.input) for folder in (trained_reviews, exported_reviews))
    assert of_model == of_export
    assert b"lovely" in of_export


def test_every_format_agrees_with_the_trained_model(exported_reviews):
    facts = json.loads((exported_reviews / "export.json").read_text())
    for name in ("saved_model", "float"):
        assert facts["formats"][name]["agreement"] == 1.0
        assert facts["formats"][name]["max_difference"] < 1e-5
    assert facts["formats"]["int8"]["accuracy"] >= facts["trained_accuracy"] - 0.1
    assert facts["quantization"] == "weights"
    assert (facts["input"]["kind"], facts["input"]["shape"], facts["input"]["dtype"]) == ("text", [None, 8], "int32")
    assert facts["formats"]["int8"]["bytes"] < facts["formats"]["float"]["bytes"]


def test_saved_model_takes_raw_strings_and_answers_as_litert_does(exported_reviews):
    signature = tf.saved_model.load(str(exported_reviews / "saved_model")).signatures["serving_default"]
    answer = signature(text=tf.constant(TEXTS))
    model = load_model(exported_reviews)
    probabilities = model.predict(encoded(model.reader, TEXTS))
    np.testing.assert_allclose(answer["probabilities"], probabilities, atol=1e-5)
    assert answer["class_name"].numpy()[:2].tolist() == [b"pos", b"neg"]


def test_litert_answers_any_number_of_texts(exported_reviews):
    model = load_model(exported_reviews)
    ids = encoded(model.reader, TEXTS)
    many = model.predict(np.tile(ids, (5, 1)))
    assert many.shape == (20, 2)
    for i in range(20):
        np.testing.assert_array_equal(many[i], model.predict(ids[i % 4 : i % 4 + 1])[0])


def test_predict_takes_texts_files_folders_lines_and_columns(exported_reviews, tmp_path):
    for i, text in enumerate(TEXTS[:2]):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / f"{i}.txt").write_text(text)
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS[:2]))
    (tmp_path / "table.csv").write_text('id,review\n1,"lovely, superb"\n2,dull\n')

    def answers(*inputs, **options):
        found = list(predict_inputs(exported_reviews, list(map(str, inputs)), top=1, **options))
        return {one.name: one.classes[0][0] for one in found}

    assert answers(*TEXTS[:2]) == {TEXTS[0]: "pos", TEXTS[1]: "neg"}
    folder = tmp_path / "folder"
    assert answers(folder) == {f"{folder}/0.txt": "pos", f"{folder}/1.txt": "neg"}
    assert answers(folder / "1.txt") == {f"{folder}/1.txt": "neg"}
    lines = tmp_path / "lines.txt"
    assert answers(lines, lines=True) == {f"{lines}[0]": "pos", f"{lines}[1]": "neg"}
    assert list(answers(lines)) == [str(lines)]
    table = tmp_path / "table.csv"
    assert answers(table, column="review") == {f"{table}[0]": "pos", f"{table}[1]": "neg"}
    tabs = tmp_path / "table.tsv"
    tabs.write_text(table.read_text().replace(",", "\t", 1).replace('1,"', '1\t"').replace("2,", "2\t"))
    assert answers(tabs, column="review") == {f"{tabs}[0]": "pos", f"{tabs}[1]": "neg"}
    dialect = tmp_path / "dialect.csv"
    dialect.write_bytes('sep=;\r;review;\r1;"lovely; superb";\r2;dull;\r'.encode("utf-16"))
    assert answers(dialect, column="review") == {f"{dialect}[0]": "pos", f"{dialect}[1]": "neg"}
    shutil.copy(table, folder / "TABLE.CSV")
    shutil.copy(lines, folder / "lines.txt")
    named = {f"{folder}/0.txt[0]": "pos", f"{folder}/1.txt[0]": "neg"}
    named |= {
        f"{folder}/{name}[{i}]": sign for name in ("TABLE.CSV", "lines.txt") for i, sign in enumerate(("pos", "neg"))
    }
    assert answers(folder, lines=True, column="review") == named
    for name, content in (("empty.csv", "text\n"), ("large.csv", f'text\n"{"superb " * 30_000}"\n')):
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=r"empty\.csv: it contains no text"):
        answers(tmp_path / "empty.csv")
    assert list(answers(tmp_path / "large.csv").values()) == ["pos"]
    # Not every end of a line is one; and a name that looks like a path is no text.
    lines.write_text("a lovely, superb \x85 film\r\ndull plot; awful \u2028 script\n")
    assert list(answers(lines, lines=True).values()) == ["pos", "neg"]
    (tmp_path / "0_9").write_text(TEXTS[0])
    assert answers(tmp_path / "0_9") == {f"{tmp_path}/0_9": "pos"}
    np.save(tmp_path / "texts.npy", np.array(TEXTS[:2]))
    assert list(answers(tmp_path / "texts.npy").values()) == ["pos", "neg"]
    assert list(answers("either/or is superb")) == ["either/or is superb"]
    np.save(tmp_path / "numbers.npy", np.arange(3))
    with pytest.raises(InputError, match=r"numbers\.npy: expected str\[N\], received int64\[3\]"):
        answers(tmp_path / "numbers.npy")
    with pytest.raises(InputError, match=r"Cannot read .*pos/0_9\.TXT"):
        answers("pos/0_9.TXT")
    # As create_tfrecords reads it: a column that is usually called so, and what a spreadsheet program puts between.
    assert answers(table) == answers(table, column="review")
    table.write_text(table.read_text().replace("review", "words").replace(",", ";"))
    assert list(answers(table, column="words").values()) == ["pos", "neg"]
    with pytest.raises(InputError, match=r"expected the column 'text' in every line, received \['id', 'words'\]"):
        answers(table)
    with pytest.raises(InputError, match=r"Cannot read .*nowhere\.txt"):
        answers(tmp_path / "nowhere.txt")
    with pytest.raises(
        InputError,
        match=r"Cannot read 'gut/schlecht'.* If this is the text itself and not a path, pass - and write the",
    ):
        answers("gut/schlecht")


def test_the_server_says_how_to_send_it_a_text(exported_reviews):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        said = _announce(load_model(exported_reviews), listener, ServeParams())
    assert """echo '{"instances": [{"text": "TEXT"}]}' | curl""" in said


def test_predict_on_the_command_line_takes_texts(exported_reviews, tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS[:2]))
    lines = tpu_pipelines_here("predict", str(exported_reviews), str(tmp_path / "lines.txt"), "--lines", "--json")
    classes = [json.loads(line)["classes"] for line in lines.stdout.splitlines()]
    assert [next(iter(one)) for one in classes] == ["pos", "neg"]
    assert [sum(one.values()) for one in classes] == pytest.approx([1, 1])
    table = tpu_pipelines_here("predict", str(exported_reviews), *TEXTS[:2], "--int8", "--top", "1").stdout
    assert [line.split()[-2] for line in table.splitlines()] == ["pos", "neg"]
    assert_user_error(tpu_pipelines_here("predict", str(exported_reviews), "nowhere.txt"), "Cannot read", "nowhere.txt")


def test_predict_takes_a_text_a_line_from_stdin(exported_reviews, monkeypatch):
    lines = [*TEXTS[:2], json.dumps({"text": TEXTS[1]}), '{"no": "JSON of ours"}']
    piped = io.TextIOWrapper(io.BytesIO("\r\n".join(lines).encode("utf-8-sig")))
    monkeypatch.setattr("sys.stdin", piped)
    received = list(predict_inputs(exported_reviews, [TEXTS[0], "-"], top=1))
    assert [one.name for one in received] == [TEXTS[0], *TEXTS[:2], TEXTS[1], lines[3]]
    assert [one.classes[0][0] for one in received[:4]] == ["pos", "pos", "neg", "neg"]
    for line in ('{"text": "good", "n": 1}', '{"text": 5}'):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"good\n{line}\n".encode())))
        with pytest.raises(InputError, match="Cannot read line 2 of stdin: expected only the field"):
            list(predict_inputs(exported_reviews, ["-"]))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"good\n\xff")))
    with pytest.raises(InputError, match="Cannot read line 2 of stdin"):
        list(predict_inputs(exported_reviews, ["-"]))


def test_predict_leaves_out_texts_without_a_word(exported_reviews, tmp_path, monkeypatch, capsys):
    (tmp_path / "table.csv").write_text('text\nsuperb\n"  "\nwörter die keiner kennt\n')
    (tmp_path / "empty.txt").touch()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"awful\n\n")))
    inputs = [TEXTS[0], "!!!", f"{tmp_path}/table.csv", f"{tmp_path}/empty.txt", "-", "dull"]
    received = predict_inputs(exported_reviews, inputs)
    names = [next(received).name for _ in range(5)]
    assert names == [TEXTS[0], f"{tmp_path}/table.csv[0]", f"{tmp_path}/table.csv[2]", "awful", "dull"]
    with pytest.raises(InputError, match="4 inputs cannot be predicted; the first is '!!!'"):
        next(received)
    said = capsys.readouterr().err
    for name in ("!!!", f"{tmp_path}/table.csv[1]", f"{tmp_path}/empty.txt", ""):
        assert f"left out: {name!r}: expected a text with at least one word" in said


@pytest.mark.parametrize("lines", [False, True])
def test_predict_reads_json_lines_as_it_reads_stdin(exported_reviews, tmp_path, lines):
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join([json.dumps({"text": TEXTS[0]}), TEXTS[1], '{"no": "JSON of ours"}']) + "\n", "utf-8-sig")
    received = list(predict_inputs(exported_reviews, [str(file)], top=1, lines=lines))
    assert [one.name for one in received] == [f"{file}[{i}]" for i in range(3)]
    plain = list(predict_inputs(exported_reviews, [*TEXTS[:2], '{"no": "JSON of ours"}'], top=1))
    assert [one.classes for one in received] == [one.classes for one in plain]
    file.write_text(json.dumps({"id": 7, "text": TEXTS[0], "label": "pos"}))
    with pytest.raises(InputError, match=r"line 1 of .*texts\.jsonl: expected only the field .*Remove the other"):
        list(predict_inputs(exported_reviews, [str(file)], lines=lines))


@pytest.mark.parametrize("content", ['[{"text": "good"}]', ' {"text": "good"}\n{"text": "bad"}\n', '["good", "bad"]'])
@pytest.mark.parametrize("lines", [False, True])
def test_predict_refuses_records_in_a_json_file(exported_reviews, tmp_path, content, lines):
    file = tmp_path / "texts.JSON"
    file.write_text(content)
    with pytest.raises(InputError, match=r"texts\.JSON: expected a text, received JSON\. Save the texts as a CSV file"):
        list(predict_inputs(exported_reviews, [str(file)], lines=lines))
    file.write_text("[sic] a superb film")
    assert len(list(predict_inputs(exported_reviews, [str(file)]))) == 1


@pytest.mark.parametrize("instance", [TEXTS[1], {"text": TEXTS[1]}])
def test_server_takes_strings(exported_reviews, instance):
    model = load_model(exported_reviews)
    asked = parse_request(json.dumps({"instances": [instance]}).encode(), model.reader, ServeParams())
    answer = json.loads(render_predictions(model, model.predict(asked.inputs), asked.top))
    assert answer["predictions"][0]["class"] == "neg"


@pytest.mark.parametrize("instance", [3, ["a"], {"b64": "AA=="}, None])
def test_server_refuses_what_is_no_text(exported_reviews, instance):
    model = load_model(exported_reviews)
    with pytest.raises(InputError, match=r'instances\[0\]: expected a string, or {"text": "…"}. Received: '):
        parse_request(json.dumps({"instances": [instance]}).encode(), model.reader, ServeParams())


@pytest.mark.parametrize("text", ["", "   ", "!!!"])
def test_server_refuses_a_text_without_a_word(exported_reviews, text):
    model = load_model(exported_reviews)
    with pytest.raises(InputError, match=r"instances\[1\]: expected a text with at least one word"):
        parse_request(json.dumps({"instances": ["unbekannt", text]}).encode(), model.reader, ServeParams())


@pytest.fixture(scope="module")
def report(review_records, trained_reviews, tmp_path_factory):
    """The page of the trained model's evaluation."""
    output = tmp_path_factory.mktemp("evaluated") / "evaluation"
    with drawn():
        evaluate_model(EvaluateParams(num_pictures=5), review_records, trained_reviews, output)
    return output / "report.html"


@needs_browser
def test_report_opens_in_a_browser_without_a_complaint(report, tmp_path):
    assert_opens(report, tmp_path)


def test_report_shows_the_texts(report, review_records, manifest):
    page = report.read_text()
    assert page.count("<blockquote>") >= 20  # Right predictions at least.
    assert "<img" not in page
    assert "the last 8 tokens of each" in page
    some = records.pick_texts(review_records, manifest, "test", [0])[0]
    assert "&lt;br" not in page  # A line break of the review is not shown as markup.
    assert some.removesuffix("<br />") in page


def test_a_champion_of_the_earlier_rule_is_compared_and_unicode_is_served_alike(tmp_path):
    """Texts without spaces are learned; a model of the rule `words` reads them by its own rule."""
    words = {"good": ["很好看", "精彩", "感人"], "poor": ["很难看", "糟糕", "无聊"]}
    rows = ["text,label"]
    for i in range(160):
        label = ("good", "poor")[i % 2]
        rows.append(f"电影{random.Random(i).choice(words[label])}，编号{i}。,{label}")
    (tmp_path / "t.csv").write_text("\n".join(rows), encoding="utf-8")
    training = dataclasses.replace(
        QUICK, model="imdb_lstm", model_parameters={"embedding": 8, "units": 4}, epochs=8, learning_rate=0.02
    )
    for rule in (WORDS, WORDS_AND_CHARACTERS):
        here = tmp_path / rule
        params = WriteParams(
            f"csv:{tmp_path}/t.csv", num_tokens=16, vocabulary_size=200, num_workers=1, tokenization=rule
        )
        write_records(params, here / "records")
        train_model(training, here / "records", here / "model")
    earlier, new = tmp_path / WORDS, tmp_path / WORDS_AND_CHARACTERS
    alone = evaluate_model(EvaluateParams(), earlier / "records", earlier / "model", tmp_path / "alone")
    against = EvaluateParams(champion=str(earlier / "model"))
    both = evaluate_model(against, new / "records", new / "model", tmp_path / "both")
    assert both.champion_metrics == pytest.approx(alone.metrics)
    assert both.metrics["accuracy"] > 0.9 > alone.metrics["accuracy"]

    export_model(ExportParams(), new / "records", new / "model", tmp_path / "export")
    lite = load_model(tmp_path / "export")
    texts = ["电影很好看，编号1。", "无聊！", "Ｇreat　film\u00a0CAFE\u0301 😀", "\ufeff", "ＡＢＣ１ 𠀀 ที่นี่"]
    served = tf.saved_model.load(str(tmp_path / "export" / "saved_model")).signatures["serving_default"]
    expected = lite.predict(encoded(lite.reader, texts))
    np.testing.assert_allclose(served(text=tf.constant(texts))["probabilities"].numpy(), expected, atol=1e-5)
    assert len(np.unique(expected.round(4), axis=0)) > 2


def test_a_champion_of_other_words_is_scored_on_the_texts_themselves(
    trained_reviews, review_records, manifest, tmp_path
):
    """As in every retraining: new data have a vocabulary of their own."""
    params = WriteParams(manifest.source, validation_fraction=0.1, num_tokens=6, vocabulary_size=50, num_workers=1)
    write_records(params, tmp_path / "records")
    others = {"model": "imdb_lstm", "model_parameters": {"embedding": 4, "units": 2}, "epochs": 1}
    train_model(dataclasses.replace(QUICK, **others), tmp_path / "records", tmp_path / "model")
    alone = evaluate_model(EvaluateParams(), review_records, trained_reviews, tmp_path / "alone")
    against = EvaluateParams(champion=str(trained_reviews))
    both = evaluate_model(against, tmp_path / "records", tmp_path / "model", tmp_path / "both")
    assert both.champion_metrics == pytest.approx(alone.metrics)
    with pytest.raises(InputError, match=r"The model in .* does not fit the data set"):
        evaluate_model(EvaluateParams(), tmp_path / "records", trained_reviews, tmp_path / "refused")
