"""Ready-made models, one file for each. The name of the file is the name of the model."""

import pkgutil

REGISTRY = {module.name: f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)}
