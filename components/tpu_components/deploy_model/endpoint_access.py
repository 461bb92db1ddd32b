"""Checks that deploy_model supports an existing endpoint on Vertex AI.

https://cloud.google.com/vertex-ai/docs/predictions/choose-endpoint-type names four types: public with the service's
address, public with a dedicated address, private by Private Service Connect, and peered with a network. Only the public
types are supported, because the step sends requests to the endpoint in its health check.
"""

import shlex
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.deploy_model.params import DEDICATED, PUBLIC, DeployParams


def check_access(endpoint: Any, params: DeployParams) -> None:
    """Check that an existing endpoint has the access type of the parameters. The type cannot be changed.

    Raises:
        InputError: If the endpoint is private, or its access type differs from that of the parameters.
    """
    if endpoint.network or endpoint.private_service_connect_config.enable_private_service_connect:
        _, project, _, region, _, name = endpoint.name.split("/")
        command = (
            *("gcloud", "ai", "endpoints", "deploy-model", name, f"--project={project}", f"--region={region}"),
            *(f"--model={params.model_name}", f"--display-name={params.model_name}", "--traffic-split=0=100"),
        )
        raise InputError(
            f"Cannot deploy to {endpoint.name}: it is a private endpoint, and only public endpoints are supported. "
            "Leave deploy.endpoint out, and deploy the registered version with Google's command: "
            f"{shlex.join(command)}"
        )
    received = DEDICATED if endpoint.dedicated_endpoint_enabled else PUBLIC
    if received != params.endpoint_access:
        raise InputError(
            f"Cannot deploy to {endpoint.name}: the existing endpoint is {received}, expected "
            f"{params.endpoint_access}. The access of an endpoint cannot be changed. Set deploy.endpoint to another "
            f"name, or set deploy.endpoint_access={received}."
        )
