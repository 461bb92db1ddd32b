"""Inputs and tasks of models: everything that depends on the kind of data or on the task.

An input describes an example: shape, dtype, arguments of `build_model`, and storage format. A task describes what is
predicted: the target, the loss, and the metric that the gate compares (the judged figure). The steps use these two
classes, so that they need no branches for each kind of data. Where the code must differ in other ways, a module has a
table with one entry per kind or task: `records` for parsing, `core.metrics` for metrics, `serving` for responses.
Importing this module does not import a framework.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tpu_components.core.base.frameworks import keras

IMAGE, TEXT, CORPUS = "image", "text", "corpus"
CLASSIFICATION, MULTI_LABEL, REGRESSION = "classification", "multi_label", "regression"
LANGUAGE_MODEL = "language_model"
PADDING, UNKNOWN = 0, 1  # IDs that are not characters or words.
MOST_PIXELS = 1 << 27  # Limit for an image file: a header of a few bytes can claim 65,535 × 65,535.
THRESHOLD = 0.5  # A label of a multi-label model is predicted if its probability is higher.


class UnreadableError(Exception):
    """An example is unusable and is quarantined.

    The message is the reason, without the name of the example.
    """


@dataclasses.dataclass(frozen=True)
class ImageRule:
    """Rule for reading images: the formats and sizes to accept, and the size and channels to convert to.

    Attributes:
        image_size: (height, width) to resize to, or None to keep the size.
        channels: Number of channels to convert to, 1 or 3; 0 keeps the channels.
        max_pixels: Largest number of pixels that an image may have. The file's header is checked before the image is
            decoded. Decoding an image with the default number of pixels takes 400 MB.
        upright: Whether to rotate a photo according to its EXIF orientation, before everything else.
        formats: Formats to accept, by Pillow's names. If empty, all formats that can be read are accepted.
        reduced: Whether libjpeg decodes a JPEG file at the smallest scale that leaves no side shorter than
            `image_size`; see `images.reduction`.
        margin: Additional rows and columns: images are resized to `image_size` plus the margin, and then cropped to the
            center.
    """

    image_size: tuple[int, int] | None
    channels: int
    max_pixels: int = MOST_PIXELS
    upright: bool = False
    formats: tuple[str, ...] = ()
    reduced: bool = False
    margin: tuple[int, int] = (0, 0)


@dataclasses.dataclass(frozen=True)
class ImageInput:
    """Images of one shape: uint8 pixels in [0, 255].

    Attributes:
        image_shape: (height, width, channels).
        encoding: Format in the records: `raw` (pixels, row by row), `resized` (JPEG files of this shape) or `encoded`
            (original image files, decoded and resized when read). A model can be used with every encoding.
        upright: Whether photos are rotated according to EXIF, in the records and for predictions.
        reduced: Whether larger JPEG files are decoded at a reduced scale, in the records and for predictions; see
            `images.reduction`.
        margin: Numbers of additional rows and columns in the stored images, both even. Training takes random crops from
            the larger images. Evaluation and predictions also resize images to the larger size, and use the center
            crop.
    """

    image_shape: tuple[int, int, int]
    encoding: str = dataclasses.field(compare=False)
    upright: bool = dataclasses.field(default=False, compare=False)
    # Not part of the repr, so that data sets without a margin keep the fingerprint of earlier versions.
    reduced: bool = dataclasses.field(default=False, compare=False, repr=False)
    margin: tuple[int, int] = dataclasses.field(default=(0, 0), repr=False)
    kind: str = dataclasses.field(default=IMAGE, init=False)

    noun, plural, feature, dtype = "image", "images", "image", "uint8"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one example for the model: (height, width, channels)."""
        return self.image_shape

    @property
    def fed_shape(self) -> tuple[int, int, int]:
        """Shape of one example for a training step: (height, width, channels), with the margin for random crops."""
        (height, width, channels), (rows, columns) = self.image_shape, self.margin
        return height + rows, width + columns, channels

    @property
    def facts(self) -> Mapping[str, Any]:
        """Arguments of `build_model` that depend on the input, by name."""
        return {"image_shape": self.image_shape}

    @property
    def rule(self) -> ImageRule:
        """Rule that converts an image file to a model's input."""
        height, width, channels = self.image_shape
        return ImageRule((height, width), channels, upright=self.upright, reduced=self.reduced, margin=self.margin)

    @property
    def stored_rule(self) -> ImageRule:
        """Rule that converts a record's image file to pixels of `fed_shape`. Photos in records are already rotated."""
        height, width, channels = self.fed_shape
        return ImageRule((height, width), channels, reduced=self.reduced)

    def __str__(self) -> str:
        return f"images {self.image_shape}"


def as_fields(inputs: Any) -> dict[str, Any]:
    """Return the fields of an input as a file stores them. A margin of 0 is left out, as in earlier versions' files."""
    fields = dataclasses.asdict(inputs)
    return fields if any(fields.get("margin", ())) else {k: v for k, v in fields.items() if k != "margin"}


class _Tokens:
    """Base class for inputs that consist of token IDs: int32[num_tokens], with IDs below `vocabulary_size`."""

    num_tokens: int
    vocabulary_size: int

    feature, dtype = "tokens", "int32"
    _stored_dtypes: tuple[str, ...] = ("uint16", "int32")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example for the model."""
        return (self.num_tokens,)

    @property
    def fed_shape(self) -> tuple[int, ...]:
        """Shape of one example for a training step."""
        return self.shape

    @property
    def facts(self) -> Mapping[str, Any]:
        """Arguments of `build_model` that depend on the input, by name."""
        return {"vocabulary_size": self.vocabulary_size, "num_tokens": self.num_tokens}

    @property
    def stored_tokens(self) -> int:
        """Number of IDs in a record."""
        return self.num_tokens

    @property
    def stored_dtype(self) -> str:
        """Dtype of an ID in a record, little-endian: the smallest one that can hold every ID."""
        return next(dtype for dtype in self._stored_dtypes if self.vocabulary_size <= int(np.iinfo(dtype).max) + 1)


@dataclasses.dataclass(frozen=True)
class TextInput(_Tokens):
    """Texts as token IDs, int32, truncated or padded to one length.

    ID 0 is padding, and ID 1 is an unknown token.

    Attributes:
        num_tokens: Number of tokens in an example.
        vocabulary_size: Exclusive upper bound of the IDs. The vocabulary, a file beside the manifest, may be smaller.
        vocabulary_sha256: SHA-256 of the vocabulary file. The IDs of two data sets have the same meaning if their
            vocabulary files have the same SHA-256.
        tokenization: Name of the tokenization rule; see `tpu_components.core.examples.text`.
        truncate: Part of a text that is left out if the text is too long: its `start` or its `end`.
    """

    num_tokens: int
    vocabulary_size: int
    vocabulary_sha256: str
    tokenization: str
    truncate: str
    kind: str = dataclasses.field(default=TEXT, init=False)

    noun, plural = "text", "texts"

    def __str__(self) -> str:
        return (
            f"texts of {self.num_tokens} tokens, with {self.vocabulary_size:,} token IDs "
            f"({self.vocabulary_sha256[:8]}…), tokenized by {self.tokenization} and cut at the {self.truncate}"
        )


@dataclasses.dataclass(frozen=True)
class CorpusInput(_Tokens):
    """Passages of one long text as character IDs, int32.

    ID 0 is padding before the start of the text, and ID 1 is an unknown character.

    A record has one ID more than a model's input, because the last character is predicted but is not an input.

    Attributes:
        num_tokens: Number of characters in a model's input.
        vocabulary_size: Exclusive upper bound of the IDs. The class names of the data set are the characters.
    """

    num_tokens: int
    vocabulary_size: int
    kind: str = dataclasses.field(default=CORPUS, init=False)

    noun, plural = "passage", "passages"
    _stored_dtypes = ("uint8", "uint16", "int32")

    @property
    def stored_tokens(self) -> int:
        """Number of IDs in a record: one more than in a model's input."""
        return self.num_tokens + 1

    def __str__(self) -> str:
        return f"passages of {self.num_tokens} characters, with {self.vocabulary_size:,} character IDs"


# All have these attributes: `kind` (its name in the manifest), `noun` and `plural` (in messages), `feature`
# (the field of a tf.train.Example that contains it), `dtype` (of its values), `shape`, `fed_shape` and `facts`.
AnyInput = ImageInput | TextInput | CorpusInput
# Arguments of `build_model` that come from the data; the others are the model's parameters.
FACTS = frozenset(("image_shape", "vocabulary_size", "num_tokens", "num_classes", "num_targets"))


class Task:
    """Task of a model: the kind of target that is predicted, with its loss and metrics.

    Attributes:
        name: Name in the manifest.
        stored_dtype: Dtype of a target in a tf.train.Example.
        target_dtype: Dtype of a target for the loss.
        loss: Training loss: a Keras name, or a function of targets and outputs.
        metric: Metric that training reports besides the loss: a Keras name, or `bits_per_character`.
        judged: Metric that the gate compares by default.
        answer: Name of the model's output in predictions.
        size_fact: Name of the `build_model` argument that receives the size of the output.
        activation: Keras name of the last layer's activation.
    """

    name: str
    stored_dtype = "int64"
    target_dtype = "float32"
    loss: Any
    metric: str
    judged: str
    answer = "probabilities"
    size_fact = "num_classes"
    activation: str

    def target_shape(self, interface: "Interface") -> tuple[int, ...]:
        """Return the shape of an example's target."""
        return (interface.num_classes,)

    def output_shape(self, interface: "Interface") -> tuple[int, ...]:
        """Return the shape of a model's prediction for one example. Predictions are float32."""
        return (interface.num_classes,)

    def losses(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return the loss of every target except padding, float64[targets]. Most tasks have one target per example."""
        raise NotImplementedError

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return the metric of every target except padding, float64[targets].

        The mean is the metric of the data set.
        """
        raise NotImplementedError


class Classification(Task):
    """Task of predicting one of several classes.

    Labels are int32[batch]. Predictions are probabilities, float32[batch, num_classes].
    """

    name = CLASSIFICATION
    target_dtype = "int32"
    loss = "sparse_categorical_crossentropy"
    metric = judged = "accuracy"
    activation = "softmax"

    def target_shape(self, interface: "Interface") -> tuple[int, ...]:
        """Return (), the shape of a scalar."""
        return ()

    def losses(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return the cross-entropy in nats. Probabilities are clipped at 1e-7, as in Keras."""
        chosen = outputs[np.arange(len(targets)), targets].astype(np.float64)
        return -np.log(np.maximum(chosen, 1e-7))

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return 1 if the most probable class is the true class, otherwise 0. The mean is the accuracy."""
        return (outputs.argmax(1) == targets).astype(np.float64)


class MultiLabel(Task):
    """Task of predicting any number of labels for each example.

    Labels are float32[batch, num_classes] of 0 and 1. Predictions are probabilities of the same shape.
    """

    name = MULTI_LABEL
    loss = "binary_crossentropy"
    metric = "binary_accuracy"
    judged = "micro_f1"
    activation = "sigmoid"

    def losses(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return the binary cross-entropy in nats, averaged over labels.

        Probabilities are clipped at 1e-7, as in Keras.
        """
        chosen = np.where(targets > 0, outputs.astype(np.float64), 1 - outputs.astype(np.float64))
        return -np.log(chosen.clip(1e-7, 1 - 1e-7)).mean(axis=1)

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return the share of labels that are predicted correctly, for each example."""
        return ((outputs > THRESHOLD) == (targets > 0)).mean(axis=1)


@dataclasses.dataclass(frozen=True)
class Regression(Task):
    """Task of predicting numbers. Targets and predictions are float32[batch, num_targets], in the targets' units.

    The loss is the mean squared error, where errors are measured in standard deviations of the target in the training
    split. So every target has the same weight, independent of its unit. The layers of a model predict standardised
    numbers. The last layer, which `models.build_model` adds, converts these numbers to the targets' units.

    Attributes:
        mean: Mean of every target in the training split.
        std: Standard deviation of every target in the training split, above 0.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    name = REGRESSION
    stored_dtype = "float32"
    metric = "mean_absolute_error"
    judged = "r2"
    answer = "values"
    size_fact = "num_targets"
    activation = "linear"

    @property
    def loss(self) -> Callable[[Any, Any], Any]:
        """Function of targets and outputs: mean squared error of each example, measured in standard deviations."""

        def standardised_squared_error(targets: Any, outputs: Any) -> Any:
            deviations = (targets - outputs) / keras.ops.array(self.std, "float32")
            return keras.ops.mean(keras.ops.square(deviations), axis=-1)

        return standardised_squared_error

    def losses(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return each example's squared error in standard deviations, averaged over its targets, float64[batch]."""
        return np.square((targets.astype(np.float64) - outputs) / self.std).mean(axis=1)

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return the absolute error of each example in the targets' units, averaged over its targets."""
        return np.abs(targets.astype(np.float64) - outputs).mean(axis=1)


def next_character_loss(targets: Any, outputs: Any) -> Any:
    """Return the loss of each passage, float32[batch].

    The loss is the sum of the cross-entropies of all targets that are not padding, divided by the length of a passage
    including its padding. This length is the same for all passages, so every character has the same weight.
    """
    each = keras.ops.sparse_categorical_crossentropy(targets, outputs)
    counts = keras.ops.cast(keras.ops.not_equal(targets, PADDING), each.dtype)
    return keras.ops.sum(each * counts, axis=-1) / targets.shape[-1]


class LanguageModel(Task):
    """Task of predicting the next character at every position of a passage.

    Targets are character IDs, int32[batch, num_tokens]. Predictions are probabilities, float32[batch, num_tokens,
    num_classes]. Targets of 0 (padding) are ignored. The label of a record is the number of targets, counted from the
    end of the passage, that are not ignored. The target IDs themselves are part of the stored input.
    """

    name = LANGUAGE_MODEL
    target_dtype = "int32"
    loss = staticmethod(next_character_loss)
    metric = judged = "bits_per_character"
    activation = "softmax"

    def target_shape(self, interface: "Interface") -> tuple[int, ...]:
        """Return (num_tokens,)."""
        return interface.input.shape

    def output_shape(self, interface: "Interface") -> tuple[int, ...]:
        """Return (num_tokens, num_classes)."""
        return (*interface.input.shape, interface.num_classes)

    def losses(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return the cross-entropy of each target in nats. Probabilities are clipped at 1e-7, as in Keras."""
        chosen = np.take_along_axis(outputs, targets[..., None].astype(np.int64), -1)[..., 0]
        return -np.log(np.maximum(chosen[targets != PADDING].astype(np.float64), 1e-7))

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return −log2 of the probability of each target, float64[targets]. Lower is better."""
        return self.losses(targets, outputs) / np.log(2)


TASKS = {task.name: task for task in (Classification(), MultiLabel(), Regression(), LanguageModel())}


def judged_figure(metrics: Mapping[str, Any]) -> str:
    """Return the name of the metric that the gate compares by default for models with these `metrics`.

    Return an empty string if `metrics` does not contain the judged metric of any task.
    """
    # Accuracy comes last, because a language model has an accuracy too.
    return next((task.judged for task in reversed(TASKS.values()) if metrics.get(task.judged) is not None), "")


@dataclasses.dataclass(frozen=True)
class Interface:
    """The input and output of a model.

    Attributes:
        input: Input of the model.
        num_classes: Number of classes in the data set; for a regression, number of targets.
        task_name: Name of the task, a key of `TASKS`.
        mean: Mean of each target of a regression; otherwise empty.
        std: Standard deviation of each target of a regression; otherwise empty.
    """

    input: AnyInput
    num_classes: int
    task_name: str = CLASSIFICATION
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def task(self) -> Task:
        """Task with its loss and metrics."""
        return Regression(self.mean, self.std) if self.task_name == REGRESSION else TASKS[self.task_name]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Arguments of `build_model` that depend on input and task, by name."""
        return {**self.input.facts, self.task.size_fact: self.num_classes}

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of a model's prediction for one example."""
        return self.task.output_shape(self)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one example's target."""
        return self.task.target_shape(self)

    def batch_shapes(self, batch_size: int, with_margin: bool = True) -> list[tuple[tuple[int, ...], str]]:
        """Return [(shape, dtype)] of a batch's inputs, targets and weights, with or without the margin of images."""
        return [
            ((batch_size, *(self.input.fed_shape if with_margin else self.input.shape)), self.input.dtype),
            ((batch_size, *self.target_shape), self.task.target_dtype),
            ((batch_size,), "float32"),
        ]
