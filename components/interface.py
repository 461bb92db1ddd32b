"""What goes into a model and what comes out: one place for all that depends on the kind of data and on the task.

An input says what an example is: its shape and type, what a model is built from, how it is stored. A task says what is
asked about it: the target, the loss and the figure that is judged. Every step asks these two instead of deciding by
kind. What else differs has a table of its own, by kind or by task, where the work is done: reading in `records`,
metrics in `evaluate_model`, answers in `prediction`. Importing this module imports no framework.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

import numpy as np

IMAGE, TEXT, CORPUS = "image", "text", "corpus"
CLASSIFICATION, LANGUAGE_MODEL = "classification", "language_model"
PADDING, UNKNOWN = 0, 1  # Ids that are no characters.


class Input(Protocol):
    """What an example is.

    Attributes:
        kind: Its name in the manifest.
        noun: One of them, in messages.
        feature: The field of a tf.train.Example that holds it.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def noun(self) -> str: ...  # noqa: D102
    @property
    def plural(self) -> str:
        """Several of them, in messages."""

    @property
    def feature(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example, as the model gets it."""

    @property
    def dtype(self) -> str:
        """Of its values."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What `build_model` is given, by name."""

    def __str__(self) -> str:
        """Such inputs, in messages."""


@dataclasses.dataclass(frozen=True)
class ImageInput:
    """Images of one shape: uint8 pixels in [0, 255].

    Attributes:
        image_shape: (height, width, channels).
        encoding: How records hold them: `raw` (pixels, row by row) or `encoded` (the image file's own bytes, decoded
            when read). It makes no difference to a model.
    """

    image_shape: tuple[int, int, int]
    encoding: str = dataclasses.field(compare=False)
    kind: str = dataclasses.field(default=IMAGE, init=False)

    noun, plural = "image", "images"
    feature = "image"
    dtype = "uint8"

    @property
    def shape(self) -> tuple[int, ...]:
        """(height, width, channels)."""
        return self.image_shape

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `Input`."""
        return {"image_shape": self.image_shape}

    def __str__(self) -> str:
        return f"images {self.image_shape}"


@dataclasses.dataclass(frozen=True)
class TextInput:
    """Texts as tokens of a vocabulary, cut or padded to one length: int32 ids; 0 is padding, 1 an unknown token.

    Attributes:
        num_tokens: Tokens of an example.
        vocabulary_size: Ids are below it. The vocabulary itself lies beside the manifest, and may be smaller.
        vocabulary_sha256: Of the vocabulary's file: ids mean the same where it is equal.
        tokenization: The name of the rule that cuts a text into tokens; see `components.text`.
        truncate: Which part of a longer text is left out: its `start` or its `end`.
    """

    num_tokens: int
    vocabulary_size: int
    vocabulary_sha256: str
    tokenization: str
    truncate: str
    kind: str = dataclasses.field(default=TEXT, init=False)

    noun, plural = "text", "texts"
    feature = "tokens"
    dtype = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_tokens,)."""
        return (self.num_tokens,)

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `Input`."""
        return {"vocabulary_size": self.vocabulary_size, "num_tokens": self.num_tokens}

    @property
    def stored_dtype(self) -> str:
        """Of an id in a record, little-endian."""
        return "uint16" if self.vocabulary_size <= 1 << 16 else "int32"

    def __str__(self) -> str:
        return (
            f"texts of {self.num_tokens} tokens, {self.vocabulary_size:,} of them known "
            f"({self.vocabulary_sha256[:8]}…), cut at the {self.truncate}"
        )


@dataclasses.dataclass(frozen=True)
class CorpusInput:
    """Passages of one long text as ids of its characters, int32; 0 is what stands before its start, 1 is unknown.

    A record holds one id more than a model gets: the last is only predicted.

    Attributes:
        num_tokens: Characters of a passage.
        vocabulary_size: Ids are below it; the class names of the data set say what each stands for.
    """

    num_tokens: int
    vocabulary_size: int
    kind: str = dataclasses.field(default=CORPUS, init=False)

    noun, plural = "passage", "passages"
    feature = "tokens"
    dtype = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_tokens,)."""
        return (self.num_tokens,)

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `Input`."""
        return {"vocabulary_size": self.vocabulary_size, "num_tokens": self.num_tokens}

    @property
    def stored_dtype(self) -> str:
        """Of an id in a record, little-endian."""
        return "uint8" if self.vocabulary_size <= 1 << 8 else "uint16" if self.vocabulary_size <= 1 << 16 else "int32"

    def __str__(self) -> str:
        return f"passages of {self.num_tokens} characters, {self.vocabulary_size:,} of them known"


AnyInput = ImageInput | TextInput | CorpusInput
_INPUTS: Mapping[str, Callable[..., AnyInput]] = {IMAGE: ImageInput, TEXT: TextInput, CORPUS: CorpusInput}
# Every fact that a model may be built from, and the kind of input that has it; the task has the others.
FACTS: Mapping[str, str] = {"image_shape": IMAGE, "vocabulary_size": TEXT, "num_tokens": TEXT, "num_classes": ""}


def read_input(raw: Mapping[str, Any]) -> AnyInput:
    """An input from what `dataclasses.asdict` made of it.

    Raises:
        KeyError: If its kind is unknown or a field is missing.
    """
    kind: Any = _INPUTS[raw["kind"]]
    values = {field.name: raw[field.name] for field in dataclasses.fields(kind) if field.init}
    # JSON knows no tuples.
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


class Task(Protocol):
    """What a model is asked about an example.

    Attributes:
        name: In the manifest.
        stored_dtype: Of a target in a tf.train.Example.
        target_dtype: Of a target as the loss takes it.
        loss: Of training: Keras's name, or one of `models.compiling`.
        metric: Shown and judged beside the loss: Keras's name, or one of `models.compiling`, and ours.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def stored_dtype(self) -> str: ...  # noqa: D102
    @property
    def target_dtype(self) -> str: ...  # noqa: D102
    @property
    def loss(self) -> str: ...  # noqa: D102
    @property
    def metric(self) -> str: ...  # noqa: D102
    def target_shape(self, interface: "Interface") -> tuple[int, ...]:
        """Of one example's target."""

    def output_shape(self, interface: "Interface") -> tuple[int, ...]:
        """Of a model's answer to one example, float32."""

    def losses(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """float64[targets]: the loss of every one that counts; of most tasks an example has one."""

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """float64[targets]: the metric of every one that counts; their mean is the data set's."""


class Classification:
    """One class of several: int32[batch] labels, float32[batch, num_classes] probabilities."""

    name = CLASSIFICATION
    stored_dtype = "int64"
    target_dtype = "int32"
    loss = "sparse_categorical_crossentropy"
    metric = "accuracy"

    def target_shape(self, interface: "Interface") -> tuple[int, ...]:
        """A scalar."""
        return ()

    def output_shape(self, interface: "Interface") -> tuple[int, ...]:
        """(num_classes,)."""
        return (interface.num_classes,)

    def losses(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Cross-entropy in nats; probabilities are clipped at 1e-7, as Keras does."""
        chosen = outputs[np.arange(len(targets)), targets].astype(np.float64)
        return -np.log(np.maximum(chosen, 1e-7))

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """1 where the likeliest class is the true one."""
        return (outputs.argmax(1) == targets).astype(np.float64)


class LanguageModel:
    """The character after every one: int32[batch, num_tokens] ids, float32[batch, num_tokens, classes] probabilities.

    A target of 0 does not count. In a record stands how many do, the last ones; the ids themselves are the input's.
    """

    name = LANGUAGE_MODEL
    stored_dtype = "int64"
    target_dtype = "int32"
    loss = "next_character"
    metric = "bits_per_character"

    def target_shape(self, interface: "Interface") -> tuple[int, ...]:
        """(num_tokens,)."""
        return interface.input.shape

    def output_shape(self, interface: "Interface") -> tuple[int, ...]:
        """(num_tokens, num_classes)."""
        return (*interface.input.shape, interface.num_classes)

    def losses(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Cross-entropy in nats, passage by passage; probabilities are clipped at 1e-7, as Keras does."""
        chosen = np.take_along_axis(outputs, targets[..., None].astype(np.int64), -1)[..., 0]
        return -np.log(np.maximum(chosen[targets != PADDING].astype(np.float64), 1e-7))

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Bits: the same to the base of two."""
        return self.losses(targets, outputs) / np.log(2)


_TASKS: tuple[Task, ...] = (Classification(), LanguageModel())
TASKS: Mapping[str, Task] = {task.name: task for task in _TASKS}


@dataclasses.dataclass(frozen=True)
class Interface:
    """What a model must take and give, as far as its code has to know.

    Attributes:
        input: What an example is.
        num_classes: Of the data set.
        task_name: What is asked; a key of `TASKS`.
    """

    input: AnyInput
    num_classes: int
    task_name: str = CLASSIFICATION

    @property
    def task(self) -> Task:
        """What is asked."""
        return TASKS[self.task_name]

    @property
    def facts(self) -> Mapping[str, Any]:
        """What `build_model` is given, by name."""
        return {**self.input.facts, "num_classes": self.num_classes}

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of a model's answer to one example."""
        return self.task.output_shape(self)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Of one example's target."""
        return self.task.target_shape(self)

    def batch_shapes(self, batch_size: int) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of a training batch's inputs, targets and weights."""
        return [
            ((batch_size, *self.input.shape), self.input.dtype),
            ((batch_size, *self.target_shape), self.task.target_dtype),
            ((batch_size,), "float32"),
        ]

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """From what `dataclasses.asdict` made of it."""
        return cls(**{**raw, "input": read_input(raw["input"])})
