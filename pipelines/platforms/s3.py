"""Kubernetes secret for the pods of steps to sign in to S3 or a compatible service."""

from typing import Any

from tpu_components.core.files import storage
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.steps import STEPS

# Variables of boto3: https://boto3.amazonaws.com/v1/documentation/api/latest/guide/configuration.html. A pod does not
# start if the secret lacks one of the first: https://kubernetes.io/docs/concepts/configuration/secret/#restriction-secret-must-exist
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
OPTIONAL_KEYS = ("AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION")
_RUN_THE_MODELS_CODE = ("preflight_training", "train_model", "evaluate_model", "export_model")


def steps_on_s3(config: Config, bucket: str) -> frozenset[str]:
    """Return the steps whose pods read or write s3://; all steps if the bucket is on S3.

    Args:
        config: Configuration of the run, with the model's bundle if it has one.
        bucket: Bucket of the settings. KFP's launcher copies artifacts in the pod of each step.
    """
    if _is_on_s3(bucket):
        return frozenset(STEPS)
    model = [config.training.model, *config.model_files]
    places = {"create_tfrecords": [config.data_location], **{step: [*model] for step in _RUN_THE_MODELS_CODE}}
    places["evaluate_model"].append(config.gate.champion)
    return frozenset(step for step, uris in places.items() if any(map(_is_on_s3, uris)))


def _is_on_s3(uri: str) -> bool:
    return storage.is_remote(uri) and not storage.is_on_google(uri)


def variables_of(secret: str) -> list[dict[str, Any]]:
    """Return the environment variables of a plain Kubernetes pod that read the secret; all keys are optional."""
    return [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
        for key in (*KEYS, *OPTIONAL_KEYS)
    ]


def sign_in(task: Any, secret: str) -> Any:
    """Set a step's environment variables from the secret; returns the step."""
    from kfp import kubernetes

    kubernetes.use_secret_as_env(task, secret, {key: key for key in KEYS})
    return kubernetes.use_secret_as_env(task, secret, {key: key for key in OPTIONAL_KEYS}, optional=True)
