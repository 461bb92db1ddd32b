"""Components that read a source, and the platform's cache, which knows a source only by its name."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from tpu_components.core.base.container_images import with_image
from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords.component import list_source
from tpu_components.kfp.placed_component import PlacedComponent, require_component

_INPUTS_OF_THE_SOURCE = {field.name for field in dataclasses.fields(WriteParams)} - {"source"}


def on_current_data(component: Any) -> Callable[..., Any]:
    """Return a component's step that runs again when its source has changed, and else may come from the cache.

    It adds a task before the step, `list_source`, that is never cached: it lists the files of the source, without
    reading them, and returns a digest. The digest becomes the input `data_version` of the step.

    Args:
        component: `create_tfrecords` or `predict_batch` with its image, or one of them on a machine.

    Returns:
        A function that takes the component's inputs by name, inside a pipeline, and returns the task.

    Raises:
        InputError: If the component does not read a source.
    """
    reader = component.component if isinstance(component, PlacedComponent) else component
    require_component(reader, "on_current_data")
    if not {"source", "data_version"} <= (reader.component_spec.inputs or {}).keys():
        raise InputError(
            f"on_current_data takes create_tfrecords or predict_batch. Received: {reader.name!r}. Call it without "
            "on_current_data."
        )
    listing = with_image(list_source, reader.component_spec.implementation.container.image)

    def make(**inputs: Any) -> Any:
        data: Mapping[str, Any] = {name: value for name, value in inputs.items() if name in _INPUTS_OF_THE_SOURCE}
        listed = listing(source=inputs["source"], data=data).set_caching_options(False)
        return component(**inputs, data_version=listed.output)

    return functools.update_wrapper(make, reader.python_func)
