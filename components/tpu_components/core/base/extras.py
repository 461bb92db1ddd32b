"""The extras of this project's package, such as `local` in `pip install 'tpu-pipelines[local]'`."""

# Keys: packages that are imported at their first use. Values: the smallest extra that installs each.
EXTRAS = {
    "ai_edge_litert": "serving",
    "boto3": "s3",
    "docker": "local",
    "google.cloud.aiplatform_v1": "vertex",
    "huggingface_hub": "huggingface",
    "jax": "compiler",
    "keras": "local",
    "kfp": "local",
    "kfp.kubernetes": "kubeflow",
    "kfp_server_api": "kubeflow",
    "kubernetes": "kubeflow",
    "libtpu": "compiler",
    "matplotlib": "local",
    "model_signing": "serving",
    "prometheus_client": "serving",
    "pyarrow": "parquet",
    "pydantic_core": "serving",
    "starlette": "serving",
    "tensorboard": "local",
    "tensorflow": "local",
    "uvicorn": "serving",
}


def advice_for(module: str | None) -> str:
    """Return an error message that names the extra to install for a module.

    Return an empty string if no extra installs the module.

    Example:
        >>> advice_for("keras.layers")
        "The library keras is not installed. Run: pip install 'tpu-pipelines[local]'."
        >>> advice_for("a_module_of_the_user")
        ''
    """
    name = module or ""
    while name and name not in EXTRAS:
        name = name.rpartition(".")[0]
    if not name:
        return ""
    return f"The library {name} is not installed. Run: pip install 'tpu-pipelines[{EXTRAS[name]}]'."
