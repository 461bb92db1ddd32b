"""The toy as a `Platform`."""

import math
from pathlib import Path

from tests.pipelines.toy_platform.client import ToyClient
from tpu_components.core.machines.machine_spec import KUBEFLOW
from tpu_pipelines.platforms.findings import Check, LackError


class Toy:
    """A platform that runs a pipeline in a process of this machine, and every accelerator is its CPU."""

    name = "toy"
    title = "the toy platform"
    catalogue_name = KUBEFLOW
    required_settings = ("project",)
    own_settings = ()
    unused_options = {}
    readable_places = "this machine or in a bucket"
    longest_task_seconds = math.inf
    accepts_estimated_timeout = False
    beam_runner = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check_settings(self, settings):
        """Take all values."""

    def check_config(self, config):
        """Ignore all requests for resources."""

    def can_read(self, place):
        return True

    def can_pull(self, image):
        return True

    def in_region(self, machine, region):
        return machine

    def training_retries(self, machine):
        return 0

    def memory_request(self, config, step, gib):
        return None

    def disk_request(self, num_bytes):
        return ""

    def disk_warning(self, num_bytes):
        return ""

    def on_machine(self, component, machine, settings, placement):
        return lambda **inputs: component(**inputs | {"accelerator": "cpu"})

    def restart_warning(self, machine, settings):
        return ""

    def place(self, task, step, config, settings):
        return task

    def exit_task(self, settings):
        return None

    def connect(self, settings):
        settings.require(*self.required_settings)
        return ToyClient(self._folder)

    def checks(self, config, settings, context):
        return [Check("folder", self._look_at_folder)]

    def _look_at_folder(self):
        if not self._folder.is_dir():
            raise LackError(f"there is no {self._folder}", f"mkdir {self._folder}")
        return f"{self._folder} is there"
