"""The step deploy_model as a KFP component.

`python -m tests.evidence.generated` writes the inputs after `*`, and their entries in `Args:`, from the fields of
DeployParams.
"""

from typing import Any, Dict

from kfp import dsl

from tpu_components.core.base.container_images import LOCAL_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def deploy_model(
    records: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    export: dsl.Input[dsl.Model],
    evaluation: dsl.Input[dsl.Artifact],
    deployment: dsl.Output[dsl.Artifact],
    fingerprint: Dict[str, str] = {},
    *,
    registry: str,
    model_name: str,
    alias: str = "champion",
    health_check_examples: int = 32,
    health_check_tolerance: float = 0.01,
    artifacts_uri: str = "",
    serving_image: str = "",
    endpoint: str = "",
    endpoint_traffic: int = 100,
    endpoint_machine_type: str = "n1-standard-2",
    endpoint_max_replicas: int = 1,
    endpoint_service_account: str = "",
    endpoint_access: str = "public",
    encryption_key: str = "",
    signing_key: str = "",
    verify_key: str = "",
    lineage: Dict[str, Any] = {},
    preflight: Dict[str, Any] = {},
    licence: str = "",
    notes: str = "",
) -> None:
    """Register a model that passed the gate and, after a health check, make it the champion.

    Args:
        records: Records that create_tfrecords wrote.
        model: Model that train_model wrote.
        export: Export that export_model wrote.
        evaluation: Evaluation that evaluate_model wrote.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.
        registry: Registry of the model: a local folder (buckets are not supported), or
            `projects/PROJECT/locations/REGION/models` for Vertex AI's Model Registry. In a configuration, `vertex`
            means Vertex AI's registry in the settings' project and region. If this is empty in a configuration, a local
            run uses the folder `registry` in the workspace, and a compiled pipeline has no step deploy_model. Compiled
            pipelines, including those for Kubeflow, accept only Vertex AI's registry.
        model_name: Name of the model in the registry. Runs with the same model name compete for the model's alias. In a
            configuration, the default is the name of the run.
        alias: Alias to move to the new version.
        health_check_examples: Number of examples that the registered export must predict before the alias moves.
        health_check_tolerance: Largest allowed difference from the predictions in the evaluation, as a probability or,
            for a regression, in standard deviations of the target.
        artifacts_uri: Folder on gs:// for the models and exports of the versions, for a registry on Vertex AI. In a
            configuration, the default is the folder `registry` in the settings' bucket.
        serving_image: Image of the server, for a registry on Vertex AI. The default is the value of
            TPU_PIPELINES_SERVING_IMAGE when the pipeline is compiled.
        endpoint: ID of the endpoint that serves the new version, for a registry on Vertex AI. The endpoint is created
            if it does not exist. If this is empty, the version is not deployed to an endpoint.
        endpoint_traffic: Percentage of the endpoint's requests that the new version gets. The other versions share the
            rest, in the same proportion as before. The first version gets all requests.
        endpoint_machine_type: Machine type of the endpoint.
        endpoint_max_replicas: Largest number of machines that serve the version. While a version is deployed, at least
            one machine runs and costs money.
        endpoint_service_account: Service account of the server. Empty means an account without permissions.
        endpoint_access: Kind of address: with `public`, the endpoint is reached at the service's address; with
            `dedicated`, it has a public address of its own. This cannot be changed after the endpoint is created.
        encryption_key: Customer-managed encryption key (CMEK) for the versions and the endpoint on Vertex AI. In a
            configuration, the default is the settings' key.
        signing_key: Path of the private EC key, in PEM, that signs new versions; local or on gs://. If the key has a
            password, set TPU_PIPELINES_SIGNING_PASSWORD. If this is empty, versions are not signed.
        verify_key: Public key: PEM text, or the path of a PEM file, local or on gs://. The alias moves only if the
            version's signatures are valid. Servers on Vertex AI also verify them. If this is empty, signatures are not
            checked.
        lineage: Additional facts to record with the version, by name. A pipeline passes `run`, `config` and `code`.
        preflight: Output `footprint` of preflight_training, to record with the version: `machine`, `step_ms`,
            `peak_bytes`, `usd_per_hour` and so on. A pipeline passes this value. Otherwise, leave it empty.
        licence: Licence of the model, for the model card: an identifier from SPDX's or Hugging Face's list, for example
            `apache-2.0`. If this is empty, the card states no licence.
        notes: Your text for the model card. It is shown literally. It must not contain two opening braces in a row,
            because pipelines use them for placeholders.

    Returns:
        deployment: Result of the deployment, `deployment.json`: the new version, its alias and its endpoint.
    """
    inputs = dict(locals())
    from tpu_components.core.component.step_record import run_component
    from tpu_components.deploy_model import DeployParams, deploy_model

    folders = ("records", "model", "export", "evaluation", "deployment")
    run_component("deploy_model", deploy_model, DeployParams, inputs, *folders)


class UnmanagedContainerModel(dsl.Artifact):
    """A model with its serving container, in the form that google-cloud-pipeline-components' `ModelUploadOp` takes.

    The type's name and version come from google_cloud_pipeline_components/types/artifact_types.py, release 2.22.
    """

    schema_title = "google.UnmanagedContainerModel"
    schema_version = "0.0.1"


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def make_container_model(
    export: dsl.Input[dsl.Model],
    container_model: dsl.Output[UnmanagedContainerModel],
    serving_image: str,
    fingerprint: Dict[str, str] = {},
) -> None:
    """Turn an export into the artifact that Google's ModelUploadOp takes as `unmanaged_container_model`.

    Args:
        export: Export that export_model wrote. It must contain the float LiteRT file, which the server loads.
        serving_image: Image of the server, in a registry from which Vertex AI can pull. `make image-serving` builds
            this image.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.

    Returns:
        container_model: Copy of the export. Its metadata contain the image, port and routes of the server.
    """
    from tpu_components.core.component.step_record import step_record
    from tpu_components.deploy_model.container_model import copy_with_server

    with step_record("make_container_model", container_model.path):
        container_model.metadata.update(copy_with_server(export.path, container_model.path, serving_image))
