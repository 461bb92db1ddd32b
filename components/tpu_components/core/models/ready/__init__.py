"""Ready-made models, one file each; the file's name is the model's name."""

import pkgutil

REGISTRY = {module.name: f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)}
