"""The steps of the pipeline in a table: artifact, folder of a run, section of the configuration."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Step:
    """A step as every way to run the pipeline must know it; how it is wired stands in `training_pipeline`.

    Attributes:
        artifact: Output of its component that a run publishes.
        folder: Folder of a run that gets it.
        section: Section of the configuration with its parameters; without that the step is left out.
        reads: Steps, earlier in the table, whose artifacts it reads.
        needs_promotion: Whether it runs only where the gate says yes.
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
