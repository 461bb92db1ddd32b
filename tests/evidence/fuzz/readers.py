"""Every reader of bytes that somebody else may have written: good files of its format, and the call that reads one."""

import contextlib
import csv
import dataclasses
import functools
import gzip
import io
import json
import shutil
import struct
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.evidence.fuzz import http_requests, repairs
from tests.support.registered import write_model
from tests.test_files_between_steps import CONTENT, FILES, MANIFEST, SHARD, use
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.shifts import find_shifts
from tpu_components.core.drift.sketches import DataSketch
from tpu_components.core.examples.artifacts import Manifest, load_history
from tpu_components.core.examples.example_ids import ID_TYPE, identify_bands, identify_text, load_retired
from tpu_components.core.examples.images import UnreadableImageError, check_encoded, original_pixels, read_image
from tpu_components.core.examples.interface import IMAGE, ImageRule, TextInput, UnreadableError
from tpu_components.core.examples.records import encode_example, frame_record
from tpu_components.core.examples.text import TOKENIZATIONS, Tokenizer
from tpu_components.core.files.location import Location
from tpu_components.core.registry.folder import ModelRegistry
from tpu_components.core.registry.held_out import HeldOutSet
from tpu_components.core.registry.versions import Version
from tpu_components.core.sources.kinds import list_examples, list_unlabelled
from tpu_components.core.sources.source_ref import SourceRef
from tpu_components.core.sources.tasks import load_tasks, pack_tasks
from tpu_components.core.work.resume_state import ResumeState
from tpu_components.create_tfrecords import WriteParams, plan_dataset
from tpu_components.create_tfrecords.encoders import choose_encoder
from tpu_components.create_tfrecords.parts import check_part, part_bytes, read_part, read_records, write_part
from tpu_components.serving import inputs
from tpu_components.train_model.checkpoints.checkpoint import TrainingProgress, load_arrays, save_arrays
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.runs.step_cache import StepCache

_TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
_TIFF_KINDS = ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")
_IMAGE_OPTIONS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "JPEG": ({"progressive": True}, {"mode": "L"}, {"mode": "CMYK"}, {"exif": _TURNED}),
    "PNG": ({"mode": "P"}, {"mode": "LA"}, {"mode": "I;16"}, {"mode": "1"}),
    "BMP": ({"mode": "P"}, {"mode": "1"}),
    "GIF": ({"mode": "P"}, {"mode": "L"}),
    "WEBP": ({"lossless": True}, {"mode": "RGBA"}),
    "TIFF": (*({"compression": kind} for kind in _TIFF_KINDS), {"mode": "1", "compression": "group4"}),
    "PPM": ({"mode": "L"}, {"mode": "1"}),
    "AVIF": (),
}
_RULE = ImageRule((8, 8), 3)
_CLASSES = ("cat", "dog")


@dataclasses.dataclass(frozen=True)
class Reader:
    """A reader.

    Attributes:
        file: Name of the file that it reads, below a folder.
        seeds: Writes what stands beside the file into that folder; returns good contents of the file.
        read: Reads the file of a path.
        repair: Makes the checksums of changed content right.
        is_json: Whether the content is JSON, of which values can be changed.
        refusals: Exceptions by which it refuses.
        source: Kind of the source whose files it reads.
    """

    file: str
    seeds: Callable[[Path], Sequence[bytes]]
    read: Callable[[Path], Any]
    repair: Callable[[bytes], bytes] | None = None
    is_json: bool = False
    refusals: tuple[type[Exception], ...] = (InputError,)
    source: str = ""


def picture(
    number: int = 0, kind: str = "PNG", size: Sequence[int] = (9, 7), mode: str = "RGB", **options: Any
) -> bytes:
    """Return an image file."""
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def _of_images(kind: str) -> Reader:
    options = _IMAGE_OPTIONS[kind]

    def read(path: Path) -> None:
        content = path.read_bytes()
        _, _, as_held = check_encoded(content, ImageRule(None, 0))
        if as_held.loaded is not None:
            identify_bands(original_pixels(content, as_held))
        del as_held
        read_image(content, _RULE)

    def seeds(_: Path) -> Sequence[bytes]:
        return [picture(kind=kind, **each) for each in ({}, *options)]

    repair = repairs.png if kind == "PNG" else None
    return Reader("image", seeds, read, repair, refusals=(UnreadableImageError,))


def _json_file(name: str) -> Reader:
    def seeds(folder: Path) -> Sequence[bytes]:
        (folder / SHARD.name).write_bytes(CONTENT)
        FILES[name].save(folder)
        return [(folder / name).read_bytes()]

    def read(path: Path) -> None:
        artifact = type(FILES[name]).load(path.parent)
        use(path.parent, artifact)
        if isinstance(artifact, Manifest):
            find_shifts(DataSketch.make(artifact), DataSketch.make(MANIFEST))

    return Reader(name, seeds, read, is_json=True)


def _source(
    form: str,
    file: str,
    seeds: Callable[[Path], Sequence[bytes]],
    repair: Callable[[bytes], bytes] | None = None,
    is_json: bool = False,
    **params: Any,
) -> Reader:
    def read(path: Path) -> None:
        given = WriteParams(form.format(path, folder=path.parent), **params)
        for make in (list_examples, list_unlabelled):
            if params.get("task") and make is list_unlabelled:
                continue
            listing = make(given)
            for example in range(min(len(listing.keys), 20)):
                content = listing.read(example)
                if listing.kind == IMAGE:
                    with contextlib.suppress(UnreadableImageError):  # The writer sets it aside.
                        read_image(content, given.image_rule)
        plan_dataset(given)

    return Reader(file, seeds, read, repair, is_json, source=SourceRef.parse(form).kind)


def _npz(_: Path) -> Sequence[bytes]:
    images, labels = np.zeros((20, 5, 4), np.uint8), np.arange(20) % 2
    files = []
    for save, names in ((np.savez, labels), (np.savez_compressed, np.array(_CLASSES)[labels])):
        file = io.BytesIO()
        save(file, x_train=images, y_train=names, x_test=images, y_test=names)
        files.append(file.getvalue())
    return files


def _arrays(folder: Path) -> Sequence[bytes]:
    np.save(folder / "array.npy", np.zeros((3, 5, 4), np.uint8))
    return [(folder / "array.npy").read_bytes(), *_npz(folder)]


def _idx(folder: Path) -> Sequence[bytes]:
    def idx(array: np.ndarray) -> bytes:
        return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()

    images, labels = np.zeros((10, 5, 4)), np.arange(10) % 2
    for name, array in (("train-labels-idx1", labels), ("t10k-images-idx3", images), ("t10k-labels-idx1", labels)):
        (folder / f"{name}-ubyte").write_bytes(idx(array))
    return [idx(images), gzip.compress(idx(images))]


def _table(rows: Sequence[Sequence[Any]], delimiter: str = ",") -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue().encode()


def _texts(_: Path) -> Sequence[bytes]:
    rows = [(f"a text, of {i} words", _CLASSES[i % 2], ("train", "test")[i % 4 == 0]) for i in range(20)]
    usual = _table([("text", "label", "split"), *rows])
    reviews = _table([("review", "sentiment", "x"), *rows], ";")
    odd = "v1,v2,,\n" + "".join(f'{i % 2}.0,"a ""text"" of Zoe\u0308 {i}",,\n' for i in range(20))
    return [
        usual,
        reviews,
        b"sep=;\r\n" + reviews,
        reviews.replace(b"\r\n", b"\r"),
        usual.decode().encode("utf-16"),
        odd.replace("v1", "label").replace("v2", "text").encode(),
        usual.replace(b'"a text, of 3 words"', b'"a \\"text\\" of 3 words"'),
    ]


def _several_labels(_: Path) -> Sequence[bytes]:
    cells = ["cat|dog", "dog", "", "cow", "Caf\u00e9|Cafe\u0301", "nan"]
    return [_table([("text", "label"), *((f"text {i}", cells[i % 6]) for i in range(24))])]


def _paths(folder: Path) -> Sequence[bytes]:
    for i in range(20):
        (folder / f"{i}.png").write_bytes(picture(i))
    rows = [(f"{i}.png", i / 2, 20 - i) for i in range(20)]
    odd = [((f"{i}.PNG", f".\\{i}.png", f"{i}")[i % 3], i / 2, i) for i in range(20)]
    return [_table([("path", "x", "y"), *rows]), _table([("path", "x", "y"), *odd])]


def _label_studio(_: Path) -> Sequence[bytes]:
    texts = [(i, f"a text of {i} words", _CLASSES[i % 2]) for i in range(20)]
    tasks = [
        {
            "id": i,
            "data": {"text": text},
            "annotations": [{"result": [{"type": "choices", "from_name": "kind", "value": {"choices": [label]}}]}],
        }
        for i, text, label in texts
    ]
    least = [{"id": i, "annotation_id": i, "text": text, "kind": {"choices": [label]}} for i, text, label in texts]
    return [json.dumps(tasks).encode(), json.dumps(least).encode()]


def _label_studio_lines(folder: Path) -> Sequence[bytes]:
    return [b"\n".join(json.dumps(task).encode() for task in json.loads(file)) for file in _label_studio(folder)]


def _cvat(folder: Path) -> Sequence[bytes]:
    (folder / "images").mkdir()
    for i in range(20):
        (folder / "images" / f"{i}.png").write_bytes(picture(i))
    images = "".join(f'<image id="{i}" name="{i}.png"><tag label="{_CLASSES[i % 2]}"/></image>' for i in range(20))
    return [f"<annotations><version>1.1</version>{images}</annotations>".encode()]


def _parquet(_: Path) -> Sequence[bytes]:
    import pyarrow
    import pyarrow.parquet

    labels = [_CLASSES[i % 2] for i in range(20)]
    tables = [
        {"image": [picture(i) for i in range(20)], "label": labels},
        {"image": [{"bytes": picture(i), "path": f"{i}.png"} for i in range(20)], "label": [i % 2 for i in range(20)]},
        {"text": [f"a text of {i} words" for i in range(20)], "label": labels},
    ]
    files = []
    for table, compression in zip(tables, ("snappy", "zstd", "none"), strict=True):
        file = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(table), file, compression=compression, row_group_size=8)
        files.append(file.getvalue())
    return files


def _tfrecords(_: Path) -> Sequence[bytes]:
    examples = [{"image": picture(i), "label": i % 2} for i in range(8)]
    named = [{"image": picture(i), "label": _CLASSES[i % 2].encode(), "floats": [0.5, 1.0]} for i in range(8)]
    raw = [{"image_raw": bytes(range(i, 63 + i)), "height": 9, "width": 7, "label": i % 2} for i in range(8)]
    return [b"".join(frame_record(encode_example(each)) for each in some) for some in (examples, named, raw)]


def _tar(_: Path) -> Sequence[bytes]:
    files = []
    for kind in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=kind) as members:
            for i in range(8):
                facts = json.dumps({"label": _CLASSES[i % 2]}).encode() if i % 3 else _CLASSES[i % 2].encode()
                long = "ö" * 120 if i == 3 and kind != tarfile.USTAR_FORMAT else ""
                label = f"{i}{long}.{'json' if i % 3 else 'cls'}"
                for name, content in ((f"{i}{long}.png", picture(i)), (label, facts)):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    members.addfile(member, io.BytesIO(content))
        files.append(file.getvalue())
    return files


def _corpus(_: Path) -> Sequence[bytes]:
    return [b"to be or not to be, that is the question.\n" * 20, "über allen gipfeln ist ruh\n".encode() * 20]


def _unicode(_: Path) -> Sequence[bytes]:
    texts = (
        "Caf\u00e9 Cafe\u0301 \u201cbon\u201d",
        "\u5f88\u597d\u770b\uff0c film",
        "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22\u3000\u00a0x",
    )
    return [text.encode() for text in texts]


def _read_text(path: Path) -> None:
    content = path.read_bytes()
    for name in TOKENIZATIONS:
        inputs_of_rule = TextInput(8, 100, "", name, "start")
        with contextlib.suppress(UnreadableError):  # The writer sets it aside.
            Tokenizer(inputs_of_rule, (b"film",)).encode_stored(content)
            identify_text(content)


def _ids(_: Path) -> Sequence[bytes]:
    files = []
    for array in (np.arange(9, dtype=np.uint64), np.array([(1, 2), (3, 0)], ID_TYPE)):
        file = io.BytesIO()
        np.save(file, array)
        files.append(file.getvalue())
    return files


def _decision(folder: Path) -> Sequence[bytes]:
    identities = np.array([(i, i + 1) for i in range(9)], ID_TYPE)
    HeldOutSet.find(Location(folder / "tests"), identities, "model").record("model", True, {"accuracy": 0.9}, {})
    (file,) = (folder / "tests").glob("*/model.json")
    content = file.read_bytes()
    file.unlink()
    return [content]


def _read_decision(path: Path) -> None:
    identities = np.array([(i, i + 1) for i in range(9)], ID_TYPE)
    found = HeldOutSet.find(Location(path.parents[1]), identities, "other")
    found.error_rate(0.05, 52)
    found.rank_promoted("accuracy", 1)


def _registry(folder: Path) -> Any:
    """Make a registry with a promoted version; returns it."""
    registry = ModelRegistry(folder / "registry", "digits")
    facts: Any = {"metrics": {"accuracy": 0.9}, "reasons": ["passed: it is good"], "lineage": {"run": "digits"}}
    version = registry.register(*write_model(folder / "made", "weights"), **facts)
    registry.promote(version.number, "champion", "it is better", "")
    (version.directory / "version.json").chmod(0o644)
    return registry


def _version(folder: Path) -> Sequence[bytes]:
    return [(_registry(folder).version("0001").directory / "version.json").read_bytes()]


def _read_version(path: Path) -> None:
    version = Version.load(path.parent)
    version.damage()
    _ = version.num_bytes, version.number


def _aliases(folder: Path) -> Sequence[bytes]:
    return [(_registry(folder).directory / "aliases.json").read_bytes()]


def _read_aliases(path: Path) -> None:
    registry = ModelRegistry(path.parents[1], "digits")
    registry.moves("champion")
    if (version := registry.find("champion")) is not None:
        registry.champion("champion", version.model_digest)


def _entry(folder: Path) -> Sequence[bytes]:
    output = folder / "cache" / "training-pipeline-1" / "train" / "model"
    output.mkdir(parents=True)
    (folder / "cache" / "steps").mkdir()
    return [json.dumps({"model": {"uri": str(output), "metadata": {}}, "Output": 3.5}).encode()]


def _read_entry(path: Path) -> None:
    cache = StepCache(path.parents[1])
    cache.output("entry", "model")
    content = path.read_bytes()
    cache.for_kfp()
    path.write_bytes(content)


def _pieces(folder: Path) -> ResumeState:
    state = ResumeState(f"{folder}/begun")
    state.begin("digest")
    state.finish("00000.npz", b"content", {"num_examples": 3, "file": {"name": "x"}})
    return state


def _begun(folder: Path) -> Sequence[bytes]:
    return [Path(_pieces(folder).root, "begun.json").read_bytes()]


def _note(folder: Path) -> Sequence[bytes]:
    return [Path(_pieces(folder).root, "notes", "00000.npz.json").read_bytes()]


def _read_pieces(path: Path) -> None:
    state = ResumeState(str(path.parents[1] if path.parent.name == "notes" else path.parent))
    state.holds("digest")
    state.whole(["00000.npz"])
    state.read("00000.npz", {"num_examples": int})


def _part_of(folder: Path) -> tuple[Any, np.ndarray, Any]:
    """Return a plan's listing, the examples of a task, and their encoder."""
    for i in range(20):
        place = folder / "images" / _CLASSES[i % 2] / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(picture(i))
    plan = plan_dataset(WriteParams(f"images:{folder}/images"))
    return plan.listing, np.arange(8), plan


def _task(folder: Path) -> Sequence[bytes]:
    listing, indices, _ = _part_of(folder)
    texts = list_examples(WriteParams(f"csv:{_written(folder / 'texts.csv', _texts(folder)[0])}"))
    return [pack_tasks("key", each.select(indices), {0: 3, 1: 5}) for each in (listing, texts)]


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _read_task(path: Path) -> None:
    for _, examples in load_tasks(str(path), "key"):
        _ = list(examples.values), list(examples.keys)


def _part(folder: Path) -> Sequence[bytes]:
    listing, indices, plan = _part_of(folder)
    encoder, _ = choose_encoder(plan, None)
    return [part_bytes(read_records(write_part(encoder, str(folder / "scratch"), listing.select(indices))))]


@functools.cache
def _listing(folder: Path) -> Any:
    return list_examples(WriteParams(f"images:{folder}/images"))


def _read_part(path: Path) -> None:
    check_part(read_part(str(path), path.read_bytes()), _listing(path.parent), np.arange(8))


def _history(_: Path) -> Sequence[bytes]:
    return [b'{"epoch": 1, "loss": NaN}\n{"epoch": 2, "loss": 0.5, "val_accuracy": 0.75}\n']


def _checkpoint(folder: Path) -> Sequence[bytes]:
    progress = TrainingProgress("digest", 1, 2, history=[{"loss": 0.5}])
    save_arrays(folder / "checkpoint.npz", {"dense/kernel": np.ones((3, 4), np.float32)}, progress)
    return [(folder / "checkpoint.npz").read_bytes()]


def _config(_: Path) -> Sequence[bytes]:
    folder = Path(__file__).parents[3] / "pipelines/tpu_pipelines/configs"
    return [(folder / f"{name}.yaml").read_bytes() for name in ("digits", "cifar10_cnn", "imdb_lstm")]


READERS = {
    **{name: _json_file(name) for name in FILES},
    "history.jsonl": Reader("history.jsonl", _history, lambda path: load_history(path.parent)),
    "version.json": Reader("registry/digits/versions/0001/version.json", _version, _read_version, is_json=True),
    "aliases.json": Reader("registry/digits/aliases.json", _aliases, _read_aliases, is_json=True),
    "cache entry": Reader("cache/steps/entry.json", _entry, _read_entry, is_json=True),
    "begun.json": Reader("begun/begun.json", _begun, _read_pieces, is_json=True),
    "note": Reader("begun/notes/00000.npz.json", _note, _read_pieces, is_json=True),
    "task": Reader("task.npz", _task, _read_task, repairs.archive),
    "part": Reader("part.npz", _part, _read_part, repairs.archive),
    "checkpoint": Reader("checkpoint.npz", _checkpoint, load_arrays, repairs.archive),
    "array to predict": Reader("array.npy", _arrays, lambda path: inputs.read_input_arrays(str(path)), repairs.archive),
    "configuration": Reader("config.yaml", _config, load_config),
    "npz": _source("npz:{}", "data.npz", _npz, repairs.archive, validation_fraction=0.0),
    "idx": _source("idx:{folder}", "train-images-idx3-ubyte", _idx, validation_fraction=0.0),
    "csv of texts": _source("csv:{}", "data.csv", _texts),
    "csv of several labels": _source("csv:{}", "data.csv", _several_labels, task="multi_label", max_bad_fraction=0.9),
    "csv of paths": _source("csv:{}", "data.csv", _paths, task="regression", target_columns=("x", "y")),
    "labelstudio": _source("labelstudio:{}", "tasks.json", _label_studio, is_json=True),
    "labelstudio in lines": _source("labelstudio:{}", "tasks.json", _label_studio_lines),
    "cvat": _source("cvat:{}", "annotations.xml", _cvat),
    "parquet": _source("parquet:{}", "data.parquet", _parquet),
    "tfrecords": _source("tfrecords:{}", "data.tfrecord", _tfrecords, repairs.tfrecords),
    "tar": _source("webdataset:{}", "data.tar", _tar, repairs.tar),
    "text": Reader("text.txt", _unicode, _read_text),
    "ids": Reader("examples.npy", _ids, lambda path: load_retired(str(path)), repairs.archive),
    "decision": Reader("tests/set/model.json", _decision, _read_decision, is_json=True),
    "corpus": _source("corpus:{}", "data.txt", _corpus),
    **{kind: _of_images(kind) for kind in _IMAGE_OPTIONS},
    "http": Reader("request", http_requests.seeds, http_requests.ask, repairs.request),
}


def prepare(name: str, folder: Path) -> tuple[Path, Sequence[bytes]]:
    """Write what stands beside a reader's file into a new folder; returns the file's path, and good contents of it."""
    reader = READERS[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    seeds, path = reader.seeds(folder), folder / reader.file
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, seeds
