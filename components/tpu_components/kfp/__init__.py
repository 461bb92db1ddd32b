"""KFP components of all steps, to use in a pipeline of your own."""

from tpu_components.create_tfrecords.component import list_source
from tpu_components.deploy_model.component import deploy_model, make_container_model
from tpu_components.evaluate_model.component import evaluate_model
from tpu_components.export_model.component import export_model
from tpu_components.find_drift.component import find_drift
from tpu_components.kfp.components import (
    Components,
    create_tfrecords,
    import_model,
    predict_batch,
    with_image,
    with_images,
)
from tpu_components.kfp.current_data import StaleCacheWarning, on_current_data
from tpu_components.preflight_training.component import preflight_training
from tpu_components.train_model.component import train_model

__all__ = [
    "Components",
    "StaleCacheWarning",
    "create_tfrecords",
    "deploy_model",
    "evaluate_model",
    "export_model",
    "find_drift",
    "import_model",
    "list_source",
    "make_container_model",
    "on_current_data",
    "predict_batch",
    "preflight_training",
    "train_model",
    "with_image",
    "with_images",
]
