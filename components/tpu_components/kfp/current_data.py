"""Components that read a source, and the platform's cache, which knows a source only by its name."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from tpu_components.core.base.container_images import with_image
from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.kinds import find_location
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.source_ref import SourceRef
from tpu_components.create_tfrecords.component import list_source
from tpu_components.kfp.checked_component import CheckedComponent

_INPUTS_OF_THE_SOURCE = {field.name for field in dataclasses.fields(WriteParams)} - {"source"}


class StaleCacheWarning(UserWarning):
    """The platform's cache may return results of data or code that have changed since."""


class SourceComponent(CheckedComponent):
    """A component with the inputs `source` and `data_version`; a call warns if the cache could return old results."""

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Return the task, as every component does."""
        if not inputs.get("data_version") and may_change(inputs.get("source")):
            name = self.name.replace("-", "_")
            warnings.warn(
                f"{name} has no data_version, and the platform's cache knows the data only by their location: after "
                f"the data have changed, a run may return the results of the old data. Use on_current_data({name}).",
                StaleCacheWarning,
                stacklevel=2,
            )
        return super().__call__(*args, **inputs)


def may_change(source: Any) -> bool:
    """Return whether a source is on a remote store, or is an input whose value is known only when the pipeline runs.

    Raises:
        InputError: If the kind of the source is unknown.

    Example:
        >>> may_change("images:gs://bucket/photos"), may_change("sklearn:digits")
        (True, False)
    """
    if isinstance(source, str):
        return find_location(SourceRef.parse(source)).is_remote
    return source is not None


def on_current_data(component: Any) -> Callable[..., Any]:
    """Return a component's step that runs again when its source has changed, and else may come from the cache.

    It adds a task before the step, `list_source`, that is never cached: it lists the files of the source, without
    reading them, and returns a digest. The digest becomes the input `data_version` of the step.

    Args:
        component: `create_tfrecords` or `predict_batch`, with its image.

    Returns:
        A function that takes the component's inputs by name, inside a pipeline, and returns the task.

    Raises:
        InputError: If the component does not read a source.
    """
    if not {"source", "data_version"} <= (component.component_spec.inputs or {}).keys():
        raise InputError(
            f"on_current_data takes create_tfrecords or predict_batch. Received: {component.name!r}. Call it without "
            "on_current_data."
        )
    listing = with_image(list_source, component.component_spec.implementation.container.image)

    def make(**inputs: Any) -> Any:
        data: Mapping[str, Any] = {name: value for name, value in inputs.items() if name in _INPUTS_OF_THE_SOURCE}
        listed = listing(source=inputs["source"], data=data).set_caching_options(False)
        return component(**inputs, data_version=listed.output)

    return functools.update_wrapper(make, component.python_func)
