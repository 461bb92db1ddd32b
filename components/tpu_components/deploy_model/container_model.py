"""Copies an export, and describes the container that serves it for Vertex AI's Model Registry."""

from pathlib import Path
from typing import Any

from tpu_components.core.base.container_images import check_image_name, is_in_registry
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import EXPORT_FILE
from tpu_components.core.files import storage
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.serving.params import ServeParams


def copy_with_server(export: str, target: str, serving_image: str) -> dict[str, Any]:
    """Copy an export, and return the metadata of an artifact `google.UnmanagedContainerModel`.

    Args:
        export: Folder that export_model wrote.
        target: Folder of the copy, written as a whole or not at all.
        serving_image: Image of the server.

    Returns:
        `containerSpec` (https://cloud.google.com/vertex-ai/docs/reference/rest/v1/ModelContainerSpec) and empty
        `predictSchemata`.

    Raises:
        InputError: If Vertex AI cannot pull the image, or the export has no file that the server loads.
    """
    check_image_name(serving_image, "serving_image")
    if not is_in_registry(serving_image):
        raise InputError(
            f"Vertex AI cannot pull the image {serving_image!r}: expected a name with its registry, such as "
            "us-docker.pkg.dev/my-project/images/serving@sha256:…. Push the image that `make image-serving` builds."
        )
    if reason := ExportInfo.load(export).left_out.get("float"):
        raise InputError(
            f"Cannot serve {export} on Vertex AI: expected the float LiteRT file, which the export left out, because "
            f"{reason}. Change the model. With export.required=[float], a run checks the conversion before it trains."
        )
    storage.require_output(Path(target), EXPORT_FILE)
    storage.copy_tree(Path(export), Path(target))
    server = ServeParams()
    return {
        "containerSpec": {
            "imageUri": serving_image,
            "predictRoute": server.predict_route,
            "healthRoute": server.health_route,
            "ports": [{"containerPort": server.port}],
        },
        "predictSchemata": {},
    }
