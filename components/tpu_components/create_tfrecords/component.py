"""KFP wrappers of create_tfrecords as one step, as parallel steps or with Beam; and of the step that lists a source."""

from typing import Any, Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import BEAM_IMAGE, STEPS_IMAGE, in_place_of_shell
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.step.step_inputs import with_inputs


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
@with_inputs(WriteParams)
def create_tfrecords(
    records: dsl.Output[dsl.Dataset],
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
    **inputs: Any,
) -> int:
    """Write labelled examples as sharded TFRecord files; returns the number of examples."""
    inputs = dict(locals())
    from tpu_components.core.step.step_record import run_component
    from tpu_components.create_tfrecords import WriteParams, write_records

    return run_component(
        "create_tfrecords",
        lambda params, records: write_records(params, records, data_version),
        WriteParams,
        inputs,
        "records",
    ).num_examples


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def list_source(source: str, data: Dict[str, Any] = {}) -> str:
    """List the source; returns a digest of its current content.

    This step always runs. A platform's cache identifies data only by their path; the digest is an input of the next
    step, so that the cache detects changed data.
    """
    from tpu_components.core.base.termination import heard
    from tpu_components.core.step.step_inputs import params_from
    from tpu_components.create_tfrecords import WriteParams, source_version

    with heard():
        return source_version(params_from({**data, "source": source}, WriteParams))


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def plan_parts(
    planned: dsl.Output[dsl.Artifact],
    source: str,
    data: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Plan a data set that several steps write; returns the number of its parts."""
    inputs = {**data, **locals()}
    from tpu_components.core.step.step_record import run_component
    from tpu_components.create_tfrecords import WriteParams
    from tpu_components.create_tfrecords.engines import fan_out

    return run_component(
        "create_tfrecords",
        lambda params, planned: fan_out.plan_parts(params, str(planned), data_version),
        WriteParams,
        inputs,
        "planned",
        then=lambda plan: plan.num_parts,
    )


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def write_parts(
    planned: dsl.Input[dsl.Artifact],
    parts: dsl.Output[dsl.Artifact],
    number: int,
    source: str,
    data: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Write one range of the planned parts; returns the number of parts in the range."""
    inputs = {**data, **locals()}
    from tpu_components.core.step.step_record import run_component
    from tpu_components.create_tfrecords import WriteParams
    from tpu_components.create_tfrecords.engines import fan_out

    return run_component(
        "create_tfrecords",
        lambda params, planned, parts: fan_out.write_parts(params, str(planned), str(parts), int(number)),
        WriteParams,
        inputs,
        "planned",
        "parts",
        then=lambda written: written.num_parts,
    )


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def merge_parts(
    planned: dsl.Input[dsl.Artifact],
    parts: dsl.Input[List[dsl.Artifact]],
    records: dsl.Output[dsl.Dataset],
    source: str,
    data: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Merge the parts of all ranges into records; returns the number of examples."""
    inputs = {**data, **locals()}
    from tpu_components.core.step.step_record import run_component
    from tpu_components.create_tfrecords import WriteParams
    from tpu_components.create_tfrecords.engines import fan_out

    return run_component(
        "create_tfrecords",
        lambda params, planned, parts, records: fan_out.merge_parts(params, str(planned), [*map(str, parts)], records),
        WriteParams,
        inputs,
        "planned",
        "parts",
        "records",
    ).num_examples


@in_place_of_shell
@dsl.component(base_image=BEAM_IMAGE, install_kfp_package=False)
def write_with_beam(
    records: dsl.Output[dsl.Dataset],
    source: str,
    data: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Write records with the workers of an Apache Beam runner; returns the number of examples."""
    inputs = {**data, **locals()}
    from tpu_components.core.step.step_record import run_component
    from tpu_components.create_tfrecords import WriteParams
    from tpu_components.create_tfrecords.engines import beam

    return run_component(
        "create_tfrecords",
        lambda params, records: beam.write_with_beam(params, records, data_version),
        WriteParams,
        inputs,
        "records",
    ).num_examples


# These steps write the same records, so the pipeline and its cache know them by the same name.
merge_parts.component_spec.name = create_tfrecords.component_spec.name
write_with_beam.component_spec.name = create_tfrecords.component_spec.name
