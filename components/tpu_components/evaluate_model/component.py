"""KFP wrapper of evaluate_model."""

from typing import Any, Dict

from kfp import dsl

from tpu_components.core.base.container_images import STEPS_IMAGE, in_place_of_shell
from tpu_components.core.step.step_inputs import with_inputs
from tpu_components.evaluate_model.params import EvaluateParams


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
@with_inputs(EvaluateParams)
def evaluate_model(
    records: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    evaluation: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    classification: dsl.Output[dsl.ClassificationMetrics],
    report: dsl.Output[dsl.HTML],
    fingerprint: Dict[str, str] = {},
    **inputs: Any,
) -> bool:
    """Score a model and the champion on one split; returns the gate's decision.

    The decision is the only unnamed output, because kfp.local can use no other output in a condition.
    """
    inputs = dict(locals())
    import json
    import pathlib
    import shutil

    from tpu_components.core.examples.artifacts import REPORT_FILE
    from tpu_components.core.results.evaluation_info import Evaluation
    from tpu_components.core.step.step_record import run_component
    from tpu_components.evaluate_model import EvaluateParams, evaluate_model

    def show(result: Any) -> bool:
        output = pathlib.Path(evaluation.path)
        scored = Evaluation.load(output)
        for name, value in result.metrics.items():
            metrics.log_metric(name, value)
        # Only classifications with at most 100 classes have a matrix. A Vertex AI task may return 131,072 bytes of
        # JSON, less than a matrix of 200 classes.
        if matrix := scored.challenger.get("confusion_matrix"):
            classification.log_confusion_matrix(list(scored.class_names), matrix)
        if points := scored.challenger.get("roc"):
            classification.log_roc_curve(
                *([point[k] for point in points] for k in ("false_positive_rate", "true_positive_rate", "threshold"))
            )
        shutil.copyfile(output / REPORT_FILE, report.path)
        # kfp.local takes an artifact without a file for one that was deleted, and would run the step again.
        for artifact in (metrics, classification):
            pathlib.Path(artifact.path).write_text(json.dumps(artifact.metadata))
        evaluation.metadata.update({"promote": result.promote, "reasons": [str(rule) for rule in result.reasons]})
        return result.promote

    folders = ("records", "model", "evaluation")
    return run_component("evaluate_model", evaluate_model, EvaluateParams, inputs, *folders, then=show)


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def mark_promoted(model: dsl.Input[dsl.Model]) -> None:
    """Do nothing. The step runs only if the gate promotes the model: platforms show which steps ran, not outputs."""
