"""Claims about columns of very many strings and files."""

import numpy as np

from tpu_components.core.files.storage import StoredFile
from tpu_components.core.sources.columns import Files, Names, Pieces, pick


def test_files_of_four_gibibytes_and_more_keep_their_size():
    files = [StoredFile("a", 2**32 - 1, "1"), StoredFile("b", 2**32, "2"), StoredFile("c", 5, "3")]
    assert Files.collect(files).sizes.tolist() == [2**32 - 1, 2**32, 5]
    assert Files.collect(files).sizes.itemsize == 8 == 2 * Files.collect(files[::2]).sizes.itemsize


def test_pieces_are_found_by_ends_of_eight_bytes_too():
    held = [b"ab", b"", b"cde", b"f", b"ghij"]
    pieces = Pieces(b"".join(held), np.cumsum([len(piece) for piece in held], dtype=np.int64))
    assert list(pieces) == list(Pieces.collect(held))
    assert [pieces[place] for place in range(5)] == held == pieces.at(np.arange(5))


def test_hashes_are_names_in_hexadecimal_wherever_they_are_asked_for():
    hashes = np.random.default_rng(0).integers(0, 2**64, 70_000, np.uint64)
    names, expected = Names.of_hashes(hashes), [number.tobytes().hex() for number in hashes]
    assert list(names) == expected
    assert (names[3], names[-1], names[5:8]) == (expected[3], expected[-1], tuple(expected[5:8]))
    places = np.array([69_999, 0, 7])
    assert pick(names, places) == [expected[place] for place in places] == list(names.take(places))
