"""A component on a machine, as `tp.on_machine` returns it."""

import dataclasses
from collections.abc import Callable
from typing import Any

from kfp.dsl.base_component import BaseComponent

from tpu_components.core.base.errors import InputError


@dataclasses.dataclass(frozen=True)
class PlacedComponent:
    """A component on a machine. Call it in a pipeline with inputs by name, as you call the component.

    Attributes:
        component: The component.
        machine: Name of the machine, for example `v5e-4`.
        make_task: Function that takes inputs by name and returns the task.
    """

    component: Any
    machine: str
    make_task: Callable[..., Any]

    @property
    def component_spec(self) -> Any:
        """KFP's specification of the step, which may have more inputs than the component."""
        return getattr(self.make_task, "component_spec", self.component.component_spec)

    def __call__(self, **inputs: Any) -> Any:
        """Return the task."""
        return self.make_task(**inputs)


def called(component: Any) -> str:
    """Return the name of a component as in Python code, for messages."""
    return str(component.name).replace("-", "_")


def require_component(component: Any, function: str) -> None:
    """Check that this is a component of KFP that is not on a machine yet.

    Args:
        component: What a function received.
        function: Name of the function.

    Raises:
        InputError: If it is not.
    """
    if isinstance(component, PlacedComponent):
        raise InputError(
            f"{function} takes a component that is not on a machine yet. Received: "
            f"{called(component.component)} on {component.machine}. Call {function} with the component itself."
        )
    if not isinstance(component, BaseComponent):
        raise InputError(
            f"{function} takes a KFP component. Received: {component!r}. Decorate a function with @dsl.component, or "
            f"load a component with kfp.components. If the component is in on_current_data, call {function} first."
        )
