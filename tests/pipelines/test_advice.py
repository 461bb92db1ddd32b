"""What the product advises works: each setting, value, name, command and variable is collected, applied and tried.

`pytest tests/test_advice.py -s` prints how many there are of each.
"""

import dataclasses
import re
import shlex

import numpy as np
import pytest
from PIL import Image

from tests.support.advice import (
    advice_in,
    commands_in,
    is_known,
    offered_in,
    own_constants,
    settings_in,
    texts,
    variables_in,
)
from tests.support.cli import PIPELINES, tpu_pipelines_here
from tpu_components.core.base.errors import InputError
from tpu_pipelines.cli.main import main
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings, variable

# Names of code, of files and of forms in texts that are written like settings.
NOT_SETTINGS = {
    *("model.compile", "model.variables", "model.weights", "model.weights.h5", "model.predict", "gate.xml"),
    *("resources.resources_of", "export.key", "export.output", "section.key", "training.optimizer.name"),
}
# What else such a value needs, which the same text says.
BESIDE = {
    "data.task": ["gate.minimum={}"],
    "deploy.verify_key": ["deploy.signing_key=key.pem"],
}
# Words of a refusal; after advice was followed, none may speak of what was advised.
REFUSED = (
    "Unknown key {0!r}|Unknown model {0!r}|must be .*={0!r}|no machine {0!r}|{0!r} in m\\w+ is no"
    "|is {0!r}, expected|{0} cannot "
)


@pytest.fixture(scope="module")
def all_texts():
    return list(texts())


def test_every_setting_that_a_text_names_exists(all_texts):
    named = {key for text in all_texts for key, _ in settings_in(text.content)} - NOT_SETTINGS
    print(f"\n{len(named)} settings are named")
    assert len(named) > 90
    unknown = {key: [text.place for text in all_texts if key in text.content][:3] for key in named if not is_known(key)}
    assert unknown == {}


def test_every_value_that_a_text_gives_a_setting_is_taken(all_texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text("def build_model(image_shape, num_classes): ...\n")
    values = {setting for text in all_texts for setting in settings_in(text.content) if setting[1]}
    values = {(key, value) for key, value in values if key not in NOT_SETTINGS}
    print(f"\n{len(values)} values are given to settings")
    assert len(values) > 30
    for key, value in sorted(values):
        load_config("digits", [*BESIDE.get(key, ()), f"{key}={value}"])


def test_every_variable_that_a_text_names_is_read(all_texts):
    named = {name for text in all_texts for name in variables_in(text.content)}
    of_workflows = set(re.findall(r"vars\.(\w+)", (PIPELINES / "starters" / "retrain.yaml").read_text()))
    print(f"\n{len(named)} variables are named")
    assert len(named) > 35
    assert named - {variable(field.name) for field in dataclasses.fields(Settings)} - own_constants() <= of_workflows


def test_every_command_that_a_text_names_exists_with_its_flags(all_texts, capsys):
    """Those of the READMEs have a test of their own, in tests/test_commands.py."""
    named = {command for text in all_texts if ".md" not in text.place for command in commands_in(text.content)}
    print(f"\n{len(named)} commands are named")
    assert len(named) > 20
    flags = {}
    for command in named:
        _, *words = re.sub(r"[\[\]]|\\\|", " ", command).split()
        subcommand = words[0]
        if subcommand.startswith("-") or subcommand == "\0":
            continue
        if subcommand not in flags:
            with pytest.raises(SystemExit) as stopped:
                main([subcommand, "--help"])
            assert stopped.value.code == 0, command
            flags[subcommand] = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
        assert {word for word in words if re.fullmatch(r"--[\w-]+", word)} <= flags[subcommand], command


# A mistake in a configuration, and the word that is wrong.
MISTAKES = [
    ("training.epoch=3", "epoch"),
    ("trainin={epochs: 3}", "trainin"),
    ("data.sourc=sklearn:digits", "sourc"),
    ("training.random_flip=horizontl", "horizontl"),
    ("training.accelerator=gpuu", "gpuu"),
    ("training.backend=jaxx", "jaxx"),
    ("training.precision=float23", "float23"),
    ("training.sharding=fullysharded", "fullysharded"),
    ("training.residency=devic", "devic"),
    ("training.learning_rate_scaling=linea", "linea"),
    ("training.class_weight={a: 1}", "class_weight"),
    ("data.task=clasification", "clasification"),
    ("data.encoding=raww", "raww"),
    ("data.engine=beem", "beem"),
    ("data.tokenization=wrds", "wrds"),
    ("data.columns={pat: x}", "pat"),
    ("data.retired_test=[a]", "retired_test"),
    ("data.channels=2", "2"),
    ("machine=v5e4", "v5e4"),
    ("machine=v5e-5", "v5e-5"),
    ("machine=h100-1", "h100-1"),
    ("machine={name: v5e-4, region: us-wes1}", "us-wes1"),
    ("machine={name: v5e-4, spott: true}", "spott"),
    ("machine={name: v5e-4, fallbacks: [v6-4]}", "v6-4"),
    ("machine={machine_type: ct5lp-hightpu-4tt, tpu_topology: 2x2}", "ct5lp-hightpu-4tt"),
    ("gate.maximum={los: 0.9}", "los"),
    ("gate.minimum={acuracy: 0.9}", "acuracy"),
    ("gate.max_regression={macro_f: 0}", "macro_f"),
    ("gate.slices=[clas]", "clas"),
    ("gate.split=tets", "tets"),
    ("gate.min={accuracy: 1}", "min"),
    ("model=digits_cn", "digits_cn"),
    ("model.parameters={filtrs: 8}", "filtrs"),
    ("deploy.endpoint_acces=dedicated", "endpoint_acces"),
    ("deploy={endpoint_access: publi}", "publi"),
    ("deploy.alais=x", "alais"),
    ("export.required=[flot]", "flot"),
    ("export.splt=test", "splt"),
    ("preflight.max_price_us=3", "max_price_us"),
    ("resources={train_modl: {cpu: 4}}", "train_modl"),
    ("resources={train_model: {cp: 4}}", "cp"),
    ("training.stages=[{epochs: 3}]", ""),
]


def refusal(*overrides):
    """What the loader says of overrides; empty if it takes them."""
    try:
        load_config("digits", overrides)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("override", "wrong"), MISTAKES, ids=[override for override, _ in MISTAKES])
def test_the_advice_on_a_mistake_in_a_configuration_works(override, wrong):
    message = refusal(override)
    advice, offered = advice_in(message), offered_in(message)
    assert advice.names or advice.settings or offered, message
    for name in advice.names:
        corrected = refusal(override.replace(wrong, name))
        assert not re.search(REFUSED.format(name), corrected), corrected
    for name in offered:
        corrected = refusal(override.replace(wrong, name))
        assert not re.search(REFUSED.format(name), corrected), corrected
    for setting in advice.settings:
        assert refusal(override, setting) == ""
    print(f"\n{len(advice.names)} names meant, {len(offered)} offered, {len(advice.settings)} settings")


# Situations of whole commands


def rows(folder, name, cells, header):
    (folder / name).write_text("\n".join([header, *(",".join(map(str, row)) for row in cells)]))


def of_groups(folder):
    rows(folder, "t.csv", [(f"scan {i}", "ab"[i % 2], f"p{i // 10}") for i in range(120)], "text,label,patient")
    return ["init t.csv", "check t.yaml"]


def of_rare_classes(folder):
    cells = [(f"a text of number {i}", "rare" if i % 15 == 0 else "common") for i in range(300)]
    rows(folder, "t.csv", cells, "text,label")
    return ["init t.csv --set training.balance_classes=false", "check t.yaml --set training.balance_classes=false"]


def of_another_language(folder):
    cells = [(f"电影{i}很好看演员{i}{'精彩' if i % 2 else '糟糕'}", "ab"[i % 2]) for i in range(200)]
    rows(folder, "t.csv", cells, "text,label")
    return ["init t.csv", "check t.yaml --set data.tokenization=words"]


def of_a_missing_machine(folder):
    return ["compile digits --target vertex --output p.yaml"]


def of_whole_numbers(folder):
    rows(folder, "t.csv", [(f"a text of number {i}", i % 5) for i in range(100)], "text,label")
    return ["init t.csv --force"]


def of_many_numbers(folder):
    rows(folder, "t.csv", [(f"a text of number {i}", i % 40) for i in range(400)], "text,label")
    return ["init t.csv --force"]


def of_local_data(folder):
    rows(folder, "t.csv", [(f"a text of number {i}", "ab"[i % 2]) for i in range(100)], "text,label")
    return ["init t.csv", "check t.yaml --target vertex --set machine=v5e-4"]


def of_several_sizes(folder):
    pictures(folder, lambda i: np.full((8 + i, 12, 3), i, np.uint8))
    return [f"check cifar10_cnn {PICTURES}"]


def of_grey_and_colour(folder):
    pictures(folder, lambda i: np.full((8, 8, 3) if i % 2 else (8, 8), i, np.uint8))
    return [f"check cifar10_cnn {PICTURES}"]


def of_folders_in_a_folder(folder):
    (folder / "photos").mkdir()
    pictures(folder / "photos", lambda i: np.full((8, 8, 3), i, np.uint8))
    return ["check cifar10_cnn --set data.source=images:photos --set training.batch_size_per_replica=4"]


PICTURES = "--set data.source=images:photos --set training.batch_size_per_replica=4"


def pictures(folder, pixels_of):
    """Pictures of two classes, all different."""
    for number, name in enumerate("ab"):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(30):
            Image.fromarray(pixels_of(2 * i + number)).save(folder / "photos" / name / f"{i}.png")


SITUATIONS = {
    of_several_sizes: ("data.image_size=12,12",),
    of_grey_and_colour: ("data.channels=3",),
    of_folders_in_a_folder: ("data.source=images:photos/photos",),
    of_groups: ("data.group_column=patient",),
    of_rare_classes: ("training.balance_classes=true", "gate.max_regression={macro_f1: 0}"),
    of_another_language: ("data.tokenization=words_and_characters",),
    of_a_missing_machine: ("machine=v5e-4",),
    of_whole_numbers: ("data.task=regression",),
    of_many_numbers: ("data.task=classification",),
    of_local_data: ("data.source=csv:gs://your-bucket/data/t.csv",),
}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.__name__)
def test_the_settings_that_a_command_proposes_work(situation, tmp_path, quick_models, monkeypatch):
    *before, last = situation(tmp_path)
    for command in before:
        assert tpu_pipelines_here(*shlex.split(command), cwd=tmp_path).returncode == 0
    done = tpu_pipelines_here(*shlex.split(last), cwd=tmp_path)
    said = done.stdout + done.stderr
    starts = ("error", "hint", "the task is")
    advised = [line for line in said.splitlines() if line.startswith(starts) or "→" in line]
    # A message names the setting, or the value alone: "If 'x' contains these folders, use images:photos/x".
    parts = [setting.partition("=") for setting in SITUATIONS[situation]]
    lines = [line for line in advised if any(key in line or value in line for key, _, value in parts)]
    assert all(any(key in line or value in line for line in lines) for key, _, value in parts), said
    settings = [word for setting in SITUATIONS[situation] for word in ("--set", setting)]
    again = tpu_pipelines_here(*shlex.split(last), *settings, cwd=tmp_path)
    told = again.stdout + again.stderr
    assert not [line for line in lines if line in told]
    # What remains is not about what was advised: without an account, the platform's variables and image are missing.
    errors = [line for line in told.splitlines() if line.startswith("error")]
    assert all(re.match(r"error +(image|variables|data +.*gs://your-bucket)", line) for line in errors), told


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("machines --generation v55e", "v55e"),
        ("machines --region us-wes1", "us-wes1"),
        ("runs lst digits", "lst"),
        ("check digit", "digit"),
        ("run mnist_cn", "mnist_cn"),
        ("check digits --set data.source=imgs:photos", "imgs"),
        ("check digits --set data.source=sklern:digits", "sklern"),
    ],
)
def test_the_name_that_a_command_thinks_was_meant_is_taken(words, wrong, tmp_path, quick_models, empty_steps):
    done = tpu_pipelines_here(*shlex.split(words), cwd=tmp_path)
    assert done.returncode == 2
    said = done.stdout + done.stderr
    (meant,) = advice_in(said).names
    again = tpu_pipelines_here(*shlex.split(words.replace(wrong, meant).replace("run ", "check ")), cwd=tmp_path)
    told = again.stdout + again.stderr
    assert "Did you mean" not in told
    assert said != told


def test_the_next_commands_run(tmp_path, quick_models, empty_steps):
    """`init` proposes `check`, and `check` proposes `run`: each is run as it stands."""
    rows(tmp_path, "my texts.csv", [(f"a text of number {i}", "ab"[i % 2]) for i in range(100)], "text,label")
    words = ["init", "my texts.csv", "--name", "a.b", "--output", "c d"]
    proposed = []
    while True:
        done = tpu_pipelines_here(*words, cwd=tmp_path)
        following = [command for command in commands_in(done.stdout) if command.startswith("tpu-pipelines ")]
        if not following:
            break
        assert done.returncode == 0, done.stderr
        proposed.append(following[-1])
        _, *words = shlex.split(following[-1])
    assert [command.split()[1] for command in proposed] == ["check", "run"]
    assert empty_steps.ran[0] == "create_tfrecords"
    written = {command for path in (tmp_path / "c d").iterdir() for command in commands_in(path.read_text())}
    assert {shlex.split(command)[1] for command in written} == {"check", "run", "machines"}
    for command in written:
        if command.split()[1] != "run":
            assert tpu_pipelines_here(*shlex.split(command)[1:], cwd=tmp_path).returncode == 0


def test_the_settings_for_a_saved_model_are_in_its_message():
    """tests/pipelines/starting/test_first_configuration.py applies them."""
    said = "The model 'm.keras' does not fit the data: … Set data.image_size=8,8 and data.channels=1."
    assert [setting for setting, _ in settings_in(said)] == ["data.image_size", "data.channels"]


def test_advice_is_found_in_messages():
    said = "Cannot use x. Received: data.task=a. Set data.task=b, or data.seed=NAME. Did you mean 'c'?"
    said += " `tpu-pipelines runs` lists them."
    advice = advice_in(said)
    assert advice.settings == ("data.task=b",)
    assert (advice.names, advice.commands) == (("c",), ("tpu-pipelines runs",))
    assert offered_in("x must be one of a, b-c, d. Received: x='e'.") == ("a", "b-c", "d")
