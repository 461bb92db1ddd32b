"""Claims about columns of very many strings."""

from components.create_tfrecords.sources import columns
from components.create_tfrecords.sources.columns import Pieces


def test_pieces_beyond_the_largest_number_of_four_bytes_are_found_too(monkeypatch):
    monkeypatch.setattr(columns, "_LARGEST_END", 5)
    held = [b"ab", b"", b"cde", b"f", b"ghij"]
    pieces = Pieces.collect(held)
    assert list(pieces) == held
    assert [pieces[place] for place in range(5)] == held
    assert pieces._ends.itemsize == 8 == 2 * Pieces.collect(held[:3])._ends.itemsize
