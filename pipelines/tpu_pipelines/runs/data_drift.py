"""Compares a configuration's data with the champion's training data, before any records are written."""

import contextlib
import dataclasses
import math
import shlex

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.progress import say
from tpu_components.core.drift.measuring import MOST_MEASURED
from tpu_components.core.drift.shifts import find_shifts
from tpu_components.core.drift.sketches import SKETCH, DataSketch
from tpu_components.core.drift.version_sketches import sketch_at, sketch_of
from tpu_components.core.examples.artifacts import MANIFEST_FILE
from tpu_components.core.examples.interface import TEXT
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.registry.opening import origin_of_version, parse_reference
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords.planning import plan_dataset
from tpu_components.create_tfrecords.sample import written
from tpu_components.deploy_model.params import VERTEX
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.starting.data_overview import source_of

_NAMED = 3
_MOST_BAD = 0.99  # The run limits unreadable inputs itself; here many of them count as drift.


@dataclasses.dataclass(frozen=True)
class Drift:
    """Result of the comparison of data with the champion's training data.

    Attributes:
        matters: True if the data have drifted, or if drift is unknown because there is nothing to compare with.
        reason: Reason for the value of `matters`, as text.
    """

    matters: bool
    reason: str


def find_drift(config: Config, settings: Settings | None = None) -> Drift:
    """Compare a sample of a configuration's data with the sketch of the champion's training data.

    Args:
        config: The configuration.
        settings: Settings of the platform, which locate a registry on Vertex AI. Not needed if the registry is a
            folder.

    Raises:
        InputError: If the data or the registry cannot be used.
    """
    referred = parse_reference(champion_of(config, settings))
    champion = referred and referred.find()
    if not referred or not champion:
        return Drift(True, "there is no registered champion to compare the data with")
    origin = origin_of_version(referred.registry.model_name, champion)
    if not origin.lineage.get(SKETCH):
        return Drift(True, f"{origin.name} has no statistics of its data, so drift is unknown")
    before = sketch_of(origin)
    data = config.data
    if before.kind == TEXT:  # Words are comparable only if both data sets use the same tokenization.
        data = dataclasses.replace(data, tokenization=before.words_rule)
    sample = sketch_sample(data)
    shifts = [shift for shift in find_shifts(sample, before) if shift.drifted]
    seen = f"comparing {sample.num_examples:,} examples with the {before.num_examples:,} examples of {origin.name}"
    if not shifts:
        return Drift(False, f"no statistic of the data has drifted, {seen}")
    words = [f"{shift.figure.replace('_', ' ')} {shift.now}, {shift.before} before" for shift in shifts[:_NAMED]]
    more = f" and {len(shifts) - _NAMED} more" if len(shifts) > _NAMED else ""
    return Drift(True, f"the data have drifted, {seen}: {'; '.join(words)}{more}")


def sketch_place(place: str) -> DataSketch:
    """Return the data sketch (statistics) of a folder of records, or of a registered version. See `sketch_at`.

    Raises:
        InputError: If the folder or version does not exist. For a folder of raw data, the message names the command
            that writes records.
    """
    is_records = parse_reference(place) is not None or storage.exists(Location(place).child(MANIFEST_FILE))
    source = ""
    if not is_records:
        with contextlib.suppress(InputError):
            source = source_of(place)
    if source:
        raise InputError(
            f"Cannot compare {place}: expected a folder of records, received raw data ({source}). Write records with "
            f"`python -m tpu_components.create_tfrecords --source {shlex.quote(source)} --output FOLDER`, with the "
            "same --image-size or --num-tokens for both data sets, and compare FOLDER. Or use `tpu-pipelines retrain "
            "CONFIG --when drifted --dry-run`, which compares the raw data of a configuration."
        )
    return sketch_at(place)


def sketch_sample(params: WriteParams) -> DataSketch:
    """Return the statistics of a sample of the data, for a comparison with the statistics of other data.

    The sample contains the same share of every split.

    Raises:
        InputError: If the source cannot be used, or is one long text (a corpus).
    """
    plan = plan_dataset(params)
    if plan.listing.corpus is not None:
        raise InputError(
            f"Cannot test {params.source!r} for drift: expected images or texts, received a corpus, which has no "
            "statistics. Use --when changed."
        )
    # As many examples as are measured in a large data set.
    share = min(1.0, MOST_MEASURED / plan.num_examples)
    order = {name: examples[: math.ceil(share * len(examples))] for name, examples in plan.order.items()}
    lenient = dataclasses.replace(params, max_bad_fraction=_MOST_BAD)
    sample = dataclasses.replace(plan, params=lenient, order=order)
    say("create_tfrecords", f"testing {sample.num_examples:,} of {plan.num_examples:,} examples for drift")
    with written(sample) as (_, manifest):
        return DataSketch.make(manifest)


def champion_of(config: Config, settings: Settings | None) -> str:
    """Return the champion (the model to beat) of a configuration. The settings locate a registry on Vertex AI."""
    if config.deploy and config.deploy.registry == VERTEX and settings:
        config = config.changed("deploy", registry=settings.vertex_registry())
    return config.champion
