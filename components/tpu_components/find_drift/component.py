"""KFP wrapper of find_drift."""

from typing import Any, Dict

from kfp import dsl

from tpu_components.core.base.container_images import STEPS_IMAGE, in_place_of_shell
from tpu_components.core.step.step_inputs import with_inputs
from tpu_components.find_drift.params import DriftParams


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
@with_inputs(DriftParams)
def find_drift(
    records: dsl.Input[dsl.Dataset],
    drift: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    fingerprint: Dict[str, str] = {},
    **inputs: Any,
) -> bool:
    """Compare records with the data of a registered version; returns whether they have drifted."""
    inputs = dict(locals())
    import shutil

    from tpu_components.core.base.errors import InputError
    from tpu_components.core.step.step_record import run_component
    from tpu_components.find_drift import DriftParams, find_drift
    from tpu_components.find_drift.finding import DRIFT_PAGE_FILE

    def show(result: Any) -> bool:
        shutil.copyfile(f"{drift.path}/{DRIFT_PAGE_FILE}", page.path)
        drift.metadata.update({"alike": result.alike, "drifted": list(result.drifted)})
        if inputs["stop"] and not result.alike:
            raise InputError(
                f"Stopped, since the data have drifted from those of {inputs['against']}: {', '.join(result.drifted)}. "
                "Look at the page, and correct the data or leave stop out."
            )
        return not result.alike

    return run_component("find_drift", find_drift, DriftParams, inputs, "records", "drift", then=show)
