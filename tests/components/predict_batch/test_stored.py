"""What is asked of a model is read from records."""

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Shard
from tpu_components.core.examples.records import encode_example, frame_record
from tpu_components.predict_batch.inputs import RecordPlaces, read_frames


def test_records_are_found_by_their_places(tmp_path):
    shards, frames = [], {}
    for name, count in (("a", 3), ("empty", 0), ("b", 5)):
        own = {f"{name}[{i}]": frame_record(encode_example({"label": i, "x": b"x" * i})) for i in range(count)}
        (tmp_path / name).write_bytes(b"".join(own.values()))
        shards.append(Shard(name, count, 0, ""))
        frames |= own
    places = RecordPlaces(shards)
    assert list(places) == list(frames)
    for first, last in ((0, 8), (1, 2), (2, 6), (5, 8), (4, 4)):
        some = [places[place] for place in range(first, last)]
        assert list(read_frames(str(tmp_path), some)) == [frames[place] for place in some]


def test_a_shard_that_is_not_as_it_was_written_is_refused(tmp_path):
    frames = [frame_record(encode_example({"label": i})) for i in range(3)]
    (tmp_path / "a").write_bytes(b"".join(frames))
    with pytest.raises(InputError, match=r"a: expected 5 records or more, as its manifest says, received fewer. Write"):
        list(read_frames(str(tmp_path), ["a[1]", "a[4]"]))
    (tmp_path / "a").write_bytes(b"".join(frames)[:-1])
    with pytest.raises(InputError, match=r"a: a truncated record at byte .*\. Write the records again"):
        list(read_frames(str(tmp_path), ["a[0]", "a[2]"]))
    with pytest.raises(InputError, match=r"Cannot read .*none"):
        list(read_frames(str(tmp_path), ["none[0]"]))
