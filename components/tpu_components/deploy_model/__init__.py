"""Registers an export as a version and, after a health check, moves the champion's alias to this version."""

from tpu_components.deploy_model.deploying import deploy_model
from tpu_components.deploy_model.params import DeployParams, DeployResult

__all__ = ["DeployParams", "DeployResult", "deploy_model"]
