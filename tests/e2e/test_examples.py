"""Every ready example on its real data, to the figure that it promises; skipped where the data are not."""

import dataclasses
import json
import tarfile

import pytest

from tests.support.cli import DATA, tpu_pipelines


@dataclasses.dataclass(frozen=True)
class Example:
    """What a ready example is to reach.

    Attributes:
        name: Of the configuration.
        source: What comes before the place of the data; the whole source of data that are bundled.
        file: The data below `DATA`, perhaps as an archive; empty for data that are bundled.
        at_least: Figures of the test split.
        at_most: Likewise.
        settings: Where the data are not the whole set.
    """

    name: str
    source: str
    file: str
    at_least: dict[str, float] = dataclasses.field(default_factory=dict)
    at_most: dict[str, float] = dataclasses.field(default_factory=dict)
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}-{self.file or self.source}"


_EXAMPLES = (
    Example("digits", "sklearn:digits", "", {"accuracy": 0.98}),
    Example("mnist_cnn", "idx:", "mnist", {"accuracy": 0.993}),
    Example("fashion_mnist_cnn", "idx:", "fashion_mnist", {"accuracy": 0.92}),
    Example("cifar10_cnn", "images:", "cifar10.tar.xz", {"accuracy": 0.8079}),
    Example("cifar10_resnet", "images:", "cifar10.tar.xz", {"accuracy": 0.85}),
    Example("imdb_lstm", "text:", "aclImdb", {"accuracy": 0.86}),
    # A twelfth of the reviews, as often.
    Example("imdb_lstm", "text:", "imdb_sample.tar.xz", {"accuracy": 0.8}, settings=("training.epochs=12", "gate={}")),
    Example("shakespeare_lstm", "corpus:", "tinyshakespeare.txt", at_most={"bits_per_character": 2.3}),
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The place of some data, unpacked once."""
    folder = tmp_path_factory.mktemp("data")

    def place(file):
        if not (DATA / file).exists():
            pytest.skip(f"needs {file} in {DATA.parent.name}/{DATA.name}")
        if ".tar" not in file:
            return DATA / file
        target = folder / file.partition(".")[0]
        if not target.exists():
            with tarfile.open(DATA / file) as archive:
                archive.extractall(folder, filter="data")
        return target

    return place


@pytest.mark.slow  # A minute to half an hour each, on 2 cores; all that have their data here: an hour.
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("example", _EXAMPLES, ids=str)
def test_example_reaches_its_figure(example, unpacked, tmp_path):
    source = f"{example.source}{unpacked(example.file)}" if example.file else example.source
    settings = [word for setting in (f"data.source={source}", *example.settings) for word in ("--set", setting)]
    done = tpu_pipelines("run", example.name, "--workspace", str(tmp_path), *settings)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / example.name / "summary.json").read_text())
    for name, bound in example.at_least.items():
        assert summary["metrics"][name] >= bound
    for name, bound in example.at_most.items():
        assert summary["metrics"][name] <= bound
    formats = summary["export"]["formats"]
    assert [formats[name]["agreement"] for name in ("saved_model", "float")] == [1.0, 1.0]
