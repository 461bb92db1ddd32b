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
    assert listing.notes[0] == "left out 1 of 4 items, because nobody annotated them"


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
    assert listing.notes[0] == "left out 1 of 3 items, because nobody annotated them"
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
        ("labelstudio", "{", r"Cannot read .*expected a Label Studio export \(JSON.*Export it again"),
        ("labelstudio", '{"images": [], "annotations": []}', r"Cannot read .*expected a Label Studio"),
        ("labelstudio", "[]", r"Found no annotations in"),
        ("labelstudio", '[{"id": 1, "data": {"text": "a"}, "annotations": []}]', r"Found no annotations in"),
        ("cvat", "<annotations>", r"Cannot read .*expected a CVAT annotations\.xml"),
        ("cvat", "<html></html>", "received the element <html>"),
        ("cvat", "<annotations><image id='1'/></annotations>", "Cannot read .*received KeyError: 'name'"),
    ],
)
def test_another_file_is_refused_in_one_paragraph(tmp_path, source, content, message):
    (tmp_path / "file").write_text(content)
    with pytest.raises(InputError, match=message):
        list_examples(WriteParams(f"{source}:{tmp_path / 'file'}"))


def test_choices_are_labels_whatever_their_characters(tmp_path):
    names = ["cat|dog", "a,b", 'say "hi"', "two\nlines", "carriage\rreturn", "=1+1", "\\"]
    tasks = [_task(i, {"text": f"text {i}"}, name) for i, name in enumerate(names)]
    assert list(_listed(tmp_path / "export.json", tasks).class_names) == sorted(names)
    hot = _listed(tmp_path / "export.json", [*tasks, _task(9, {"text": "both"}, *names[:2])], task="multi_label")
    assert list(hot.class_names) == sorted(names)
    assert hot.labels.sum(1).tolist() == [1] * len(names) + [2]


def test_texts_are_the_texts_of_the_tasks(tmp_path):
    texts = [
        "/data/upload/1/a.png",
        "/data/ is a folder",
        "one\rcarriage return",
        'an odd " mark',
        "two\r\nlines",
        "\0",
    ]
    tasks = [_task(i, {"text": text}, "ab"[i % 2]) for i, text in enumerate(texts)]
    listing = _listed(tmp_path / "export.json", tasks, columns={"text": "text"})
    assert [bytes(text).decode() for text in listing.texts] == texts
    assert list(listing.keys[:2]) == ["task/00000000", "task/00000001"]


def test_only_the_field_of_the_path_loses_label_studios_address(tmp_path):
    _pictures(tmp_path, "a.png", "b.png")
    tasks = [_task(i, {"image": f"/data/{name}.png", "site": "/data/x"}, name) for i, name in enumerate("ab")]
    listing = _listed(tmp_path / "export.json", tasks, group_column="site")
    assert (list(listing.keys), set(listing.groups)) == (["a.png", "b.png"], {"/data/x"})


def test_a_long_text_is_read(tmp_path):
    tasks = [_task(1, {"text": "word " * 300_000}, "a"), _task(2, {"text": "short"}, "b")]
    assert _listed(tmp_path / "export.json", tasks).class_names == ("a", "b")


def test_odd_values_of_a_task_are_no_labels_and_no_errors(tmp_path):
    tasks = [_task(i, {"text": f"text {i}", "nested": {"a": [1]}, "none": None}, "ab"[i % 2]) for i in range(6)]
    tasks[0]["annotations"][0]["result"] += [
        {"type": "choices"},
        {"from_name": "kind", "type": "choices", "value": None},
        {"from_name": "kind", "type": "choices", "value": {"choices": None}},
        {"from_name": "box", "type": "rectanglelabels", "value": {"rectanglelabels": ["x"]}},
        None,
    ]
    tasks[1]["annotations"].insert(0, None)
    tasks += [
        {"id": 6, "data": {"text": "text 6"}},
        {"id": 7, "data": {"text": "text 7"}, "annotations": None},
        {"id": 8, "data": {"text": "text 8"}, "annotations": [{"id": 1, "result": None}]},
    ]
    columns = {"text": "text"}
    listing = _listed(tmp_path / "export.json", tasks, columns=columns)
    assert (len(listing.keys), listing.class_names) == (6, ("a", "b"))
    assert [(item.key, item.reason) for item in listing.bad] == [("task/00000008", "'label' is empty")]
    assert listing.notes[0] == "left out 2 of 9 items, because nobody annotated them"


@pytest.mark.parametrize(
    ("place", "of_region"),
    [({"x": 1, "y": 2, "width": 3, "height": 4}, "r"), ({"start": 0, "end": 3}, "other"), ({}, "r")],
)
def test_a_choice_for_a_region_is_no_label_of_the_task(tmp_path, place, of_region):
    tasks = [_task(i, {"text": f"text {i}"}, "ab"[i % 2]) for i in range(4)]
    region = {"from_name": "box", "type": "labels", "id": "r", "value": {**place, "labels": ["x"]}}
    choice = {"from_name": "kind", "type": "choices", "id": of_region, "value": {**place, "choices": ["c"]}}
    for task in tasks:
        task["annotations"][0]["result"] += [region, choice]
    assert _listed(tmp_path / "export.json", tasks).class_names == ("a", "b")
    for task in tasks:
        task["annotations"][0]["result"] = [region, choice]
    with pytest.raises(InputError, match="only annotations of the types 'choices of regions', 'labels'"):
        _listed(tmp_path / "export.json", tasks)


@pytest.mark.parametrize(
    ("kind", "values", "classes"),
    [
        ("choices", [[True], [False]], ("False", "True")),
        ("choices", [[1], [2]], ("1", "2")),
        ("rating", [4, 2], ("2", "4")),
        ("taxonomy", [[["animal", "cat"]], [["animal", "dog"]]], ("animal/cat", "animal/dog")),
    ],
)
def test_answers_of_other_types_are_labels(tmp_path, kind, values, classes):
    tasks = [_task(i, {"text": f"text {i}"}) for i in range(2)]
    for task, value in zip(tasks, values, strict=True):
        task["annotations"][0]["result"][0] |= {"type": kind, "value": {kind: value}}
    assert _listed(tmp_path / "export.json", tasks).class_names == classes


def test_ratings_are_numbers_of_a_regression(tmp_path):
    tasks = [_task(i, {"text": f"text {i}"}) for i in range(2)]
    for task, value in zip(tasks, (4, 2.5), strict=True):
        task["annotations"][0]["result"][0] |= {"type": "number", "value": {"number": value}}
    assert _listed(tmp_path / "export.json", tasks, task="regression").labels.tolist() == [[4.0], [2.5]]


def test_answers_of_one_control_in_several_results_are_joined(tmp_path):
    tasks = [_task(1, {"text": "a"}, "x"), _task(2, {"text": "b"}, "y")]
    tasks[0]["annotations"][0]["result"] += tasks[1]["annotations"][0]["result"]
    assert _listed(tmp_path / "export.json", tasks, task="multi_label").labels.tolist() == [[1, 1], [0, 1]]


def test_several_answers_to_another_question_are_no_error(tmp_path):
    tasks = [_task(1, {"text": "good"}, "pos"), _task(2, {"text": "bad"}, "neg")]
    tasks[0]["annotations"][0]["result"] += _task(0, {}, "long", "odd", control="length")["annotations"][0]["result"]
    assert _listed(tmp_path / "export.json", tasks, columns={"label": "kind"}).class_names == ("neg", "pos")


def test_one_task_per_line_is_read(tmp_path):
    tasks = [_task(1, {"text": "good"}, "pos"), _task(2, {"text": "bad"}, "neg")]
    (tmp_path / "export.json").write_text("\n".join(map(json.dumps, tasks)) + "\n")
    assert list_examples(WriteParams(f"labelstudio:{tmp_path / 'export.json'}")).class_names == ("neg", "pos")


def test_tasks_with_one_id_are_told_apart(tmp_path):
    tasks = [_task(1, {"text": "good"}, "pos"), _task(1, {"text": "bad"}, "neg")]
    assert len(set(_listed(tmp_path / "export.json", tasks).keys)) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", r"received task number 1 without data fields: 1\. Export it again"),
        ('[{"id": 17, "data": [1]}]', r"received task 17 without data fields"),
        ('[{"id": 17, "data": null}]', r"received task 17 without data fields"),
        ('{"images": [], "categories": []}', r"an object with 'images', 'categories', not a list of tasks"),
        ('"text"', "not a list of tasks"),
        ("null", "not a list of tasks"),
    ],
)
def test_what_is_not_an_export_is_said(tmp_path, content, message):
    (tmp_path / "export.json").write_text(content)
    with pytest.raises(InputError, match=message):
        list_examples(WriteParams(f"labelstudio:{tmp_path / 'export.json'}"))


def test_messages_name_the_task_or_the_image(tmp_path):
    tasks = [_task(17, {"image": "../a.png"}, "x"), _task(18, {"image": "b.png"}, "y")]
    with pytest.raises(InputError, match=r"Task 17 of .*export\.json: Cannot use the path '\.\./a\.png'"):
        _listed(tmp_path / "export.json", tasks)
    tasks = [_task(17, {"text": "a", "size": "big"}), _task(18, {"text": "b", "size": "3"})]
    with pytest.raises(InputError, match=r"Cannot use task 17 of .*expected a number in 'size', received 'big'"):
        _listed(tmp_path / "e.json", tasks, task="regression", target_columns=("size",), columns={"text": "text"})
    with pytest.raises(InputError, match=r"No task of .* can be used\. .* in task/00000017, 'label' is empty"):
        _listed(tmp_path / "e.json", tasks, columns={"text": "text"})
    (tmp_path / "annotations.xml").write_text(_XML.format("").replace("a.png", "../../a.png"))
    with pytest.raises(InputError, match=r"Image \.\./\.\./a\.png of .*annotations\.xml: Cannot use the path"):
        list_examples(WriteParams(f"cvat:{tmp_path / 'annotations.xml'}"))


def test_tasks_on_which_annotators_disagree_are_noted(tmp_path):
    tasks = [_task(number, {"text": f"text {number}"}, "ab"[number % 2]) for number in range(4)]
    tasks[1]["annotations"] += _task(1, {}, "a")["annotations"]
    tasks[2]["annotations"] += _task(2, {}, "a")["annotations"]
    listing = _listed(tmp_path / "export.json", tasks)
    assert listing.labels.tolist() == [0, 1, 0, 1]
    assert listing.notes == ("annotators disagree on 1 tasks, such as task 1: the first annotation counts",)


def _cvat_file(folder, head='<?xml version="1.0" encoding="utf-8"?>', repeats=1):
    _pictures(folder, *(f"images/{number}.png" for number in range(4)))
    images = (f'<image name="{number}.png">{_tag(number) * repeats}</image>' for number in range(4))
    (folder / "annotations.xml").write_text(f"{head}<annotations>{''.join(images)}</annotations>")
    return WriteParams(f"cvat:{folder / 'annotations.xml'}")


def _tag(number):
    return f'<tag label="{"ab"[number % 2]}" source="manual"/>'


def test_a_tag_of_cvat_that_is_set_twice_is_one_label(tmp_path):
    assert list_examples(_cvat_file(tmp_path, repeats=2)).labels.tolist() == [0, 1, 0, 1]


def test_an_unknown_encoding_of_cvats_file_is_an_error_of_the_file(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read .*unknown encoding: other.*Export it again"):
        list_examples(_cvat_file(tmp_path, '<?xml version="1.0" encoding="other"?>'))
