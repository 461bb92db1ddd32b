"""An export as Google's ModelUploadOp takes it: compiled with the real component, and read by its own launcher."""

import json
from pathlib import Path

import pytest
import yaml
from google.cloud.aiplatform_v1 import types
from google_cloud_pipeline_components.container.v1.model.upload_model.remote_runner import (
    append_unmanaged_model_artifact_into_payload,
)
from google_cloud_pipeline_components.types.artifact_types import UnmanagedContainerModel as GoogleModel
from google_cloud_pipeline_components.v1.model import ModelUploadOp
from kfp import compiler, dsl

from tpu_components.core.base.errors import InputError
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.deploy_model.component import UnmanagedContainerModel
from tpu_components.kfp import make_container_model, with_image
from tpu_components.serving.params import ServeParams

SERVING = "us-docker.pkg.dev/my-project/images/serving@sha256:" + 64 * "0"


@pytest.fixture
def artifact(exported_digits, tmp_path):
    """What the component makes of an export."""
    (tmp_path / "step").mkdir()
    model = UnmanagedContainerModel(name="container_model", uri=str(tmp_path / "step" / "container_model"))
    make_container_model.python_func(export=exported_digits, container_model=model, serving_image=SERVING)
    return model


def test_a_pipeline_with_googles_upload_compiles(tmp_path):
    @dsl.pipeline
    def pipeline(project: str):
        export = dsl.importer("gs://bucket/export", dsl.Model)
        made = with_image(make_container_model, SERVING)(export=export.output, serving_image=SERVING)
        ModelUploadOp(project=project, display_name="digits", unmanaged_container_model=made.outputs["container_model"])

    compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
    spec = yaml.safe_load((tmp_path / "pipeline.yaml").read_text())
    component = spec["components"]["comp-make-container-model"]
    kind = component["outputDefinitions"]["artifacts"]["container_model"]["artifactType"]
    assert kind == {"schemaTitle": GoogleModel.schema_title, "schemaVersion": GoogleModel.schema_version}


def test_the_launcher_of_the_upload_sends_a_model_that_vertex_ai_parses(artifact):
    sent = {"uri": "gs://bucket/container_model", "metadata": json.loads(json.dumps(artifact.metadata))}
    inputs = {"inputs": {"artifacts": {"unmanaged_container_model": {"artifacts": [sent]}}}}
    payload = append_unmanaged_model_artifact_into_payload(json.dumps(inputs), {"display_name": "digits"})
    model = types.Model.from_json(json.dumps(payload), ignore_unknown_fields=False)
    served = ServeParams()
    assert model.artifact_uri == "gs://bucket/container_model"
    assert model.container_spec.image_uri == SERVING
    assert model.container_spec.predict_route == served.predict_route
    assert model.container_spec.health_route == served.health_route
    assert [port.container_port for port in model.container_spec.ports] == [served.port]


def test_the_artifact_is_a_whole_export(artifact, exported_digits):
    files = {path.relative_to(exported_digits.path) for path in Path(exported_digits.path).rglob("*")}
    assert files == {path.relative_to(artifact.path) for path in Path(artifact.path).rglob("*")}
    assert json.loads((Path(artifact.path).parent / "step.json").read_text())["state"] == "succeeded"
    assert ExportInfo.load(artifact.path).class_names == ExportInfo.load(exported_digits.path).class_names


def test_an_image_that_vertex_ai_cannot_pull_is_refused(exported_digits, tmp_path):
    model = UnmanagedContainerModel(name="container_model", uri=str(tmp_path / "container_model"))
    with pytest.raises(InputError, match=r"Vertex AI cannot pull the image 'tpu-pipelines/serving:latest'"):
        make_container_model.python_func(
            export=exported_digits, container_model=model, serving_image="tpu-pipelines/serving:latest"
        )


def test_an_export_that_the_server_cannot_load_is_refused(exported_digits, tmp_path):
    export = tmp_path / "export"
    export.mkdir()
    content = json.loads((Path(exported_digits.path) / "export.json").read_text())
    (export / "export.json").write_text(json.dumps({**content, "left_out": {"float": "an operation is missing"}}))
    model = UnmanagedContainerModel(name="container_model", uri=str(tmp_path / "container_model"))
    with pytest.raises(
        InputError, match=r"float LiteRT file, which the export left out, because an operation is missing"
    ):
        make_container_model.python_func(
            export=dsl.Model(name="export", uri=str(export)), container_model=model, serving_image=SERVING
        )
