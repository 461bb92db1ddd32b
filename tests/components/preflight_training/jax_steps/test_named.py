"""Steps and inputs by name."""

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.preflight_training.jax_steps.named import find_object, find_step, is_step, parse_inputs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("models:train_step", True),
        ("models.cnn:train_step", True),
        ("code/models.py:train_step", True),
        ("step.mlir", True),
        ("out/step.bc", True),
        ("digits", False),
        ("flowers.yaml", False),
        ("gs://bucket/flowers.yaml", False),
        ("C:\\flowers.yaml", False),
    ],
)
def test_a_step_is_told_from_a_configuration(name, expected):
    assert is_step(name) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float32[8,4], int32[8]", [("float32", (8, 4)), ("int32", (8,))]),
        ("f32[8,4],bf16[2],s8[3],u4[1],pred[2]", None),
        ("float32[]", [("float32", ())]),
        ("float32[ 8 , 4, ]", [("float32", (8, 4))]),
        ("", []),
    ],
)
def test_types_and_shapes_are_read(text, expected):
    read = [(str(each.dtype), each.shape) for each in parse_inputs(text)]
    short = [("float32", (8, 4)), ("bfloat16", (2,)), ("int8", (3,)), ("uint4", (1,)), ("bool", (2,))]
    assert read == (short if expected is None else expected)


@pytest.mark.parametrize(
    "text", ["float32", "float32[8", "float32[8]; int32[8]", "float32[-1]", "[8]", "f32[8]]", "f32[8 4]", "f32[8,,4]"]
)
def test_other_text_is_refused_with_an_example(text):
    with pytest.raises(
        InputError, match=r"expected either types and shapes separated by commas, such as float32\[1024,784\]"
    ):
        parse_inputs(text)


def test_an_unknown_type_is_refused():
    with pytest.raises(InputError, match="Unknown type 'float31' of an input: expected a type of JAX"):
        parse_inputs("float31[8]")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_steps_of_a_test.py").write_text(
        "def train_step(x):\n    return x\n\n\ndef inputs():\n    return (1, 2)\n\n\nGIVEN = (3,)\nNO_TUPLE = 3\n"
    )
    (tmp_path / "broken_steps_of_a_test.py").write_text("raise ValueError('no data')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_function_of_the_current_folder_or_of_a_file_is_found(folder):
    assert find_step("own_steps_of_a_test:train_step")(5) == 5
    assert find_step(str(folder / "own_steps_of_a_test.py") + ":train_step")(5) == 5
    assert find_step("step.mlir") == "step.mlir"


def test_inputs_may_come_from_a_function_or_a_value(folder):
    assert parse_inputs("own_steps_of_a_test:inputs") == (1, 2)
    assert parse_inputs("own_steps_of_a_test:GIVEN") == (3,)
    with pytest.raises(InputError, match=r"expected a tuple with one value for each parameter .*received int"):
        parse_inputs("own_steps_of_a_test:NO_TUPLE")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_steps_of_a_test:train_stap", "has no 'train_stap'. Did you mean 'train_step'"),
        ("no_module_of_a_test:train_step", "Cannot import no_module_of_a_test for .*Run the command in the folder"),
        ("broken_steps_of_a_test:train_step", "Cannot import broken_steps_of_a_test for .*ValueError: no data"),
        ("train_step", "expected MODULE:FUNCTION"),
        ("./own_steps_of_a_test:train_step", r"expected a module, such as models.cnn, or the path of a .py file"),
    ],
)
def test_what_cannot_be_found_is_refused_in_one_sentence(folder, name, message):
    with pytest.raises(InputError, match=message):
        find_object(name)
