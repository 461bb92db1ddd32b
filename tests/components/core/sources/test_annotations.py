"""Exports of Label Studio and CVAT, as their documents describe them."""

import json

import numpy as np
import pytest
from PIL import Image

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.kinds import list_examples, list_unlabelled
from tpu_components.core.sources.params import WriteParams


def _pictures(folder, *names):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * number, np.uint8)).save(folder / name)


def _task(number, data, *choices, control="kind", **more):
    result = [{"from_name": control, "to_name": "it", "type": "choices", "value": {"choices": list(choices)}}]
    return {
        "id": number,
        "data": data,
        "annotations": [{"id": number, "was_cancelled": False, "result": result}],
        **more,
    }


def _listed(path, tasks, source="labelstudio", **params):
    path.write_text(json.dumps(tasks))
    return list_examples(WriteParams(f"{source}:{path}", **params))


def _by_key(listing):
    return {key: listing.class_names[label] for key, label in zip(listing.keys, listing.labels, strict=True)}


def test_label_studios_images_are_found_where_it_keeps_them(tmp_path):
    _pictures(tmp_path, "upload/1/a.png", "upload/1/b.png", "cats/c.png")
    cancelled = {"was_cancelled": True, "result": []}
    tasks = [
        _task(1, {"photo": "/data/upload/1/a.png", "patient": 7}, "cat"),
        _task(2, {"photo": "/data/upload/1/b.png", "patient": 7}, "dog"),
        _task(3, {"photo": "/data/local-files/?d=cats/c.png", "patient": 8}, "cat"),
        {"id": 4, "data": {"photo": "/data/upload/1/d.png", "patient": 9}, "annotations": [cancelled]},
    ]
    tasks[2]["annotations"].insert(0, cancelled)
    columns = {"path": "photo"}
    listing = _listed(tmp_path / "export.json", tasks, group_column="patient", columns=columns)
    assert _by_key(listing) == {"upload/1/a.png": "cat", "upload/1/b.png": "dog", "cats/c.png": "cat"}
    assert dict(zip(listing.keys, listing.groups, strict=True))["cats/c.png"] == "8"
    assert listing.notes[0] == "left out 1 of 4 that nobody annotated"


def test_the_only_field_and_the_only_question_need_no_names(tmp_path):
    tasks = [_task(1, {"review": "good, really"}, "pos"), _task(2, {"review": "bad"}, "neg")]
    listing = _listed(tmp_path / "export.json", tasks)
    assert [bytes(text) for text in listing.texts] == [b"good, really", b"bad"]
    assert listing.class_names == ("neg", "pos")


def test_several_choices_are_labels(tmp_path):
    _pictures(tmp_path, "a.png", "b.png")
    tasks = [_task(1, {"image": "a.png"}, "cat", "dog"), _task(2, {"image": "b.png"}, "dog")]
    listing = _listed(tmp_path / "export.json", tasks, task="multi_label")
    assert listing.labels.tolist() == [[1, 1], [0, 1]]
    with pytest.raises(InputError, match=r"task 1 of .*export\.json has several labels: cat, dog\. .*multi_label"):
        _listed(tmp_path / "export.json", tasks)


def test_one_of_several_questions_is_named(tmp_path):
    tasks = [_task(1, {"text": "good"}, "pos"), _task(2, {"text": "bad"}, "neg")]
    for task in tasks:
        task["annotations"][0]["result"] += _task(0, {}, "long", control="length")["annotations"][0]["result"]
    with pytest.raises(InputError, match=r"Missing columns.*label.*'kind', 'length'.*data\.columns=\{label: …\}"):
        _listed(tmp_path / "export.json", tasks)
    assert _listed(tmp_path / "export.json", tasks, columns={"label": "kind"}).class_names == ("neg", "pos")


def test_json_min_is_read_with_one_choice_and_with_several(tmp_path):
    more = {"annotator": 1, "annotation_id": 5, "created_at": "2026-01-01"}
    tasks = [{"id": 1, "text": "good", "mood": "pos", **more}, {"id": 2, "text": "bad", "mood": "neg", **more}]
    assert _listed(tmp_path / "export.json", tasks, columns={"label": "mood"}).class_names == ("neg", "pos")
    tasks[0]["mood"] = {"choices": ["pos", "neg"]}
    assert _listed(tmp_path / "export.json", tasks, task="multi_label").labels.tolist() == [[1, 1], [1, 0]]


_XML = """<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version><meta><task><size>3</size></task></meta>
<image id="0" name="a.png" width="8" height="8"><tag label="cat" source="manual"></tag></image>
<image id="1" name="more/b.png" width="8" height="8"><box label="nose" xtl="1" ytl="1" xbr="2" ybr="2"/>
<tag label="dog" source="manual"><attribute name="age">2</attribute></tag>{}</image>
<image id="2" name="c.png" width="8" height="8"></image>
</annotations>"""


def test_cvats_tags_are_the_labels_of_its_images(tmp_path):
    _pictures(tmp_path, "images/a.png", "images/more/b.png", "images/c.png")
    path = tmp_path / "annotations.xml"
    path.write_text(_XML.format(""))
    listing = list_examples(WriteParams(f"cvat:{path}"))
    assert _by_key(listing) == {"images/a.png": "cat", "images/more/b.png": "dog"}
    assert listing.notes[0] == "left out 1 of 3 that nobody annotated"
    assert list(list_unlabelled(WriteParams(f"cvat:{path}")).keys) == [
        *("images/a.png", "images/c.png", "images/more/b.png")
    ]
    path.write_text(_XML.format('<tag label="cat" source="manual"></tag>'))
    with pytest.raises(InputError, match=r"image more/b\.png .* has several labels: dog, cat"):
        list_examples(WriteParams(f"cvat:{path}"))
    assert list_examples(WriteParams(f"cvat:{path}", task="multi_label")).labels.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("source", "content", "message"),
    [
        ("labelstudio", "{", r"Cannot read .*expected Label Studio's export as JSON.*Export it again"),
        ("labelstudio", '{"images": [], "annotations": []}', r"Cannot read .*expected Label Studio"),
        ("labelstudio", "[]", r"Found no annotations in"),
        ("labelstudio", '[{"id": 1, "data": {"text": "a"}, "annotations": []}]', r"Found no annotations in"),
        ("cvat", "<annotations>", r"Cannot read .*expected CVAT's annotations\.xml"),
        ("cvat", "<html></html>", "received the element <html>"),
        ("cvat", "<annotations><image id='1'/></annotations>", "Cannot read .*received KeyError: 'name'"),
    ],
)
def test_another_file_is_refused_in_one_paragraph(tmp_path, source, content, message):
    (tmp_path / "file").write_text(content)
    with pytest.raises(InputError, match=message):
        list_examples(WriteParams(f"{source}:{tmp_path / 'file'}"))
