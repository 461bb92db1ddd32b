"""The export registered as a version, and the champion's alias moved to it once it has answered."""

from tpu_components.deploy_model.deploying import deploy_model
from tpu_components.deploy_model.params import DeployParams, DeployResult

__all__ = ["DeployParams", "DeployResult", "deploy_model"]
