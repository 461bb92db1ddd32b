"""The steps of the pipeline in a table: artifact, folder of a run, section of the configuration."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the pipeline; `training_pipeline` connects the steps.

    Attributes:
        artifact: Name of the component's output that a run publishes.
        folder: Folder for the artifact in a run's folder.
        section: Section of the configuration with its parameters; without the section the step is left out.
        reads: Earlier steps whose artifacts it reads.
        needs_promotion: Whether it runs only if the gate promotes the model.
    """

    artifact: str
    folder: str
    section: str
    reads: tuple[str, ...] = ()
    needs_promotion: bool = False


STEP_TABLE = {
    "create_tfrecords": Step("records", "records", "data"),
    "preflight_training": Step("preflight", "preflight", "preflight", ("create_tfrecords",)),
    "train_model": Step("trained", "model", "training", ("create_tfrecords",)),
    "evaluate_model": Step("evaluation", "evaluation", "gate", ("train_model",)),
    "export_model": Step("exported", "export", "export", ("train_model",), needs_promotion=True),
    "deploy_model": Step("deployment", "deployment", "deploy", ("evaluate_model", "export_model"), True),
}
STEPS = tuple(STEP_TABLE)
