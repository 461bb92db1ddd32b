"""Options of a Beam pipeline, with Beam's names."""

import contextlib
import io
import re
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.files.location import Location, Scheme
from tpu_components.core.files.resource_names import PROJECT, REGION, SERVICE_ACCOUNT

DATAFLOW = "DataflowRunner"
_IN_THIS_PROCESS = "FnApiRunner"  # Not DirectRunner, which may download another runner.
_NEEDED_BY_DATAFLOW = ("project", "region", "temp_location", "sdk_container_image")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FORMS = {"project": PROJECT, "region": REGION, "service_account_email": SERVICE_ACCOUNT}


def require_names(asked: Mapping[str, str]) -> None:
    """Check the names of options, and the names of Google Cloud resources among their values.

    Beam need not be installed.

    Raises:
        InputError: If a name is not valid.
    """
    if strange := [name for name in asked if not _NAME.fullmatch(name)]:
        raise InputError(
            "beam_options must use the names of Beam's options, such as worker_machine_type. Received: "
            f"{strange[0]!r}. Correct it."
        )
    for name, form in _FORMS.items():
        if name in asked and not re.fullmatch(form, asked[name]):
            raise InputError(
                f"beam_options.{name} must be a name that Google Cloud accepts. Received: {asked[name]!r}. "
                "Correct the name."
            )


def complete(asked: Mapping[str, str], reads: Mapping[str, str]) -> dict[str, str]:
    """Check the options and return them with the defaults that the runner needs.

    Args:
        asked: Options that the user has set.
        reads: Paths that the workers read, as {description for messages: path}. Empty paths are ignored.

    Raises:
        InputError: If Beam is not installed, an option is unknown, or, for Dataflow, a required option is missing or a
            path is not on gs://.
    """
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise InputError(
            "Apache Beam is not installed. Run make beam-env to create the environment .beam (Beam conflicts with "
            "libraries that other steps need), use the image of `make image-beam`, or choose another engine."
        ) from error
    options = {"runner": _IN_THIS_PROCESS, **asked}
    known = as_beams_own({}).get_all_options()
    for name in as_beams_own(options).get_all_options(retain_unknown_options=True):
        if name not in known:
            raise InputError(f"Beam has no option {name!r}. Check beam_options.{did_you_mean(name, known)}")
    if options["runner"] != DATAFLOW:
        return options
    # The image contains this project's code, so the runner need not install packages.
    options = {"sdk_location": "container", **options}
    if missing := [name for name in _NEEDED_BY_DATAFLOW if not options.get(name)]:
        raise InputError(f"Dataflow needs more beam_options: {', '.join(missing)}. Set them.")
    for name, uri in {"beam_options.temp_location": options["temp_location"], **reads}.items():
        if uri and Location(uri).scheme is not Scheme.GOOGLE:
            raise InputError(
                f"Dataflow's workers can read only Cloud Storage: expected {name} on gs://. Received: {uri!r}. Copy "
                "the files to a bucket."
            )
    return options


def as_beams_own(options: Mapping[str, str]) -> Any:
    """Convert options to Beam's PipelineOptions.

    Raises:
        InputError: If an option does not accept its value.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    flags = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):  # argparse prints its errors there.
            beam_options = PipelineOptions(flags)
            beam_options.get_all_options(retain_unknown_options=True)
    except SystemExit as error:
        why = told.getvalue().strip().rpartition("error: ")[2]
        raise InputError(f"Beam rejected beam_options: {why}. Correct the value.") from error
    return beam_options
