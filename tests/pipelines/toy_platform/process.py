"""The process of a job: runs the compiled pipeline with kfp.local, and leaves its exit code in the job's folder."""

import logging
import sys
import warnings
from pathlib import Path


def run(folder: Path) -> None:
    """Run `pipeline.yaml` of a folder to its end."""
    warnings.simplefilter("ignore")
    from kfp import components, local

    logging.basicConfig(stream=sys.stdout, level=logging.INFO, force=True)
    pipeline = components.load_component_from_file(str(folder / "pipeline.yaml"))
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(folder / "outputs"), raise_on_error=True)
    pipeline()


if __name__ == "__main__":
    code = 1
    try:
        run(Path(sys.argv[1]))
        code = 0
    finally:
        (Path(sys.argv[1]) / "code.txt").write_text(str(code))
