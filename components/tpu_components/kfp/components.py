"""The KFP components of all steps, and functions that set the image in which components run."""

import dataclasses
import warnings
from typing import Any

from tpu_components.core.base import container_images
from tpu_components.core.base.container_images import check_image_name, is_pinned
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords import component as _create_tfrecords
from tpu_components.deploy_model import component as _deploy_model
from tpu_components.deploy_model.params import DeployParams
from tpu_components.evaluate_model import component as _evaluate_model
from tpu_components.evaluate_model.params import EvaluateParams
from tpu_components.export_model import component as _export_model
from tpu_components.export_model.params import ExportParams
from tpu_components.find_drift import component as _find_drift
from tpu_components.find_drift.params import DriftParams
from tpu_components.import_model import component as _import_model
from tpu_components.import_model.params import ImportParams
from tpu_components.kfp.step_component import StaleCacheWarning, StepComponent
from tpu_components.kfp.wrapped_component import require_component
from tpu_components.predict_batch import component as _predict_batch
from tpu_components.predict_batch.params import PredictParams
from tpu_components.preflight_training import component as _preflight_training
from tpu_components.preflight_training.params import PreflightParams
from tpu_components.train_model import component as _train_model

create_tfrecords = StepComponent.from_component(_create_tfrecords.create_tfrecords, WriteParams)
deploy_model = StepComponent.from_component(_deploy_model.deploy_model, DeployParams)
evaluate_model = StepComponent.from_component(_evaluate_model.evaluate_model, EvaluateParams)
export_model = StepComponent.from_component(_export_model.export_model, ExportParams)
find_drift = StepComponent.from_component(_find_drift.find_drift, DriftParams)
import_model = StepComponent.from_component(_import_model.import_model, ImportParams)
list_source = StepComponent.from_component(_create_tfrecords.list_source)
make_container_model = StepComponent.from_component(_deploy_model.make_container_model)
predict_batch = StepComponent.from_component(_predict_batch.predict_batch, PredictParams)
preflight_training = StepComponent.from_component(_preflight_training.preflight_training, PreflightParams)
train_model = StepComponent.from_component(_train_model.train_model, TrainParams)


@dataclasses.dataclass(frozen=True)
class Components:
    """All components of this package, with the same image.

    Attributes:
        create_tfrecords: Writes labelled examples as TFRecord files.
        deploy_model: Registers a model that passed the gate, and deploys it to an endpoint.
        evaluate_model: Evaluates a model, and decides whether it passes the gate.
        export_model: Converts a model to formats for CPUs, and compares their predictions.
        find_drift: Compares new data with those of a registered model.
        import_model: Imports a model that another program trained.
        list_source: Returns a digest of a source's current content.
        make_container_model: Turns an export into the artifact that Google's ModelUploadOp takes.
        predict_batch: Predicts every example of a source.
        preflight_training: Compiles the training step for a TPU, on CPUs, and estimates memory, time and price.
        train_model: Trains a model.
    """

    create_tfrecords: Any = create_tfrecords
    deploy_model: Any = deploy_model
    evaluate_model: Any = evaluate_model
    export_model: Any = export_model
    find_drift: Any = find_drift
    import_model: Any = import_model
    list_source: Any = list_source
    make_container_model: Any = make_container_model
    predict_batch: Any = predict_batch
    preflight_training: Any = preflight_training
    train_model: Any = train_model


def with_image(component: Any, image: str) -> Any:
    """Return a copy of a KFP component that runs in another image.

    Args:
        component: A KFP component that runs in one container. It is not changed.
        image: Name of the image with its digest, as in `docker.io/me/python@sha256:…`. A name with a tag causes a
            warning: when the tag moves to new code, the platform's cache still returns the results of the old code.

    Raises:
        InputError: If the name is malformed, or `component` is not a KFP component, or is already the result of
            `tp.on_machine` or `on_current_data`.
    """
    require_component(component, "with_image")
    _check_image_name(image)
    return container_images.with_image(component, image)


def with_images(image: str) -> Components:
    """Return all components of this package, with an image that your platform can pull.

    Args:
        image: Image that `make image` builds, pushed to your registry and named by digest; see `with_image`.

    Example:
        >>> from kfp import dsl
        >>> from tpu_components.kfp import on_current_data
        >>> steps = with_images("docker.io/me/python@sha256:" + 64 * "0")
        >>> @dsl.pipeline
        ... def my_pipeline(source: str):
        ...     written = on_current_data(steps.create_tfrecords)(source=source, image_size=[224, 224])
        ...     steps.train_model(records=written.outputs["records"], model="mobilenet_v2")
    """
    _check_image_name(image)
    fields = dataclasses.fields(Components)
    return Components(**{field.name: container_images.with_image(field.default, image) for field in fields})


def _check_image_name(image: str) -> None:
    check_image_name(image)
    if not is_pinned(image):
        warnings.warn(
            f"The image {image!r} is not named by digest. If its tag moves to other code, the platform's cache still "
            "returns results of the old code. Use the name that ends in @sha256:…, or call "
            "set_caching_options(False) on each task.",
            StaleCacheWarning,
            stacklevel=3,
        )
