"""The worst file of every format: small, and by its own words of a gigabyte and more."""

import functools
import gzip
import io
import itertools
import struct
import tarfile
import zipfile
from collections.abc import Callable, Sequence

import google_crc32c
import numpy as np

from tests.evidence.benchmarks.attacks import tiled_tiff
from tests.evidence.fuzz import repairs

_SIDE = 40_000  # Of images: 1.6 billion pixels.
_DEEP = b"[" * 100_000


def _patched(content: bytes, place: int, kind: str, *values: int) -> bytes:
    new = struct.pack(kind, *values)
    return content[:place] + new + content[place + len(new) :]


def _jpeg(seeds: Sequence[bytes]) -> bytes:
    return _patched(seeds[0], seeds[0].index(b"\xff\xc0") + 5, ">HH", _SIDE, _SIDE)


def _gif(seeds: Sequence[bytes]) -> bytes:
    screen = _patched(seeds[0], 6, "<HH", _SIDE, _SIDE)
    return _patched(screen, screen.index(b",\0\0\0\0") + 5, "<HH", _SIDE, _SIDE)


def _webp(seeds: Sequence[bytes]) -> bytes:
    return _patched(seeds[1], seeds[1].index(b"VP8L") + 9, "<I", 0x3FFF | 0x3FFF << 14)  # 14 bits for each side.


def _avif(seeds: Sequence[bytes]) -> bytes:
    return _patched(seeds[0], seeds[0].index(b"ispe") + 8, ">II", _SIDE, _SIDE)


def _entities(_: Sequence[bytes]) -> bytes:
    """Return XML whose entities stand for 10⁹ characters."""
    names = "abcdefghi"
    entities = [f'<!ENTITY {names[0]} "{10 * "0"}">']
    entities += [f'<!ENTITY {name} "{10 * f"&{before};"}">' for before, name in itertools.pairwise(names)]
    tag = f'<image name="0.png"><tag label="&{names[-1]};"/></image>'
    return f"<!DOCTYPE annotations [{''.join(entities)}]><annotations>{tag}</annotations>".encode()


@functools.cache
def _zeros(size: int) -> bytes:
    """Return an archive of one array of zeros."""
    file, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (size >> 6, 8, 8)})
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(header.getvalue())
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    return file.getvalue()


def _archive(_: Sequence[bytes]) -> bytes:
    return _zeros(272 << 20)


def _array(_: Sequence[bytes]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 40,)})
    return header.getvalue()


def _idx(_: Sequence[bytes]) -> bytes:
    return gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 1 << 20, 1000, 1000) + bytes(1000))


def _parquet(_: Sequence[bytes]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    rows, file = pyarrow.table({"image": [bytes(1 << 20)] * 10, "label": ["cat", "dog"] * 5}), io.BytesIO()
    with pyarrow.parquet.ParquetWriter(file, rows.schema, compression="zstd") as writer:
        for _ in range(40):  # A value that repeats stands in each group once.
            writer.write_table(rows)
    return file.getvalue()


def _tfrecords(_: Sequence[bytes]) -> bytes:
    size = struct.pack("<Q", 1 << 40)
    crc = google_crc32c.value(size)
    return size + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF) + bytes(1000)


def _tar(seeds: Sequence[bytes]) -> bytes:
    return repairs.tar(seeds[0][:124] + b"77777777777\0" + seeds[0][136 : 8 * tarfile.BLOCKSIZE])


def _aliases(_: Sequence[bytes]) -> bytes:
    lines = ["    a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"    a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    return "\n".join(["name: digits", "model:", "  name: digits_cnn", "  parameters:", *lines]).encode()


BOMBS: dict[str, Callable[[Sequence[bytes]], bytes]] = {
    "JPEG": _jpeg,
    "PNG": lambda seeds: repairs.png(_patched(seeds[0], 16, ">II", _SIDE, _SIDE)),
    "BMP": lambda seeds: _patched(seeds[0], 18, "<ii", _SIDE, _SIDE),
    "GIF": _gif,
    "WEBP": _webp,
    "TIFF": lambda _: tiled_tiff(1, 12_288),
    "PPM": lambda _: b"P6 %d %d 255\n" % (_SIDE, _SIDE) + bytes(1000),
    "AVIF": _avif,
    "npz": _archive,
    "task": _archive,
    "part": _archive,
    "array to predict": _array,
    "idx": _idx,
    "parquet": _parquet,
    "tfrecords": _tfrecords,
    "tar": _tar,
    "labelstudio": lambda _: _DEEP,
    "cvat": _entities,
    "csv of texts": lambda _: b"text,label\n" + b'"' + b"a" * (32 << 20),
    "configuration": _aliases,
    **dict.fromkeys(("dataset.json", "model.json", "evaluation.json", "export.json"), lambda _: _DEEP),
    **dict.fromkeys(("version.json", "aliases.json", "note", "summary.json", "history.jsonl"), lambda _: _DEEP),
}
