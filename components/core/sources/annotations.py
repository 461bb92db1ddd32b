"""Converts exports of annotation tools, Label Studio's JSON and CVAT's XML, to CSV, and lists them as a CSV file.

Label Studio: https://labelstud.io/guide/task_format, https://labelstud.io/guide/export#JSON_MIN. CVAT for images 1.1:
https://docs.cvat.ai/docs/manual/advanced/xml_format, https://docs.cvat.ai/docs/manual/advanced/formats/format-cvat.
"""

import csv
import dataclasses
import functools
import io
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.examples.images import has_image_suffix
from tpu_components.core.examples.interface import MULTI_LABEL
from tpu_components.core.files import storage, typed_json
from tpu_components.core.sources.csv_file import list_csv
from tpu_components.core.sources.listing import Listing, Source
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.targets import SEPARATOR

_ADDRESS = re.compile(r"^/data/(local-files/\?d=)?")  # Of Label Studio's media folder and local storage.


@dataclasses.dataclass(frozen=True)
class _Item:
    """A task of Label Studio or an image of CVAT.

    Attributes:
        name: Name in messages.
        data: Values by column.
        choices: Labels by the name of the control that asked for them; None if nobody annotated it.
    """

    name: str
    data: Mapping[str, str]
    choices: Mapping[str, list[str]] | None


def _of_task(task: Mapping[str, Any], controls: Collection[str]) -> _Item:
    """Read a task of Label Studio's JSON or JSON-MIN. The first annotation that was not cancelled counts.

    Args:
        task: The task.
        controls: Names of the controls in which an annotator has selected several choices. JSON-MIN stores several
            choices as {"choices": […]}, but a single choice as text, which looks like a field of the data.
    """
    choices: dict[str, list[str]] | None = None
    data = task.get("data", task)
    if data is not task:
        annotations = [each for each in task["annotations"] if not each.get("was_cancelled")]
        if annotations:
            results = [each for each in annotations[0]["result"] if each["type"] == "choices"]
            choices = {each["from_name"]: each["value"]["choices"] for each in results}
    elif "annotation_id" in task:
        named = {key: task[key] for key in controls if key in task}
        choices = {key: [value] if isinstance(value, str) else value["choices"] for key, value in named.items()}
    columns = {
        key: _ADDRESS.sub("", str(value))
        for key, value in data.items()
        if isinstance(value, str | int | float) and key not in controls
    }
    return _Item(f"task {task['id']}", {**columns, "id": str(task["id"])}, choices)


def _label_studio(content: bytes) -> list[_Item]:
    tasks = typed_json.decode(content)
    several = {key for task in tasks for key, value in task.items() if isinstance(value, dict) and "choices" in value}
    return [_of_task(task, sorted(several)) for task in tasks]


def _cvat(content: bytes) -> list[_Item]:
    """Read the tags of images. CVAT puts the images into a folder beside its XML file."""
    root = ElementTree.fromstring(content)
    if root.tag != "annotations":
        raise ValueError(f"the element <{root.tag}>")
    return [
        _Item(f"image {name}", {"path": f"images/{name}"}, {"label": tags} if tags else None)
        for image in root.iterfind("image")
        for name, tags in [(image.attrib["name"], [tag.attrib["label"] for tag in image.iterfind("tag")])]
    ]


def _as_table(items: Sequence[_Item], params: WriteParams, location: str) -> bytes:
    """Return annotated items as a CSV file, with a column for each question and each field of data.

    If the annotators answered one question, its column is `label`. If there is one field of data, its column
    is `path` for images, else `text`.

    Raises:
        InputError: If the task has one class per example, and an item has several labels.
    """
    controls = dict.fromkeys(name for item in items for name in item.choices or ())
    fields = dict.fromkeys(name for item in items for name in item.data)
    renamed = {name: "label" for name in controls if len(controls) == 1 and name not in params.columns.values()}
    contents = [name for name in fields if name not in ("id", *params.columns.values())]
    if len(contents) == 1 and not params.columns.keys() & {"path", "text"}:
        first = next((item.data[contents[0]] for item in items if contents[0] in item.data), "")
        renamed[contents[0]] = "path" if has_image_suffix(first) else "text"
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([renamed.get(name, name) for name in (*fields, *controls)])
    for item in items:
        labels = item.choices or {}
        several = next((names for names in labels.values() if len(names) > 1), [])
        if several and params.task != MULTI_LABEL:
            raise InputError(
                f"{item.name} of {location} has several labels: {', '.join(several)}. Expected one. Set "
                "data.task=multi_label to take them all."
            )
        cells = (SEPARATOR.join(labels.get(name, ())) for name in controls)
        table.writerow([*(item.data.get(name, "") for name in fields), *cells])
    return text.getvalue().encode()


def _list(
    read: Callable[[bytes], list[_Item]], what: str, location: str, params: WriteParams, labelled: bool
) -> Listing:
    """List an export; if labels are needed, items that nobody annotated are left out."""
    errors = (ValueError, KeyError, TypeError, AttributeError, ElementTree.ParseError)
    with reading(location, what, "Export it again.", *errors):
        items = read(storage.read_bytes(location))
    used = [item for item in items if item.choices is not None or not labelled]
    if not used:
        raise InputError(f"Found no annotations in {location}: expected {what} of annotated images or texts.")
    listing = list_csv(location, params, labelled, _as_table(used, params, location))
    if left_out := len(items) - len(used):
        note = f"left out {left_out:,} of {len(items):,} that nobody annotated"
        listing = dataclasses.replace(listing, notes=(note, *listing.notes))
    return listing


LABEL_STUDIO, CVAT = (
    Source(
        form,
        functools.partial(_list, read, what),
        takes=("task", "group_column", "slice_columns", "columns"),
        is_table=True,
    )
    for form, read, what in (
        ("labelstudio:FILE", _label_studio, "Label Studio's export as JSON or JSON-MIN"),
        ("cvat:FILE", _cvat, "CVAT's annotations.xml of CVAT for images 1.1"),
    )
)
