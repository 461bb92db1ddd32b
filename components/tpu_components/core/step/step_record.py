"""Old name of `core.component.step_record`."""

from tpu_components.core.component.step_record import run_component

__all__ = ["run_component"]
