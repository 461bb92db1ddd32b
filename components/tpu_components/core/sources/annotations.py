"""Exports of Label Studio (JSON) and CVAT (XML), read as tables of labelled images or texts.

Label Studio: https://labelstud.io/guide/task_format, https://labelstud.io/guide/export#JSON_MIN. CVAT for images 1.1:
https://docs.cvat.ai/docs/manual/advanced/xml_format, https://docs.cvat.ai/docs/manual/advanced/formats/format-cvat.
"""

import dataclasses
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.base.formatting import quoted
from tpu_components.core.base.names import as_nfc
from tpu_components.core.examples.images import has_image_suffix
from tpu_components.core.examples.interface import MULTI_LABEL
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.csv_files import find_column
from tpu_components.core.files.location import Location
from tpu_components.core.sources.csv_file import Table, list_table
from tpu_components.core.sources.listing import Listing, Source
from tpu_components.core.sources.pairs import NOT_SUPPORTED
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.targets import SEPARATOR

_ADDRESS = re.compile(r"^/data/(local-files/\?d=)?")  # Start of paths in Label Studio's storage.
_ANSWERS = ("choices", "taxonomy", "rating", "number")  # Types of results that label a whole task.
# Keys of a result's value that say where in an image, a text, an audio or a video it is.
_PLACES = ("x", "points", "rle", "start", "sequence")
_LABEL_STUDIO = "a Label Studio export (JSON or JSON-MIN)"
_CVAT = "a CVAT annotations.xml (CVAT for images 1.1)"


@dataclasses.dataclass(frozen=True)
class _Item:
    """A task of Label Studio or an image of CVAT.

    Attributes:
        name: Name in messages.
        data: Values by column.
        choices: Labels by the name of the annotation control, or None if nobody annotated the item.
        others: Types of the other annotations, such as `rectanglelabels` or `box`.
        is_disputed: Whether annotators gave the item different labels.
    """

    name: str
    data: Mapping[str, str]
    choices: Mapping[str, Sequence[str]] | None
    others: tuple[str, ...] = ()
    is_disputed: bool = False


def _is_answer(value: Any) -> bool:
    """Return whether a value in JSON-MIN is an annotation, such as {"choices": […]} or {"taxonomy": […]}."""
    return isinstance(value, dict) and any(kind in value for kind in _ANSWERS)


def _labels_in(value: Any) -> list[str]:
    """Return the labels in an annotation: a text or number, a list of these, or a mapping from a type to one of these.

    The annotation of a taxonomy is a list of paths: the label of `[["animal", "cat"]]` is `animal/cat`.
    """
    if isinstance(value, dict):
        return [label for kind in _ANSWERS for label in _labels_in(value.get(kind))]
    if isinstance(value, list):
        return ["/".join(map(str, each)) if isinstance(each, list) else str(each) for each in value if each is not None]
    return [] if value is None else [str(value)]


def _of_task(task: Any, name: str, controls: Collection[str]) -> _Item:
    """Read a task of Label Studio's JSON or JSON-MIN. The first annotation that was not cancelled counts.

    Args:
        task: The task.
        name: Name of the task in messages.
        controls: Names of the controls in which an annotator has selected several choices. JSON-MIN stores several
            choices as {"choices": […]}, but a single choice as text, which looks like a field of the data.

    Raises:
        ValueError: If `task` is not a task with data fields. The message contains `name`.
    """
    if not isinstance(task, dict) or not isinstance(data := task.get("data", task), dict):
        raise ValueError(f"{name} without data fields: {str(task)[:60]}")
    choices: dict[str, Sequence[str]] | None = None
    others: dict[str, None] = {}
    is_disputed = False
    if data is not task:
        done = [each for each in task.get("annotations") or () if isinstance(each, dict)]
        answers = [_answers_in(each, others) for each in done if not each.get("was_cancelled")]
        if answers:
            choices = answers[0]
            # The order of several choices has no meaning.
            is_disputed = len({frozenset((c, frozenset(labels)) for c, labels in each.items()) for each in answers}) > 1
    elif "annotation_id" in task:
        choices = {as_nfc(control): _labels_in(task[control]) for control in controls if control in task}
    columns = {
        as_nfc(key): str(value)
        for key, value in data.items()
        if isinstance(value, str | int | float) and key not in controls
    }
    own_id = {} if task.get("id") is None else {"id": str(task["id"])}
    return _Item(name, {**columns, **own_id}, choices, tuple(others), is_disputed)


def _answers_in(annotation: Mapping[str, Any], others: dict[str, None]) -> dict[str, Sequence[str]]:
    """Return the labels of an annotation, by name of the control. Types of other results are added to `others`.

    A choice for a region of the task (`perRegion`) is not a label of the whole task. It is recognized by the region's
    ID or place.
    """
    choices: dict[str, Sequence[str]] = {}
    every = annotation.get("result") or ()
    results = [result for result in every if isinstance(result, dict) and "from_name" in result]
    regions = {result.get("id") for result in results if result.get("type") not in _ANSWERS} - {None}
    for result in results:
        kind = str(result.get("type"))
        value = result.get("value")
        if kind not in _ANSWERS:
            others[kind] = None
        elif result.get("id") in regions or (isinstance(value, dict) and any(place in value for place in _PLACES)):
            others[f"{kind} of regions"] = None
        else:
            control = as_nfc(str(result["from_name"]))
            labels = [*choices.get(control, ()), *_labels_in(value)]
            choices[control] = list(dict.fromkeys(labels))
    return choices


def _label_studio(content: bytes) -> list[_Item]:
    try:
        tasks = typed_json.decode(content)
    except ValueError:
        lines = content.splitlines()
        if len(lines) < 2 or not lines[0].strip().startswith(b"{"):
            raise
        tasks = [typed_json.decode(line) for line in lines if line.strip()]  # One task per line.
    if not isinstance(tasks, list):
        content_kind = f"an object with {quoted(list(tasks))}" if isinstance(tasks, dict) else f"{str(tasks)[:60]!r}"
        raise ValueError(f"{content_kind}, not a list of tasks")
    controls = {key for task in tasks if isinstance(task, dict) for key, value in task.items() if _is_answer(value)}
    ids = [task.get("id") if isinstance(task, dict) else None for task in tasks]
    counts = Counter(map(str, ids))
    items = []
    for place, (task, task_id) in enumerate(zip(tasks, ids, strict=True), 1):
        is_named = task_id is not None and counts[str(task_id)] == 1
        items.append(_of_task(task, f"task {task_id}" if is_named else f"task number {place}", sorted(controls)))
    return items


def _cvat(content: bytes) -> list[_Item]:
    """Read the image tags in CVAT's XML file. CVAT puts the images into the folder `images` next to this file."""
    root = ElementTree.fromstring(content)
    if root.tag != "annotations":
        raise ValueError(f"the element <{root.tag}>")
    items = []
    for image in root.iterfind("image"):
        name = image.attrib["name"]
        tags = list(dict.fromkeys(tag.attrib["label"] for tag in image.iterfind("tag")))  # Two people may set one.
        others = dict.fromkeys(shape.tag for shape in image if shape.tag != "tag")
        items.append(
            _Item(f"image {name}", {"path": f"images/{name}"}, {"label": tags} if tags else None, tuple(others))
        )
    return items


def _as_table(items: Sequence[_Item], params: WriteParams, location: Location, version: str) -> Table:
    """Return annotated items as a table, with a column for each data field and each annotation control.

    If there is one annotation control, its column is `label`. If there is one data field, its column is `path` for
    images and `text` for texts.

    If the task allows only one class per example, reading the row of an item with several labels raises InputError.
    """
    controls = list(dict.fromkeys(name for item in items for name in item.choices or ()))
    fields = list(dict.fromkeys(name for item in items for name in item.data))
    renamed = {name: "label" for name in controls if len(controls) == 1 and name not in params.columns.values()}
    contents = [name for name in fields if name not in ("id", *params.columns.values())]
    if len(contents) == 1 and not params.columns.keys() & {"path", "text"}:
        first = next((item.data[contents[0]] for item in items if contents[0] in item.data), "")
        renamed[contents[0]] = "path" if has_image_suffix(first) else "text"
    columns = [renamed.get(name, name) for name in (*fields, *controls)]
    label, path = params.columns.get("label", "label"), params.columns.get("path", "path")
    if not {path, "text"} & {*columns, *params.columns}:
        path = find_column("path", columns[: len(fields)])

    def each_row() -> Iterator[tuple[int, Sequence[Any]]]:
        for number, item in enumerate(items):
            choices = item.choices or {}
            row: list[Any] = [item.data.get(name, "") for name in fields]
            if path in columns:
                row[columns.index(path)] = _ADDRESS.sub("", row[columns.index(path)])
            for name in controls:
                labels = tuple(choices.get(name, ()))
                if renamed.get(name, name) != label:
                    row.append(SEPARATOR.join(labels))
                elif params.task == MULTI_LABEL:
                    row.append(labels)
                elif len(labels) > 1:
                    raise InputError(
                        f"{item.name} of {location} has several labels: {', '.join(labels)}. Expected one label. Set "
                        "data.task=multi_label to use all of them."
                    )
                else:
                    row.append("".join(labels))
            yield number, row

    return Table(location, version, columns, each_row, row_names=[item.name for item in items])


def _list(
    read: Callable[[bytes], list[_Item]], what: str, location: Location, params: WriteParams, labelled: bool
) -> Listing:
    """List the items of an export. If `labelled` is true, items without annotations are left out."""
    # LookupError: an encoding that Python does not know.
    errors = (ValueError, LookupError, TypeError, AttributeError, ElementTree.ParseError)
    content = storage.read_bytes(location)
    with reading(location, what, "Export it again.", *errors):
        items = read(content)
    used = [item for item in items if item.choices is not None or not labelled]
    others = sorted({kind for item in items for kind in item.others})
    if others and labelled and not any(item.choices for item in items):
        raise InputError(
            f"Found no labels in {location}: expected {what} of classified images or texts, received only annotations "
            f"of the types {quoted(others)}. {NOT_SUPPORTED}"
        )
    if not used:
        raise InputError(
            f"Found no annotations in {location}: expected {what} of annotated images or texts. Annotate the items, "
            "and export them again."
        )
    table = _as_table(used, params, location, hashlib.sha256(content).hexdigest())
    listing = list_table(table, params, labelled)
    if left_out := len(items) - len(used):
        note = f"left out {left_out:,} of {len(items):,} items, because nobody annotated them"
        listing = dataclasses.replace(listing, notes=(note, *listing.notes))
    if labelled and (disputed := [item.name for item in used if item.is_disputed]):
        note = f"annotators disagree on {len(disputed):,} tasks, such as {disputed[0]}: the first annotation counts"
        listing = dataclasses.replace(listing, notes=(*listing.notes, note))
    return listing


LABEL_STUDIO, CVAT = (
    Source(
        form,
        functools.partial(_list, read, what),
        suffixes=(suffix,),
        takes=("task", "group_column", "slice_columns", "columns"),
        is_table=True,
    )
    for form, suffix, read, what in (
        ("labelstudio:FILE", ".json", _label_studio, _LABEL_STUDIO),
        ("cvat:FILE", ".xml", _cvat, _CVAT),
    )
)
