"""Makes components run again when the content of their source has changed.

The platform's cache identifies a source only by its name.
"""

from typing import Any

from tpu_components.core.base.container_images import with_image
from tpu_components.core.base.errors import InputError
from tpu_components.create_tfrecords.component import list_source
from tpu_components.kfp.step_component import StepComponent
from tpu_components.kfp.wrapped_component import WrappedComponent, called, require_component
from tpu_components.predict_batch.component import list_inputs

# For each component that reads a source, the component that lists this source. Both have the same inputs.
_LISTERS = {"create_tfrecords": list_source, "predict_batch": list_inputs}


def on_current_data(component: Any) -> WrappedComponent:
    """Return a component that runs again when its source has changed.

    While the source is unchanged, the platform may take the component's result from its cache. Without this function,
    it may do so even if the source has changed.

    The returned component adds a task before the step. This task is never cached. It lists the files of the source
    without reading them, and returns a digest, which becomes the input `data_version` of the step.

    Args:
        component: `create_tfrecords` or `predict_batch` with its image, or the result of `tp.on_machine` for one of
            them.

    Returns:
        A function that takes the component's inputs by name, inside a pipeline, and returns the task.

    Raises:
        InputError: If the component does not read a source.
    """
    is_on_machine = isinstance(component, WrappedComponent) and component.wrapper == "on_machine"
    reader = component.component if is_on_machine else component
    require_component(reader, "on_current_data")
    if called(reader) not in _LISTERS:
        raise InputError(
            f"on_current_data takes {' or '.join(_LISTERS)}. Received: {called(reader)}. Use this component without "
            "on_current_data."
        )
    listing = with_image(_LISTERS[called(reader)], reader.component_spec.implementation.container.image)

    def make(**inputs: Any) -> Any:
        checked = dict(inputs)
        if isinstance(reader, StepComponent):
            checked = reader.checked(inputs, component.component_spec.inputs)
        known = listing.component_spec.inputs
        listed = listing(**{name: value for name, value in checked.items() if name in known})
        return component(**inputs, data_version=listed.set_caching_options(False).output)

    return WrappedComponent(reader, "on_current_data", make)
