"""The steps of the pipeline, one package each; `core`, which they share; and the server of an export."""

# The importable name is `tpu_components`, in a clone, a wheel and an image alike; that of the folder `pipelines/` is
# `tpu_pipelines`. In the root of a clone the folders can be imported by their own names too, as `python -m
# components.train_model` does: these names give the same modules, so that none is loaded twice.

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

_FOLDERS = {f"tpu_{name}": Path(__file__).parent.with_name(name) for name in ("components", "pipelines")}


class _Clone:
    """Finder and loader: `components.x` is the module `tpu_components.x` of the same clone."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if folder := _FOLDERS.get(name):
            return importlib.util.spec_from_file_location(
                name, folder / "__init__.py", submodule_search_locations=[str(folder)]
            )
        if f"tpu_{name.partition('.')[0]}" not in _FOLDERS:
            return None
        spec = importlib.util.find_spec(f"tpu_{name}")
        if spec is None:
            return None
        # A worker process imports its parent's main module again, by the name in this specification.
        alias = ModuleSpec(spec.name if name.endswith(".__main__") else name, self, origin=spec.origin)  # type: ignore[arg-type]
        alias.submodule_search_locations = spec.submodule_search_locations
        return alias

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"tpu_{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__ and module.__spec__.loader_state  # What importlib has put in its place.

    def get_code(self, name: str) -> CodeType | None:
        spec = importlib.util.find_spec(f"tpu_{name}")
        return spec.loader.get_code(spec.name) if spec and spec.loader else None  # type: ignore[attr-defined]


if __name__ == "components":
    sys.meta_path.insert(0, _Clone())
    sys.modules[__name__] = importlib.import_module("tpu_components")
