"""Images and labels in the four IDX files of MNIST."""

import gzip
import hashlib
import io
import math
import struct
import zlib

import numpy as np

from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.examples.artifacts import TEST, TRAIN
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.files.unpacking import require_plausible
from tpu_components.core.sources.arrays import Arrays, list_arrays
from tpu_components.core.sources.listing import Listing, Source
from tpu_components.core.sources.params import WriteParams

_MOST_AXES = 4


def read_idx(content: bytes, name: str) -> np.ndarray:
    """Return the uint8 array of an IDX file, gzipped or not (format: http://yann.lecun.com/exdb/mnist/).

    Raises:
        InputError: If the content is not an IDX file.
    """
    damage = (struct.error, ValueError, OSError, EOFError, zlib.error)
    with reading(name, "an IDX file of unsigned bytes", "Download it again.", *damage):
        whole = io.BytesIO(content)
        file = gzip.GzipFile(fileobj=whole) if content[:2] == b"\x1f\x8b" else whole
        magic = file.read(4)
        zeros, kind, rank = struct.unpack(">HBB", magic)
        if zeros or kind != 8 or rank > _MOST_AXES:
            raise ValueError(f"a file with the magic number {magic.hex()}")
        shape = struct.unpack(f">{rank}I", file.read(4 * rank))
        require_plausible(name, len(content), math.prod(shape))
        # One byte more, to detect trailing bytes and to verify the checksum of a gzip file.
        return np.frombuffer(file.read(math.prod(shape) + 1), np.uint8).reshape(shape)


def list_idx(location: Location, params: WriteParams, labelled: bool) -> Listing:
    """List the images and labels in MNIST's four files, gzipped or not. The files must have their usual names."""
    files = {file.name.removesuffix(".gz").replace(".", "-"): file.name for file in storage.list_files(location)}
    arrays: Arrays = {}
    digest = hashlib.sha256()
    for split, prefix in ((TRAIN, "train"), (TEST, "t10k")):
        pair = []
        for name in (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"):
            if name not in files:
                raise InputError(
                    f"Missing {name}[.gz] in {location}. Expected MNIST's four files. Received: "
                    f"{sorted(files.values())}. Add the missing file, or correct the path."
                )
            content = storage.read_bytes(location.child(files[name]))
            digest.update(content)
            pair.append(read_idx(content, f"{location}/{files[name]}"))
        arrays[split] = pair[0], pair[1]
    return list_arrays(arrays, digest.hexdigest(), params)


SOURCE = Source("idx:DIR", list_idx)
