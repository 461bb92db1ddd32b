"""Tar archives of images in WebDataset's format, which are read without unpacking.

In this format, the files of one example follow each other, and share a name up to the first dot:
https://github.com/webdataset/webdataset.
"""

import codecs
import contextlib
import dataclasses
import functools
import posixpath
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.base.formatting import quoted
from tpu_components.core.base.names import as_nfc
from tpu_components.core.examples.images import has_image_suffix
from tpu_components.core.examples.interface import IMAGE
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.csv_files import find_column
from tpu_components.core.files.location import Location
from tpu_components.core.sources.containers import (
    Container,
    list_containers,
    split_in_folders,
    splits_of,
    stored_files,
    version_of,
)
from tpu_components.core.sources.fields import read_labels, read_weights
from tpu_components.core.sources.listing import Listing, Source, without_labels
from tpu_components.core.sources.pairs import NOT_SUPPORTED, check_class_folders, find_masks
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.spans import Span, Spans
from tpu_components.core.sources.targets import Targets
from tpu_components.core.work.workers import in_threads

_CLASS_SUFFIXES = ("cls", "cls.txt", "class", "label", "txt")
_MOST_FACTS_BYTES = 1 << 20  # Larger .cls and .json files are ignored.


@dataclasses.dataclass(frozen=True)
class _Example:
    """An image in an archive.

    Attributes:
        name: Path of the image in the archive.
        span: Byte range of the image in the archive. It is empty if the image is a link to a file that is not in the
            archive.
        label: Label from the label file: text, bytes or a JSON value, or None if there is no label.
        kept: Other values from the JSON file of the image, such as the weight, by this project's names.
        fields: Names of the fields in a JSON file without a label.
        link: Name of the file that the image is a link to. Empty if the image is not a link.
    """

    name: str
    span: Span
    label: Any
    kept: Mapping[str, Any]
    fields: tuple[str, ...] = ()
    link: str = ""


class _Archive(NamedTuple):
    """The images of an archive, and the names of the label files that have no image next to them."""

    examples: list[_Example]
    stray: list[str]


def list_webdataset(location: Location, params: WriteParams, labelled: bool) -> Listing:
    """List the images of tar archives.

    The label of an image is in a `.cls`, `.txt` or `.json` file with the image's name. If no image has such a file, the
    label of an image is the name of its folder. A folder in the archive's path, the first word of the archive's name or
    a folder in the archive names the split.

    Raises:
        InputError: If an archive cannot be read or has no images, if an image has no label because its label file is
            not next to it, or if only some images have a split.
    """
    archives = list_containers(location, (".tar",))
    read = list(in_threads(functools.partial(_read_archive, params=params), archives[0].path, archives))
    by_archive = [archive.examples for archive in read]
    stray = sorted(name for archive in read for name in archive.stray)
    masks = _find_masks([example for examples in by_archive for example in examples], labelled)
    by_archive = [[example for example in examples if example.name not in masks] for examples in by_archive]
    notes = [f"left out {len(masks):,} masks, such as {min(masks)!r}. {NOT_SUPPORTED}"] if masks else []
    examples = [example for examples in by_archive for example in examples]
    if not examples:
        raise InputError(
            f"Found no images in {location}: expected archives with files such as NAME.jpg. Check the archives."
        )
    counts = Counter(example.name for example in examples)
    repeated = len(counts) < len(examples)
    keys = tuple(
        f"{archive.name}/{example.name}" if repeated else example.name
        for archive, examples in zip(archives, by_archive, strict=True)
        for example in examples
    )
    if len(set(keys)) < len(keys):
        twice = [key for key, count in Counter(keys).items() if count > 1]
        raise InputError(
            f"Repeated names in an archive: {quoted(twice)}. Each name must occur only once. Create the archive again."
        )
    targets = Targets(*without_labels(len(keys)), {})
    reasons: list[Mapping[int, str]] = [_find_broken(examples)]
    has_label_files = any(example.label is not None for example in examples)
    if labelled:
        labels = [example.label for example in examples]
        if stray and None in labels:
            raise InputError(
                f"Some label files in {location} have no image next to them: {quoted(stray)}. Expected the files of "
                "each example to be adjacent and to share a name up to the first dot. Create the archive again, with "
                "sorted names."
            )
        if stray:
            notes.append(f"left out {len(stray):,} label files without an image, such as {stray[0]!r}")
        if not has_label_files:
            if fields := sorted({field for example in examples for field in example.fields}):
                notes.append(
                    f"the JSON files have no label field, only {quoted(fields)}, so folder names are used as classes. "
                    "To use a field, set data.columns={label: …}"
                )
            labels = [_folder_of(example) for example in examples]
            if not params.class_names:
                _check_folders(examples, location)
        targets = read_labels(labels, "label", params, keys)
        reasons.append(targets.unusable)
    if len(targets.unusable) == len(keys):
        raise InputError(
            f"Images without a label in {location}: {quoted(keys)} ({targets.unusable[0]}). Expected a file NAME.cls "
            "or NAME.json for each NAME.jpg, or a folder for each class."
        )
    kept = [] if labelled else [n for n in ("id", *params.slice_columns) if any(n in each.kept for each in examples)]
    weights = None
    name = params.columns.get("weight")
    if labelled and name:
        column, _, without_weight = read_weights([example.kept.get("weight") for example in examples], name, keys)
        weights = column[:, 0]
        reasons.append(without_weight)
    splits = None
    if labelled:
        of_archives = splits_of(archives, location, params.split_files)
        splits = _splits_inside(examples, has_label_files, location)
        if of_archives is not None:
            splits = np.repeat(of_archives, list(map(len, by_archive)))
    listing = Listing(
        keys=keys,
        labels=targets.labels,
        class_names=targets.class_names,
        splits=splits,
        slices={name: [example.kept.get(name) for example in examples] for name in kept},
        spans=Spans.collect([example.span for example in examples]),
        containers=stored_files(archives),
        version=version_of(archives),
        # Without the archive's name, so that adding an archive does not rename examples.
        identities=tuple(name for examples in by_archive for name in _identify(examples, has_label_files)),
        weights=weights,
        notes=tuple(notes),
    )
    return listing.without(*reasons)


def _identify(examples: Sequence[_Example], has_label_files: bool) -> Iterator[str]:
    """Yield the name that identifies each image of an archive.

    All images of an example, such as two views that share a label file, get the same name. Therefore, they are in the
    same split.
    """
    sizes = Counter(_stem_of(example.name) for example in examples) if has_label_files else Counter[str]()
    for example in examples:
        stem = _stem_of(example.name)
        yield stem if sizes[stem] > 1 else example.name


def _find_broken(examples: Sequence[_Example]) -> dict[int, str]:
    """Return {index: reason} for the images that are links to files that are not in the archive."""
    return {
        i: f"it is a link to {example.link!r}, which is not in the archive"
        for i, example in enumerate(examples)
        if example.link and not example.span.num_bytes
    }


def _splits_inside(examples: Sequence[_Example], has_label_files: bool, location: str) -> np.ndarray | None:
    """Return the split of every image, str[num_examples], from its split folder in the archive.

    The class folder of an image is never read as its split. Return None if the archives have no split folder.

    Raises:
        InputError: If only some images are in a split folder.
    """
    folders = [example.name.split("/")[: -1 if has_label_files else -2] for example in examples]
    splits = [split_in_folders(names) for names in folders]
    if not any(splits):
        return None
    if strange := [example.name for example, split in zip(examples, splits, strict=True) if not split]:
        raise InputError(
            f"Some images in {location} are not in a split folder: {quoted(strange)}. Expected either all "
            "images or no image in folders such as train/ and test/. Move these images, and create the archive again."
        )
    return np.array(splits)


def _find_masks(examples: Sequence[_Example], labelled: bool) -> set[str]:
    """Return the names of images that are masks of other images.

    An image that is named like a mask, such as `1_mask.jpg`, is an example if it has its own label file, for instance a
    photo of a person with a face mask. If labels are not read, it is an example even without a label file.
    """
    masks = set(find_masks([example.name for example in examples]))
    if not masks:
        return masks
    sizes = Counter(_stem_of(example.name) for example in examples)
    return {
        example.name
        for example in examples
        if example.name in masks and (sizes[_stem_of(example.name)] > 1 or (labelled and example.label is None))
    }


def _stem_of(name: str) -> str:
    """Return the name that all files of an example share, up to the first dot."""
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0]}"


def _check_folders(examples: Sequence[_Example], location: str) -> None:
    """Check that the folders in the archives are classes, and do not separate images from masks or annotations.

    Raises:
        InputError: If the folders are not classes.
    """
    # Classes may be at different depths, so each comes first.
    spans: dict[str, dict[str, Span]] = {}
    for example in examples:
        above, _, file = example.name.rpartition("/")
        parents, _, folder = above.rpartition("/")
        path = "/".join(part for part in (folder, parents, file) if part)
        spans.setdefault(folder, {})[path] = example.span
    spans.pop("", None)
    if len(spans) > 1:
        check_class_folders(
            sorted(spans),
            lambda folder: sorted(spans[folder]),
            0,
            IMAGE,
            location,
            lambda path: spans[path.partition("/")[0]][path].read(),
        )


def _folder_of(example: _Example) -> str | None:
    """Return the name of the image's folder in the archive, or None if the image is not in a folder."""
    return example.name.rpartition("/")[0].rpartition("/")[2] or None


def _read_archive(archive: Container, params: WriteParams) -> _Archive:
    """Read the names, places and labels of the images in an archive.

    Raises:
        InputError: If the archive is damaged, compressed or not a tar archive, or a file name in it is not UTF-8.
    """
    groups: list[_Group] = []
    try:
        with storage.open_file(archive.path) as file, tarfile.open(fileobj=file, mode="r:") as members:
            files = _Files(archive, file)
            for member in members:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                is_link = member.islnk() or member.issym()
                if not (member.isfile() or is_link) or storage.is_hidden(name):
                    continue
                member.name.encode()  # Python reads the bytes of a name that is not UTF-8 as lone surrogates.
                member.linkname.encode()
                files.add(member)
                stem, _, suffix = name.partition(".")
                stem = f"{folder}/{stem}" if folder else stem
                if not groups or stem != groups[-1].stem:
                    groups.append(_Group(stem, archive.path, params))
                groups[-1].add(member, suffix.lower(), files)
            file.seek(members.offset)
            if len(file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:  # An archive ends with empty blocks.
                raise tarfile.ReadError("unexpected end of data")
    except InputError:
        raise
    except UnicodeEncodeError as error:
        raise InputError(
            f"A file name in {archive.path} is not UTF-8: {error.object!r}. Rename the file, and create the archive "
            "again."
        ) from error
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:  # Odd sizes in headers.
        raise InputError(
            f"Cannot read {archive.path}: {error}. Expected a complete, uncompressed tar archive. Create the archive "
            "again, or decompress it with gunzip."
        ) from error
    return _Archive(
        [example for group in groups for example in group.examples(files)],
        [name for group in groups for name in group.stray],
    )


class _Files:
    """The files of an archive by name, so that links to them can be followed.

    Args:
        archive: Path and size of the archive.
        file: The opened archive file.
    """

    def __init__(self, archive: Container, file: BinaryIO) -> None:
        self._archive = archive
        self._file = file
        self._spans: dict[str, Span] = {}
        self._links: dict[str, str] = {}

    def add(self, member: tarfile.TarInfo) -> None:
        """Record the name and the place of a file or a link in the archive, for `find`.

        Raises:
            tarfile.ReadError: If the archive ends in the middle of the file, or the file is sparse.
        """
        name = posixpath.normpath(member.name)
        if member.issym():
            self._links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        elif member.islnk():
            self._links[name] = posixpath.normpath(member.linkname)
        else:
            if member.issparse():
                raise tarfile.ReadError(f"{member.name!r} is a sparse file")
            if not 0 <= member.size <= self._archive.num_bytes - member.offset_data:
                raise tarfile.ReadError(f"{member.name!r} should have {member.size:,} bytes, which the archive lacks")
            self._spans[name] = Span(self._archive.path, member.offset_data, member.size)

    def find(self, name: str) -> tuple[Span, str]:
        """Return the byte range of a file and, if the file is a link, the name of its target.

        The byte range is empty if the target is not in the part of the archive that has been read so far. The name is
        empty if the file is not a link.
        """
        name = posixpath.normpath(name)
        seen = {name}
        target = name
        while (following := self._links.get(target)) and following not in seen:  # Links may form a circle.
            target = following
            seen.add(target)
        return self._spans.get(target, Span(self._archive.path, 0, 0)), self._links.get(name, "")

    def read(self, span: Span) -> bytes:
        """Return the content of a file."""
        self._file.seek(span.offset)
        return self._file.read(span.num_bytes)


class _Group:
    """The files of an archive that share a name up to the first dot."""

    def __init__(self, stem: str, path: str, params: WriteParams) -> None:
        self.stem = stem
        self._path = path
        self._params = params
        self._images: list[str] = []
        self._label_files: list[str] = []
        self._label: Any = None
        self._kept: dict[str, Any] = {}
        self._fields: tuple[str, ...] = ()

    def add(self, member: tarfile.TarInfo, suffix: str, files: _Files) -> None:
        """Add a file of the archive to this group. Files that are neither images nor labels are ignored."""
        name = member.name.removeprefix("./")
        if has_image_suffix(name):
            self._images.append(name)
        elif suffix in (*_CLASS_SUFFIXES, "json"):
            span, _ = files.find(name)
            if span.num_bytes > _MOST_FACTS_BYTES:
                return
            label = self._read_label(suffix, files.read(span))
            if label is not None:
                self._label_files.append(name)
            if label is not None and (suffix != "txt" or self._label is None):
                self._label = label

    def _read_label(self, suffix: str, content: bytes) -> Any:
        if suffix != "json":
            if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # As PowerShell writes it.
                with contextlib.suppress(UnicodeDecodeError):
                    return content.decode("utf-16").strip()
            # As bytes: a label that is not UTF-8 is quarantined with its image.
            return content.removeprefix(codecs.BOM_UTF8).strip()
        with reading(f"{self.stem}.{suffix} in {self._path}", "the image's label", "Correct this file."):
            facts = {as_nfc(field): value for field, value in typed_json.decode(content.decode("utf-8-sig")).items()}
            wanted = {"id": "id", **self._params.columns, **{name: name for name in self._params.slice_columns}}
            self._kept |= {name: facts[field] for name, field in wanted.items() if field in facts}
            name = self._params.columns.get("label") or find_column("label", list(facts))
            if name not in facts:
                self._fields = tuple(facts)
            return facts.get(name)

    @property
    def stray(self) -> list[str]:
        """Names of the group's label files if the group has no image; otherwise empty."""
        return [] if self._images else self._label_files

    def examples(self, files: _Files) -> Iterator[_Example]:
        """Yield each image of the group, with the label from its label file, or with None if it has no label file."""
        for name in self._images:
            span, link = files.find(name)
            yield _Example(name, span, self._label, self._kept, self._fields, link)


SOURCE = Source("webdataset:GLOB", list_webdataset, suffixes=(".tar",), takes=("columns", "split_files"))
