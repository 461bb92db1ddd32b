"""Runs a pipeline that was staged for Dataflow, like its workers: `PYTHON dataflow_worker.py gs://…/pipeline.pb`.

It imports only those modules of this project that the pipeline names, as in the workers' image.
"""

import sys

from google.cloud import storage


def main(uri: str) -> None:
    """Run the pipeline to its end; raises the errors of its workers."""
    # Imported here, because pytest imports every module to look for examples, even without Beam.
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability import python_urns
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    bucket, _, name = uri.removeprefix("gs://").partition("/")
    content = storage.Client.create_anonymous_client().bucket(bucket).blob(name).download_as_bytes()
    pipeline = beam_runner_api_pb2.Pipeline.FromString(content)
    for environment in pipeline.components.environments.values():  # A container, which this process replaces.
        environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
        del environment.dependencies[:]
    FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([]))


if __name__ == "__main__":
    main(sys.argv[1])
