"""All that is decided before a byte is written: the plan, how its examples are encoded, and how it is cut."""

import dataclasses
from collections.abc import Sequence

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import TEXT, ImageInput
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords.encoders import Encoder, choose_image_encoder, choose_text_encoder
from tpu_components.create_tfrecords.parts import Part, Task, count_per_task, cut_into_tasks, share_out
from tpu_components.create_tfrecords.planning import DatasetPlan
from tpu_components.create_tfrecords.words import Survey, divide_by_words, survey_texts


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A data set that can be written; the same in every process that prepares it by the same parameters.

    Attributes:
        params: The parameters.
        plan: Its plan; texts of the same words are in one split.
        encoder: Encoder of its examples.
        bytes_each: Estimated size of a record.
        survey: The words of its texts; None for images.
    """

    params: WriteParams
    plan: DatasetPlan
    encoder: Encoder
    bytes_each: int
    survey: Survey | None = None

    @property
    def _most_per_task(self) -> int:
        listing = self.plan.listing
        return count_per_task(max(self.bytes_each, listing.num_bytes // len(listing.keys)))

    @property
    def _num_examples(self) -> int:
        return sum(self.plan.split_examples.values())

    @property
    def num_useful_workers(self) -> int:
        """Number of workers for which there is work."""
        return -(-self._num_examples // self._most_per_task)

    def cut(self, num_workers: int) -> list[Task]:
        """Cut the data set into tasks, in order, several for each worker."""
        task_examples = share_out(self._num_examples, self._most_per_task, min(num_workers, self.num_useful_workers))
        return list(cut_into_tasks(self.plan.order, self.bytes_each, self.params.target_shard_mib, task_examples))

    def require_even(self, part: Part) -> None:
        """Check that a part met no image of another shape than the others.

        Raises:
            InputError: If it did.
        """
        require_even(self.encoder, part)


def prepare(params: WriteParams, plan: DatasetPlan, survey: Survey | None = None) -> Prepared:
    """Decide how the examples of a plan, which is no corpus, are encoded.

    Args:
        params: Parameters by which it was planned.
        plan: The plan.
        survey: The words of its texts, where they have been read before.

    Raises:
        InputError: If there is nothing that can be encoded as `params` say.
    """
    if plan.listing.kind != TEXT:
        return Prepared(params, plan, *choose_image_encoder(params, plan))
    if survey is None:
        plan, survey = survey_texts(params, plan)
    else:
        plan = divide_by_words(params, plan, survey.words)
    return Prepared(params, plan, *choose_text_encoder(params, plan.listing, survey.counts), survey)


def require_even(encoder: Encoder, part: Part) -> None:
    """Check that a part that an encoder has written met no image of another shape, as `Prepared.require_even` does."""
    if part.odd is not None:
        assert isinstance(encoder.input, ImageInput)
        raise _odd_shape_error(encoder.input.fed_shape, *part.odd)


def _odd_shape_error(expected: tuple[int, int, int], key: str, shape: Sequence[int]) -> InputError:
    if len(shape) == 3 and tuple(shape[:2]) == expected[:2]:
        kinds = {1: "grey", 3: "colour"}
        return InputError(
            f"Grey and colour images are mixed: expected {kinds[expected[2]]} images like the first one, received "
            f"the {kinds[shape[2]]} image {key!r}. Set data.channels to 1 or 3 to convert all of them."
        )
    return InputError(
        f"Images differ in size: expected {expected[0]}×{expected[1]} like the first one, received "
        f"{shape[0]}×{shape[1]} for {key!r}. Set data.image_size to [height, width] to resize all of them."
    )
