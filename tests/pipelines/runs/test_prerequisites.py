import pytest

from tpu_components.core.base.errors import InputError
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.runs.prerequisites import check_data, check_run


def test_a_key_that_cannot_sign_is_named_before_the_training(tmp_path):
    config = load_config("digits", [f"deploy.signing_key={tmp_path / 'signing.pem'}"])
    with pytest.raises(InputError, match=r"Cannot read .*signing\.pem.*: there is no such file"):
        check_run(config, tmp_path)


@pytest.mark.parametrize("folder", ["digits", "digits.runs"])
@pytest.mark.parametrize(
    ("what", "overrides"),
    [
        ("gate.champion", ["gate.champion={}/0001/model"]),
        ("data.source", ["data.source=images:{}/0001"]),
        ("model", ["model={}/0001/net.py"]),
        ("model.files", ["model.files=[{}/0001/net.py]"]),
        ("model.parameters", ["model={}.py", "model.parameters.weights={}/0001/net.py"]),
    ],
)
def test_what_a_run_reads_lies_neither_in_its_folder_nor_among_its_earlier_runs(tmp_path, folder, what, overrides):
    place = tmp_path / folder
    (place / "0001" / "model").mkdir(parents=True)
    (place / "run.log").write_text("")
    for file in (place / "0001" / "net.py", place.with_name(f"{folder}.py")):
        file.write_text("def build_model(*_, **__): ...")
    config = load_config("digits", ["deploy=false", *(override.format(place) for override in overrides)])
    with pytest.raises(InputError, match=rf"Cannot write to {place}: it overlaps with {what} "):
        check_run(config, tmp_path)


def test_slices_that_the_data_cannot_have_are_refused_before_the_training(tmp_path):
    check_data(load_config("digits", ["gate.slices=[class, size]"]))
    with pytest.raises(InputError, match="into slices by 'length': expected one of class, size"):
        check_data(load_config("digits", ["gate.slices=[length]"]))
    rows = [f"film {i},{'pos' if i % 2 else 'neg'}" for i in range(60)]
    (tmp_path / "films.csv").write_text("\n".join(["text,label", *rows]))
    films = [f"data.source=csv:{tmp_path}/films.csv", "training.batch_size_per_replica=1"]
    check_data(load_config("imdb_lstm", [*films, "gate.slices=[length]"]))
    with pytest.raises(InputError, match="into slices by 'size': expected one of class, length"):
        check_data(load_config("imdb_lstm", [*films, "gate.slices=[size]"]))
    (tmp_path / "play.txt").write_text("to be or not to be\n" * 900)
    play = [f"data.source=corpus:{tmp_path}/play.txt", "training.batch_size_per_replica=1"]
    with pytest.raises(InputError, match=r"into slices by 'size': expected one of class\."):
        check_data(load_config("shakespeare_lstm", [*play, "gate.slices=[size]"]))
