"""Components whose inputs are checked when a pipeline is written, instead of when its step runs."""

from typing import Any, Self

from kfp.dsl.pipeline_channel import extract_pipeline_channels_from_any
from kfp.dsl.python_component import PythonComponent

from tpu_components.core.component.step_inputs import params_from


class CheckedComponent(PythonComponent):
    """A component that checks its inputs in a call, unless one of them is known only when the pipeline runs.

    Attributes:
        params: Dataclass of the step's parameters; None checks nothing.
    """

    params: type | None = None

    @classmethod
    def from_component(cls, component: PythonComponent, params: type | None = None) -> Self:
        """Return a component as one that checks its inputs."""
        checked = cls(component.component_spec, component.python_func)
        checked.params = params
        return checked

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Return the task, as every component does.

        Raises:
            InputError: If the step would refuse the inputs.
        """
        artifacts = [name for name, spec in self.component_spec.inputs.items() if spec.type.startswith("system.")]
        values = {name: value for name, value in inputs.items() if name not in artifacts}
        required = {name for name, spec in self.component_spec.inputs.items() if not spec.optional} - {*artifacts}
        if self.params and required <= values.keys() and not extract_pipeline_channels_from_any(values):
            params_from(values, self.params)
        return super().__call__(*args, **inputs)
