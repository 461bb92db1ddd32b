"""Old name of `core.component.step_inputs`."""

from tpu_components.core.component.step_inputs import params_from

__all__ = ["params_from"]
