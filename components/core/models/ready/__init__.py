"""Ready models: one file each, found by its name."""

import pkgutil

REGISTRY = {module.name: f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)}
