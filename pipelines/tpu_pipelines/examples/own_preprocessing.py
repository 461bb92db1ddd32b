"""A pipeline with custom preprocessing, followed by this package's steps: records, training, evaluation and export."""

from typing import Any

from kfp import dsl

import tpu_pipelines as tp
from tpu_components.kfp import Components, on_current_data, with_images


# Your own image, with the packages that your code needs. By default, KFP would install itself when the step starts.
@dsl.component(base_image="us-docker.pkg.dev/my-project/images/preprocessing:1", install_kfp_package=False)
def prepare(images: dsl.Output[dsl.Dataset], brightest: int = 16) -> str:
    """Scale the pixels of scikit-learn's digits to whole numbers from 0 to 255, and write the images to a file.

    Args:
        brightest: Value of a white pixel before scaling.

    Returns:
        images: The file `digits.npz`.
        Output: `npz:` and the URI of the file: the value for the parameter `source` of create_tfrecords.
    """
    import os

    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images / brightest * 255).astype(np.uint8)
    os.makedirs(images.path)
    np.savez(f"{images.path}/digits.npz", images=pixels, labels=digits.target)
    return f"npz:{images.uri}/digits.npz"


def make_pipeline(platform: str, image: str = "", machine: Any = "v5e-4") -> Any:
    """Return the pipeline for a platform.

    Args:
        platform: `vertex`, `kubeflow`, or `local` for a run with kfp.local.
        image: This package's image in your registry, named by digest. Not needed for `local`.
        machine: Machine that runs the training; see `tp.on_machine`.
    """
    steps = with_images(image) if image else Components()
    write_records = on_current_data(steps.create_tfrecords)
    train_model = tp.on_machine(steps.train_model, machine, platform=platform)

    @dsl.pipeline(name="own-preprocessing")
    def pipeline(epochs: int = 20) -> None:
        prepared = prepare()
        records = write_records(source=prepared.outputs["Output"]).outputs["records"]
        trained = train_model(
            records=records, model="digits_cnn", epochs=epochs, batch_size_per_replica=32, learning_rate=0.005
        ).outputs["trained"]
        evaluated = steps.evaluate_model(records=records, model=trained, minimum={"accuracy": 0.9})
        with dsl.If(evaluated.outputs["Output"] == True, name="passed"):  # noqa: E712 (KFP overloads ==)
            steps.export_model(records=records, model=trained)

    return pipeline
