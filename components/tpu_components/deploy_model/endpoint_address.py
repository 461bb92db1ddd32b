"""Network access of an endpoint on Vertex AI: public (shared address), dedicated (own address) or private.

https://cloud.google.com/vertex-ai/docs/predictions/choose-endpoint-type. The fourth type, with VPC network peering, is
not supported: it has one model and no traffic split, so a version would replace the champion before its health check.
"""

from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import OutageError
from tpu_components.deploy_model.params import DEDICATED, PRIVATE, PUBLIC, DeployParams


def endpoint_fields(params: DeployParams, project: str) -> dict[str, Any]:
    """Return the fields for creating an endpoint with the access type of the parameters.

    Args:
        params: Access type, network and projects.
        project: Project of the endpoint; it always has access.
    """
    if params.endpoint_access == DEDICATED:
        return {"dedicated_endpoint_enabled": True}
    if params.endpoint_access == PRIVATE:
        owner = params.endpoint_network.split("/")[1]
        config = {
            "enable_private_service_connect": True,
            "project_allowlist": sorted({project, owner, *params.endpoint_projects}),
            "psc_automation_configs": [{"project_id": owner, "network": params.endpoint_network}],
        }
        return {"private_service_connect_config": config}
    return {}


def access_of(endpoint: Any) -> str:
    """Return the access type of an endpoint: `public`, `dedicated`, `private` or `peered with a network`."""
    if endpoint.private_service_connect_config.enable_private_service_connect:
        return PRIVATE
    if endpoint.network:
        return "peered with a network"
    return DEDICATED if endpoint.dedicated_endpoint_enabled else PUBLIC


def check_access(endpoint: Any, params: DeployParams, project: str) -> None:
    """Check that an existing endpoint has the access type of the parameters: an endpoint's type cannot be changed.

    Raises:
        InputError: If the access type differs.
    """
    received = access_of(endpoint)
    wanted = params.endpoint_access
    if received == PRIVATE == wanted:
        config = endpoint.private_service_connect_config
        fields = endpoint_fields(params, project)
        asked = fields["private_service_connect_config"]
        networks = {automated.network for automated in config.psc_automation_configs}
        if lacking := sorted(
            {*asked["project_allowlist"], params.endpoint_network} - {*config.project_allowlist, *networks}
        ):
            received = f"private without {', '.join(lacking)}"
            wanted = "private with them"
    if received != wanted:
        raise InputError(
            f"Cannot deploy to {endpoint.name}: it is there already and {received}, expected {wanted}, and an endpoint "
            "stays as it was created. Name another deploy.endpoint, or set deploy.endpoint_access to what it is."
        )


def address_of(endpoint: Any, network: str) -> str:
    """Return the address for requests to an endpoint; empty for a public endpoint, which has the service's address.

    Args:
        endpoint: Endpoint from the service. A private endpoint has an address only while a model is deployed to it.
        network: Network of the client, for a private endpoint.

    Raises:
        OutageError: If the endpoint has no address yet.
        InputError: If the service could not create an address.
    """
    access = access_of(endpoint)
    if access == PUBLIC:
        return ""
    address: str = endpoint.dedicated_endpoint_dns
    if access == PRIVATE:
        configs = endpoint.private_service_connect_config.psc_automation_configs
        config = next(entry for entry in configs if entry.network == network)
        if config.error_message:
            raise InputError(
                f"{endpoint.name} got no address in {network}: {config.error_message}. Ask whoever administers that "
                f"network for `gcloud network-connectivity service-connection-policies create NAME --network={network} "
                "--service-class=gcp-vertexai --region=REGION --subnets=SUBNET`, and run again."
            )
        address = config.ip_address
    if not address:
        raise OutageError(f"{endpoint.name} has no address of its own yet.")
    return address
