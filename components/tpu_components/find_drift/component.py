"""The step find_drift as a KFP component.

`python -m tests.evidence.generated` writes the inputs after `*`, and their entries in `Args:`, from the fields of
DriftParams.
"""

from typing import Any, Dict

from kfp import dsl

from tpu_components.core.base.container_images import LOCAL_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def find_drift(
    records: dsl.Input[dsl.Dataset],
    drift: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    fingerprint: Dict[str, str] = {},
    *,
    against: str,
    confidence: float = 0.99,
    stop: bool = False,
) -> bool:
    """Compare records with the data of a registered version. Return whether the data have drifted.

    Args:
        records: Records that create_tfrecords wrote.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.
        against: Data to compare with: a registered version, for example `runs/registry/digits@champion` or
            `projects/PROJECT/locations/REGION/models/digits@champion`, or a folder of records, local or in a bucket.
        confidence: Probability that no drift is reported between two samples of the same distribution.
        stop: Whether the step fails in a pipeline if the data have drifted. On the command line, the exit code is 3 if
            the data have drifted, whatever `stop` is.

    Returns:
        drift: Folder with the comparison: `drift.json` and `drift.html`.
        page: Comparison as an HTML page.
        Output: Whether the data have drifted.
    """
    inputs = dict(locals())
    import shutil

    from tpu_components.core.base.errors import InputError
    from tpu_components.core.component.step_record import run_component
    from tpu_components.find_drift import DriftParams, find_drift
    from tpu_components.find_drift.finding import DRIFT_PAGE_FILE

    def show(result: Any) -> bool:
        shutil.copyfile(f"{drift.path}/{DRIFT_PAGE_FILE}", page.path)
        drift.metadata.update({"alike": result.alike, "drifted": list(result.drifted)})
        if stop and not result.alike:
            raise InputError(
                f"Stopped because the data have drifted from those of {against}: {', '.join(result.drifted)}. "
                "Look at drift.html. Then correct the data, or remove stop."
            )
        return not result.alike

    return run_component("find_drift", find_drift, DriftParams, inputs, "records", "drift", then=show)
