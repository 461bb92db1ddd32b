"""The result of `tp.on_machine` and `on_current_data`, and checks of the components that these functions receive."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from kfp.dsl.base_component import BaseComponent

from tpu_components.core.base.errors import InputError


@dataclasses.dataclass(frozen=True)
class WrappedComponent:
    """A component that `on_machine` or `on_current_data` returned. Call it in a pipeline, with inputs by name.

    Attributes:
        component: The component that `on_machine` or `on_current_data` received.
        wrapper: Name of the function that returned this component: `on_machine` or `on_current_data`.
        make_task: Function that takes inputs by name and returns the task.
    """

    component: Any
    wrapper: str
    make_task: Callable[..., Any]

    @property
    def name(self) -> str:
        """Name of the component."""
        return str(self.component.name)

    @property
    def component_spec(self) -> Any:
        """KFP's specification of the step, which may have more inputs than `component`."""
        return getattr(self.make_task, "component_spec", self.component.component_spec)

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Return the task.

        Raises:
            InputError: If an input has no name.
        """
        require_names(self, args)
        return self.make_task(**inputs)


def called(component: Any) -> str:
    """Return the name of a component with underscores, as in Python code."""
    return str(component.name).replace("-", "_")


def require_names(component: Any, arguments: Sequence[Any]) -> None:
    """Check that a component was called with names for all inputs.

    Args:
        component: The component.
        arguments: Inputs without a name.

    Raises:
        InputError: If there are inputs without a name.
    """
    if arguments:
        raise InputError(
            f"{called(component)} takes its inputs by name. Received: {len(arguments)} without a name. Write "
            "NAME=VALUE."
        )


def require_component(component: Any, function: str) -> None:
    """Check that a function received a KFP component that is not the result of `on_machine` or `on_current_data`.

    Args:
        component: Value that the function received.
        function: Name of the function.

    Raises:
        InputError: If the value is not a KFP component, or is already the result of one of these functions.
    """
    if isinstance(component, WrappedComponent):
        advice = f"Call {function} before {component.wrapper}."
        if component.wrapper == function:
            advice = f"Call {function} only once, with the component itself."
        raise InputError(
            f"{function} takes a KFP component. Received: the result of {component.wrapper} for "
            f"{called(component)}. {advice}"
        )
    if not isinstance(component, BaseComponent):
        received = repr(component) if isinstance(component, str) else f"a value of the type {type(component).__name__}"
        advice = "Decorate your function with @dsl.component, or load a component with kfp.components."
        if hasattr(component, "train_model"):
            advice = f"Choose one of its components, as in {function}(steps.train_model, …)."
        raise InputError(f"{function} takes a KFP component. Received: {received}. {advice}")
