import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.containers import Container, splits_of


def _splits(*names):
    return splits_of([Container(name, name, 0, "") for name in names], "data")


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train/0.parquet", "val/0.parquet"), ["train", "validation"]),
        (("split=train/0.parquet", "split=test/0.parquet"), ["train", "test"]),
        (("flowers-train.tfrecord-00000-of-00001", "flowers-test.tfrecord-00000-of-00001"), ["train", "test"]),
        (("reviews_train.parquet", "reviews_test.parquet"), ["train", "test"]),
        (("train-part.tar", "test-part.tar"), ["train", "test"]),
        # One file of all data may have any name.
        (("my_test.parquet",), None),
        (("my_train.parquet",), None),
        (("station_0.tar", "harbour_0.tar"), None),
    ],
)
def test_folders_and_words_of_file_names_are_splits(names, splits):
    assert _splits(*names) == splits


def test_a_file_without_a_split_beside_others_is_refused():
    for names in (("train.tar", "test.tar", "more.tar"), ("a_train.tar", "a_test.tar", "a_more.tar")):
        with pytest.raises(InputError, match=rf"Some files in data do not belong to a split: '{names[-1]}'"):
            _splits(*names)
