"""Registers a version in Vertex AI's Model Registry and deploys it to an endpoint.

All operations are idempotent.

A response may be lost, and the process may be killed after any call. Therefore, every object can be found again by a
name that is derived from its content: the ID of a model, an endpoint or a deployment, or the label of a version. An
object is created only if the service does not have it yet.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np

from tpu_components.core.base.container_images import load_images
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, ExistsError, MissingError, OutageError
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.files.vertex_clients import types
from tpu_components.core.registry.folder import fill_version
from tpu_components.core.registry.reference import EXPORT_DIR, SIGNATURE_FILE, as_label
from tpu_components.core.registry.signing import public_key_text
from tpu_components.core.registry.versions import (
    CARD_FILE,
    RegisteredVersion,
    VersionFacts,
    check_promotable,
    describe_file,
    model_digest,
    short_digest,
    version_digest,
)
from tpu_components.core.registry.vertex import (
    DIGEST_LABEL,
    MODEL_LABEL,
    PARENT_LABEL,
    VertexRegistry,
    VertexVersion,
    turn_label,
)
from tpu_components.deploy_model.endpoint_access import check_access
from tpu_components.deploy_model.health_check import HealthCheck
from tpu_components.deploy_model.params import DEDICATED, DeployParams
from tpu_components.serving.params import VERIFY_VARIABLE, ServeParams

T = TypeVar("T")
_MODELS, _ENDPOINTS = "ModelService", "EndpointService"
_DESCRIPTION_LENGTH = 1000
_PREDICTION_SECONDS = 120
# It is not documented how long a traffic change takes. Until it takes effect, the endpoint uses the old split, or fails
# with "doesn't have traffic_split" (github.com/GoogleCloudPlatform/explainable_ai_sdk/issues/3).
_ROUTING_SECONDS = 600
_NO_TRAFFIC = "traffic_split"
_TRIAL_SHARE = 50  # Percentage of the candidate endpoint's requests for a version; usually there is only one.
_SURE_REQUESTS = 500  # With a share of 1%, one of 150 deployments gets none of these requests.


class VertexTarget:
    """Registers and serves the versions of one model.

    Args:
        params: Registry, artifacts folder and endpoint.
        registry: Registry of the model.

    Raises:
        InputError: If `params.artifacts_uri` is missing.
    """

    def __init__(self, params: DeployParams, registry: VertexRegistry) -> None:
        if not params.artifacts_uri:
            raise InputError(
                "Cannot register on Vertex AI without a folder for the versions' files. Set artifacts_uri=gs://BUCKET/…"
            )
        self._params = params
        self._registry = registry

    # Registering

    def register(self, model_dir: Path, export_dir: Path, **facts: Unpack[VersionFacts]) -> VertexVersion:
        """Add a version. If a version has this content already, return that version.

        The arguments are the same as in `ModelRegistry.register`.

        If the content was uploaded twice, at the same time or after a lost response, the version that has an alias is
        kept or, if neither has one, the older version.

        Raises:
            InputError: If the service or the bucket rejects the request.
        """
        registry = self._registry
        digest = version_digest(model_dir, export_dir)
        store = functools.cache(lambda: self._store(digest, model_dir, export_dir, facts))

        def find() -> VertexVersion | None:
            versions = registry.versions(DIGEST_LABEL, as_label(digest))
            return self._settle(versions) if versions else None

        return self._ensure(find, lambda: self._upload(store(), digest, model_digest(model_dir), facts), registry.name)

    def _ensure(self, find: Callable[[], T | None], create: Callable[[], None], name: str, hint: str = "") -> T:
        """Return the result of `find`. If it is None, call `create`, then `find` again.

        Transient errors are retried.
        """

        def attempt() -> T:
            if (resource := find()) is not None:
                return resource
            with contextlib.suppress(ExistsError):  # Created by another run, or by a call whose response was lost.
                create()
            if (resource := find()) is None:
                raise OutageError(f"{name} was created, but the service does not list it yet{hint}.")
            return resource

        return self._registry.backoff(attempt)

    @property
    def _encryption(self) -> dict[str, Any]:
        key = self._params.encryption_key
        return {"encryption_spec": {"kms_key_name": key}} if key else {}

    def _store(self, digest: str, model_dir: Path, export_dir: Path, facts: VersionFacts) -> Location:
        """Copy a version's files to the artifacts folder. Return their URI, which is derived from the content.

        For a signed version, the URI also contains a digest of the signature, so that two concurrent writers do not mix
        their files.
        """
        uri = Location(self._params.artifacts_uri).child(f"{self._registry.model_name}/{digest[:32]}")
        with tempfile.TemporaryDirectory(prefix="version-") as folder:
            name, key = self._registry.model_name, self._params.signing_key
            fill_version(Path(folder), model_dir, export_dir, name, key, **facts)
            if key:
                uri = Location(f"{uri}-{describe_file(Path(folder) / SIGNATURE_FILE)['sha256'][:8]}")
            storage.upload(Path(folder), uri)
        return uri

    def _upload(self, uri: str, digest: str, model: str, facts: VersionFacts) -> None:
        """Add a version, or a model with its first version.

        https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.models/upload
        """
        registry = self._registry
        lineage = facts["lineage"]
        serving = ServeParams()
        key = public_key_text(self._params.verify_key)
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in facts["metrics"].items())
        described = f"{metrics}; {'; '.join(facts['reasons'])}"
        if facts.get("card"):
            described = f"{uri}/{CARD_FILE}; {described}"
        # Always set all labels: a version inherits missing labels from the model.
        labels = {
            DIGEST_LABEL: as_label(digest),
            MODEL_LABEL: as_label(model),
            PARENT_LABEL: facts.get("parent", ""),
            "tpu_pipelines_data": as_label(lineage.get("dataset", {}).get("fingerprint", "")),
            "tpu_pipelines_run": re.sub(r"[^a-z0-9_-]", "-", str(lineage.get("run", "")).lower())[:63],
            "tpu_pipelines_code": short_digest(lineage.get("code")),
            "tpu_pipelines_config": short_digest(lineage.get("config")),
        }
        exists = bool(registry.versions())
        if exists:
            labels[turn_label(self._params.alias)] = ""
        request = {
            "parent": registry.parent,
            "parent_model": registry.name if exists else "",
            "model_id": "" if exists else registry.model_name,
            "model": {
                "display_name": registry.model_name,
                "version_description": described[:_DESCRIPTION_LENGTH],
                "artifact_uri": f"{uri}/{EXPORT_DIR}",
                "container_spec": {
                    "image_uri": self._params.serving_image or load_images(os.environ).serving,
                    "predict_route": serving.predict_route,
                    "health_route": serving.health_route,
                    "ports": [{"container_port": serving.port}],
                    "env": [{"name": VERIFY_VARIABLE, "value": key}] if key else [],
                },
                "labels": labels,
                **self._encryption,
            },
        }
        registry.operate(_MODELS, "upload_model", request)

    def _settle(self, versions: Sequence[VertexVersion]) -> VertexVersion:
        """Delete surplus versions of the same content, and return the first version that is kept.

        The versions with an alias are kept. If none has an alias, the oldest version is kept.
        """
        kept = next((version for version in versions if version.aliases), versions[0])
        for version in versions:
            if version.number != kept.number and not version.aliases:
                with contextlib.suppress(InputError):  # Already deleted, or deployed by another process.
                    self._registry.operate(
                        _MODELS, "delete_model_version", {"name": f"{self._registry.name}@{version.number}"}
                    )
        return kept

    # Serving

    @contextlib.contextmanager
    def serving(self, version: RegisteredVersion, check: HealthCheck, champion: str | None) -> Iterator[str]:
        """Context manager: deploy the version to the configured endpoint. If the `with` block fails, roll back.

        1. Deploy the version to a separate candidate endpoint, which has no users, and run the health check.
        2. Deploy the version to the configured endpoint, at first without traffic. Then give the version its share of
           the traffic.
        3. Run the health check on the configured endpoint, using only responses of this version.

        If step 2, step 3 or the block fails, the traffic is restored and the version is undeployed. After the block
        succeeds, the model's versions that get no traffic are undeployed.

        Yield the name of the configured endpoint. If none is configured, deploy nothing and yield an empty string.

        Args:
            version: Version to deploy. Nothing is deployed if the alias may not move to this version.
            check: Health check of the version's predictions.
            champion: Digest of the champion with which the model was compared. Empty if there was no champion. None if
                the evaluation did not look for the champion in a registry.

        Raises:
            PlatformError: If the version does not respond, or if its predictions differ from those of the evaluation.
            InputError: If the service rejects a request, or the alias has moved since the comparison.
        """
        if not self._params.endpoint:
            yield ""
            return
        check_promotable(self._registry, version.number, self._params.alias, champion)
        endpoint = self._require_endpoint(self._params.endpoint)
        known = self._find_deployed(endpoint, version)
        before = dict(self._get(endpoint).traffic_split)
        if not before.get(known):
            self._try_apart(version, check)
        deployed = self._deploy(endpoint, version)
        after = give_share(before, deployed, self._params.endpoint_traffic)
        try:
            self._route(endpoint, lambda split: give_share(split, deployed, self._params.endpoint_traffic))
            check(lambda _: self._predict(endpoint, deployed, check, after[deployed]))
            yield endpoint
        except Exception:
            self._withdraw(endpoint, deployed, before, after)
            raise
        self._retire(endpoint)

    def _try_apart(self, version: RegisteredVersion, check: HealthCheck) -> None:
        """Run the health check on the candidate endpoint, which has no users.

        A separate endpoint is needed, because a request to an endpoint cannot choose a version.

        The candidate endpoint is kept for the next version: without a deployment it is free, and the ID of a deleted
        endpoint cannot be reused for days.
        """
        endpoint = self._require_endpoint(f"{self._params.endpoint}-candidate")
        for is_last in (False, True):
            try:
                deployed = self._deploy(endpoint, version)
                self._route(endpoint, lambda split: give_share(split, deployed, _TRIAL_SHARE))  # noqa: B023 (called now)
                check(lambda _: self._predict(endpoint, deployed, check, _TRIAL_SHARE))  # noqa: B023
                return
            except MissingError:  # Another run of this model has undeployed the version.
                if is_last:
                    raise
            finally:
                if left := self._find_deployed(endpoint, version):
                    self._undeploy(endpoint, left)

    def _withdraw(self, endpoint: str, deployed: str, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Undeploy a version from an endpoint and return its traffic to the other versions."""

        def restore(split: Mapping[str, int]) -> dict[str, int]:
            # Restore the previous split, unless it was changed meanwhile.
            rest = {key: share for key, share in (before if split == after else split).items() if key != deployed}
            if not any(rest.values()):  # A killed attempt had all traffic: give it to the champion.
                champion = self._registry.find(self._params.alias)
                rest = {self._find_deployed(endpoint, champion): 100} if champion else {}
                rest = {key: share for key, share in rest.items() if key not in ("", deployed)}
            return scale(rest, 100)

        self._route(endpoint, restore)
        self._undeploy(endpoint, deployed)

    def _retire(self, endpoint: str) -> None:
        """Undeploy the versions of this model that get no traffic, because they cost as much as the others."""
        current = self._get(endpoint)
        for model in current.deployed_models:
            if self._is_ours(model) and not current.traffic_split.get(model.id):
                self._undeploy(endpoint, model.id)

    def _require_endpoint(self, endpoint_id: str) -> str:
        """Return the resource name of an endpoint. The endpoint is created if it is missing."""
        registry = self._registry
        name = f"{registry.parent}/endpoints/{endpoint_id}"
        request = {
            "parent": registry.parent,
            "endpoint_id": endpoint_id,
            "endpoint": {
                "display_name": endpoint_id,
                "labels": {"tpu_pipelines_model": registry.model_name},
                "dedicated_endpoint_enabled": self._params.endpoint_access == DEDICATED,
                **self._encryption,
            },
        }

        def find() -> str | None:
            with contextlib.suppress(MissingError):
                check_access(registry.service.call(_ENDPOINTS, "get_endpoint", {"name": name}), self._params)
                return name
            return None

        hint = ", or it was deleted: in that case, its name can be used again after at most seven days"
        return self._ensure(find, lambda: registry.operate(_ENDPOINTS, "create_endpoint", request), name, hint)

    def _get(self, endpoint: str) -> Any:
        return self._registry.call(_ENDPOINTS, "get_endpoint", {"name": endpoint})

    def _is_ours(self, deployed: Any) -> bool:
        return deployed.model.partition("@")[0].rpartition("/")[2] == self._registry.model_name

    def _find_deployed(self, endpoint: str, version: RegisteredVersion) -> str:
        """Return the ID of a version's deployment on an endpoint, or an empty string if it is not deployed."""
        for model in self._get(endpoint).deployed_models:
            if self._is_ours(model) and model.model_version_id == version.number:
                return model.id
        return ""

    def _deploy(self, endpoint: str, version: RegisteredVersion) -> str:
        """Deploy a version to an endpoint, without traffic, unless it is already deployed. Return the deployment ID.

        https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.endpoints/deployModel
        """
        registry, params = self._registry, self._params
        request = {
            "endpoint": endpoint,
            "deployed_model": {
                # A repeated call does not create a second deployment.
                "id": _deployed_id(endpoint, registry.model_name, version.number),
                "display_name": f"{registry.model_name}-{version.number}",
                "model": f"{registry.name}@{version.number}",
                "service_account": params.endpoint_service_account,
                "dedicated_resources": {
                    "machine_spec": {"machine_type": params.endpoint_machine_type},
                    "min_replica_count": 1,
                    "max_replica_count": params.endpoint_max_replicas,
                },
            },
        }

        name = f"{registry.name}@{version.number} on {endpoint}"
        return self._ensure(
            lambda: self._find_deployed(endpoint, version) or None,
            lambda: registry.operate(_ENDPOINTS, "deploy_model", request),
            name,
        )

    def _undeploy(self, endpoint: str, deployed: str) -> None:
        split = {key: share for key, share in self._get(endpoint).traffic_split.items() if key != deployed and share}
        request = {"endpoint": endpoint, "deployed_model_id": deployed, "traffic_split": scale(split, 100)}
        with contextlib.suppress(MissingError):  # An earlier call may have succeeded, with its response lost.
            self._registry.backoff(lambda: self._registry.operate(_ENDPOINTS, "undeploy_model", request))

    def _route(self, endpoint: str, change: Callable[[dict[str, int]], Mapping[str, int]]) -> None:
        """Change an endpoint's traffic split.

        If another client changes the split at the same time, which the etag shows, the change is retried.
        """
        registry = self._registry

        def update() -> None:
            current = registry.service.call(_ENDPOINTS, "get_endpoint", {"name": endpoint})
            split = dict(current.traffic_split)
            if (wanted := dict(change(split))) == split:
                return
            if gone := set(wanted) - {deployed.id for deployed in current.deployed_models}:
                raise MissingError(
                    f"{endpoint} no longer has {', '.join(gone)}: another run has undeployed it. Run "
                    "deploy_model again."
                )
            changed = {"name": endpoint, "traffic_split": wanted, "etag": current.etag}
            request = {"endpoint": changed, "update_mask": {"paths": ["traffic_split"]}}
            try:
                registry.service.call(_ENDPOINTS, "update_endpoint", request)
            except ExistsError as error:
                raise OutageError(
                    f"Cannot change {endpoint} now: another client changed it at the same time."
                ) from error

        registry.backoff(update)

    def _predict(self, endpoint: str, deployed: str, check: HealthCheck, share: int = 100) -> dict[int, np.ndarray]:
        """Send the examples to an endpoint, and return the predictions of one of its deployments.

        The predictions are float64[outputs], by the position of the example. Examples that other deployments answered
        are missing. The examples are sent again until the deployment has answered at least one of them.

        Args:
            endpoint: Resource name of the endpoint.
            deployed: ID of the deployment.
            check: Health check with the examples and the name of the output in a response.
            share: Percentage of the endpoint's requests that the deployment gets.
        """
        examples = list(enumerate(check.instances))

        def ask_all() -> dict[int, np.ndarray]:
            current = self._get(endpoint)
            if deployed not in {model.id for model in current.deployed_models}:
                raise MissingError(
                    f"{endpoint} no longer has {deployed}: another run has undeployed it. Run deploy_model again."
                )
            address = current.dedicated_endpoint_dns
            if current.dedicated_endpoint_enabled and not address:
                raise OutageError(f"The dedicated address of the endpoint {endpoint} does not exist yet.")
            outputs: dict[int, np.ndarray] = {}
            for turn in range(max(len(examples), _SURE_REQUESTS // share)):
                if outputs and turn >= len(examples):
                    break
                position, instance = examples[turn % len(examples)]
                answer = self._ask(endpoint, instance, check, address)
                if answer and answer[0] == deployed:
                    outputs[position] = answer[1]
            if not outputs:
                raise OutageError(f"{endpoint} does not send requests to the deployment {deployed} yet.")
            return outputs

        return self._patient(_ROUTING_SECONDS)(ask_all)

    def _ask(self, endpoint: str, instance: Any, check: HealthCheck, address: str) -> tuple[str, np.ndarray] | None:
        """Send an example to an endpoint. Return the ID of the deployed model that answered, and float64[outputs].

        Return None if no deployment has traffic yet.
        """
        request = types().PredictRequest.from_json(json.dumps({"endpoint": endpoint, "instances": [instance]}))
        call = partial(self._registry.service.predict, request, address)
        try:
            response = self._patient(_PREDICTION_SECONDS)(call)  # Bounded: constant failures are not transient.
            (prediction,) = response.predictions
            numbers = prediction[check.output_name]
            return response.deployed_model_id, np.array([numbers[name] for name in check.class_names], np.float64)
        except MissingError:
            raise
        except (InputError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError) and _NO_TRAFFIC in str(error):
                return None
            raise RuntimeError(f"the response of {endpoint} is not in the serving image's format: {error!r}") from error

    def _patient(self, seconds: float) -> Backoff:
        """Return the registry's retry policy, limited to a number of seconds."""
        backoff = self._registry.backoff
        return dataclasses.replace(backoff, patience_seconds=min(seconds, backoff.patience_seconds))


def give_share(split: Mapping[str, int], deployed: str, percent: int) -> dict[str, int]:
    """Return a traffic split with `percent` for a deployment. The other deployments share the rest in proportion.

    Example:
        >>> give_share({"1": 70, "2": 30}, "3", 10)
        {'1': 63, '2': 27, '3': 10}
        >>> give_share({}, "3", 10)
        {'3': 100}
    """
    others = scale({key: share for key, share in split.items() if key != deployed}, 100 - percent)
    return {**others, deployed: 100 - sum(others.values())}


def scale(split: Mapping[str, int], total: int) -> dict[str, int]:
    """Scale shares to whole numbers that add up to `total`. Shares of zero are dropped.

    Example:
        >>> scale({"1": 50, "2": 25, "3": 25}, 99), scale({"1": 100}, 0), scale({}, 100)
        ({'1': 49, '2': 25, '3': 25}, {}, {})
    """
    whole = sum(split.values())
    if not whole:
        return {}
    scaled = {key: share * total // whole for key, share in split.items()}
    by_remainder = sorted(split, key=lambda key: -(split[key] * total % whole))
    for key in by_remainder[: total - sum(scaled.values())]:
        scaled[key] += 1
    return {key: share for key, share in scaled.items() if share}


def _deployed_id(endpoint: str, model_name: str, number: str) -> str:
    """Return a deployment ID derived from the version. It has ten digits, the maximum."""
    digest = hashlib.sha256(f"{endpoint.rpartition('/')[2]} {model_name}@{number}".encode()).hexdigest()
    return str(10**9 + int(digest, 16) % (9 * 10**9))
