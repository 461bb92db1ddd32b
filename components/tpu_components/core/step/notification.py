"""Old name of `core.component.notification`."""

from tpu_components.core.component.notification import message, post, reasons

__all__ = ["message", "post", "reasons"]
