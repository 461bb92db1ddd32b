import pytest

from components.errors import InputError
from pipelines.checks import check_run
from pipelines.config import load_config


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
    with pytest.raises(InputError, match=rf"Refused to write into {place}: {what} .*lies there"):
        check_run(config, tmp_path)
