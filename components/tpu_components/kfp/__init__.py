"""KFP components of all steps, to use in a pipeline of your own."""

from tpu_components.kfp.components import (
    Components,
    create_tfrecords,
    deploy_model,
    evaluate_model,
    export_model,
    find_drift,
    import_model,
    list_source,
    make_container_model,
    predict_batch,
    preflight_training,
    train_model,
    with_image,
    with_images,
)
from tpu_components.kfp.current_data import on_current_data
from tpu_components.kfp.step_component import PipelineWarning, StaleCacheWarning

__all__ = [
    "Components",
    "PipelineWarning",
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
