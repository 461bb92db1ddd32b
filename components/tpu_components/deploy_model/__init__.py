"""Registers an exported model as a new version and, after a health check, makes this version the champion."""

from tpu_components.deploy_model.deploying import deploy_model
from tpu_components.deploy_model.params import DeployParams, DeployResult

__all__ = ["DeployParams", "DeployResult", "deploy_model"]
