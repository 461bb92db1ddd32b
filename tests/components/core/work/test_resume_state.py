"""Claims about pieces of work that are finished one by one, and gone on with."""

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.work.resume_state import ResumeState, gather, range_of


@pytest.fixture(params=["here", "bucket"])
def root(request, tmp_path):
    if request.param == "here":
        return str(tmp_path / "work")
    request.getfixturevalue("bucket")
    return "gs://bucket/work"


def test_what_a_killed_run_has_finished_is_gone_on_with(root):
    state = ResumeState(root)
    state.begin("digest")
    state.finish("a", b"content", {"file": {"num_examples": 3}, "seen": ["x"]})
    again = ResumeState(root)
    again.begin("digest")
    assert again.finished() == again.whole(["a", "b"]) == {"a"}
    piece = again.read("a")
    assert (piece.uri, piece.content) == (f"{root}/whole/a", b"content")
    assert piece.note == again.read("a", {"seen": list[str]}).note
    assert piece.note["file"] == {"num_examples": 3, "num_bytes": 7, "crc32c": "61af7533"}
    with pytest.raises(InputError, match=r"notes/a.json: expected the note of a finished piece, .* run the step again"):
        again.read("a", {"seen": int})


def test_work_of_another_digest_begins_anew_and_leaves_other_files_alone(tmp_path):
    state = ResumeState(str(tmp_path))
    state.begin("digest")
    state.finish("a", b"content", {})
    (tmp_path / "diary.txt").write_text("mine")
    state.begin("another")
    assert state.finished() == set()
    assert not state.holds("digest")
    assert (tmp_path / "diary.txt").read_text() == "mine"


def test_a_bucket_with_work_of_another_digest_is_refused(bucket):
    ResumeState("gs://bucket/work").begin("digest")
    with pytest.raises(InputError, match=r"Cannot write to gs://bucket/work: expected an empty folder, or unfinished"):
        ResumeState("gs://bucket/work").begin("another")


def test_a_piece_that_is_damaged_or_half_written_is_not_whole(tmp_path):
    state = ResumeState(str(tmp_path))
    state.begin("digest")
    for name in ("damaged", "lost", "without_note", "whole"):
        state.finish(name, name.encode(), {})
    (tmp_path / "whole" / "damaged").write_bytes(b"Damaged")
    (tmp_path / "whole" / "lost").unlink()
    (tmp_path / "notes" / "without_note.json").unlink()
    (tmp_path / "whole" / ".new.abc.tmp").write_bytes(b"half")
    assert state.finished() == {"damaged", "whole"}
    assert state.whole(["damaged", "lost", "without_note", "whole"]) == {"whole"}
    with pytest.raises(InputError, match=r"whole/damaged is damaged: expected checksum \w{8}, received \w{8}\. Remove"):
        state.read("damaged")
    state.begin("digest")
    assert not list(tmp_path.glob("whole/.*"))


def test_pieces_of_several_folders_are_put_together_in_order(tmp_path):
    folders = [ResumeState(str(tmp_path / name)) for name in "xy"]
    for folder, names in zip(folders, ("bd", "ac"), strict=True):
        folder.begin("digest")
        for name in names:
            folder.finish(name, name.encode(), {})
    assert [piece.content for piece in gather(folders, "digest", "abcd")] == [b"a", b"b", b"c", b"d"]
    with pytest.raises(
        InputError, match=r"1 of 3 pieces are missing; the first is e\. .* received 2 folders\. Run the missing"
    ):
        gather(folders, "digest", "aeb")
    with pytest.raises(
        InputError,
        match=r"Cannot combine .*/x with the other folders: .* Write this range again, with the same data, parameters",
    ):
        gather(folders, "another", "abcd")


def test_a_range_that_there_is_not_is_refused():
    assert [list(range_of(number, 3, 4)) for number in range(3)] == [[0], [1], [2, 3]]
    with pytest.raises(InputError, match=r"Unknown range 3: expected a number from 0 to 2\. Correct the number"):
        range_of(3, 3, 4)
