"""The step evaluate_model as a KFP component.

`python -m tests.evidence.generated` writes the inputs after `*`, and their entries in `Args:`, from the fields of
EvaluateParams.
"""

from typing import Any, Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import LOCAL_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def evaluate_model(
    records: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    evaluation: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    classification: dsl.Output[dsl.ClassificationMetrics],
    report: dsl.Output[dsl.HTML],
    fingerprint: Dict[str, str] = {},
    *,
    champion: str = "",
    minimum: Dict[str, float] = {},
    maximum: Dict[str, float] = {},
    max_regression: Dict[str, float] = {"accuracy": 0.0},
    confidence: float = 0.95,
    test_decisions: int = 1,
    bound_confidence: float = 0.5,
    slices: List[str] = ["class"],
    slice_minimum: float = 0.0,
    max_slice_regression: float = 0.05,
    beat_baseline: bool = True,
    split: str = "test",
    top_k: int = 5,
    batch_size_per_replica: int = 256,
    backend: str = "auto",
    accelerator: str = "auto",
    num_replicas: int = 0,
    num_pictures: int = 60,
    prediction: Dict[str, Any] = {},
) -> bool:
    """Score a model and the champion on one split. Return the gate's decision.

    The decision is the only unnamed output, because kfp.local cannot use named outputs in a condition.

    Args:
        records: Records that create_tfrecords wrote.
        model: Model that train_model wrote.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.
        champion: Model to beat: a folder that train_model wrote, local or on gs://, or a version in a registry,
            `REGISTRY/MODEL@champion` or `REGISTRY/MODEL@0001`. REGISTRY is a local folder, or
            `projects/PROJECT/locations/REGION/models` on Vertex AI. Empty means none. In a configuration, empty means
            the champion in the registry of the deploy section, if there is one.
        minimum: Lowest allowed value of each metric for which higher is better, such as {"accuracy": 0.97}.
        maximum: Highest allowed value of each metric for which lower is better, such as {"loss": 0.5}.
        max_regression: Margin by which each metric may be worse than the champion's. With 0, the metric must be better.
            In both cases, the difference is tested at the confidence level `confidence`. With a margin above 0 and a
            registry, the model is also compared with the best model that was ever promoted and not rolled back. In a
            configuration, the default is 0 for the main metric of the task: accuracy, micro_f1 for multi-label data, r2
            for a regression, bits_per_character for a language model. Without a configuration, the default is
            {"accuracy": 0.0}; for a task without accuracy, it is 0 for the main metric.
        confidence: Confidence level of the comparison with the champion, at least 0.5. With 0.95, at most about 5% of
            the models that are not better are promoted. If there is a margin, this applies to models that are worse by
            the margin. With 0.5, there is no significance test: the measured values are compared, and a tie is
            promoted.
        test_decisions: Number of decisions on one test set that share the error rate, 1 - `confidence`. For example,
            with a confidence of 0.95, 52 decisions and weekly retraining, there is a false promotion in at most one of
            twenty years. With 1, every decision may use the full error rate. Decisions are counted in the registry of
            the champion.
        bound_confidence: Confidence level of `minimum` and `maximum`. With 0.95, at most about one in twenty models
            whose true value is equal to the bound passes. With 0.5, the measured value is compared with the bound. The
            gate's reason gives the p-value: how likely a measured value at least this far from the bound is if the true
            value is equal to the bound.
        slices: Properties that divide the examples into slices. Slices are judged separately, so that a better mean
            does not hide a slice that became worse. The properties are `class` (for multi-label data, each label),
            `length` of texts, `size` of images (number of pixels in the file), and the columns of `data.slice_columns`.
            Lengths and sizes are divided into quarters.
        slice_minimum: Lowest allowed accuracy of every slice, or F1 for multi-label data. A slice fails if its value is
            significantly lower. Not available for a regression or a language model.
        max_slice_regression: Margin by which the accuracy of each slice (or F1 for multi-label data, or the loss of a
            regression) may be worse than the champion's. A slice fails if its value is significantly worse than the
            champion's by more than the margin.
        beat_baseline: Reject a model that is not significantly better than the best constant prediction: the most
            frequent class, the best set of labels, the mean, or the frequency of every character.
        split: The split to score.
        top_k: A prediction counts as correct in top_k_accuracy if the true class is among the `top_k` most probable
            classes.
        batch_size_per_replica: Examples per replica and step. This number affects speed and memory. It changes metrics
            only by rounding, because kernels for other sizes may add numbers in another order. The number of replicas
            does not change the metrics.
        backend: `tensorflow`, `jax`, or `auto`: jax if a TPU or GPU is requested, otherwise tensorflow.
        accelerator: `cpu`, `gpu`, `tpu` or `auto`. On a platform, `auto` is the accelerator of
            `resources.evaluate_model.machine`. Elsewhere it is a GPU if the backend sees one, otherwise the CPU.
        num_replicas: Number of devices. 0 uses all devices, or one on a CPU.
        num_pictures: Number of wrong predictions that the report shows.
        prediction: Output `prediction` of preflight_training. The report compares it with the measurements of training.
            Empty means none.

    Returns:
        evaluation: Folder with `evaluation.json`, `report.html` and the scored examples.
        metrics: Metrics of the model, which platforms show and compare.
        classification: Confusion matrix for at most 100 classes, and ROC curve for two classes. Platforms draw both.
        report: Report of the evaluation as an HTML page.
        Output: Whether the gate promotes the model.
    """
    inputs = dict(locals())
    import json
    import pathlib
    import shutil

    from tpu_components.core.component.step_record import run_component
    from tpu_components.core.examples.artifacts import REPORT_FILE
    from tpu_components.core.results.evaluation_info import Evaluation
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
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def mark_promoted(model: dsl.Input[dsl.Model]) -> None:
    """Do nothing. This step runs only if the gate promotes the model.

    It is needed because platforms show which steps ran, but not their outputs.

    Args:
        model: Model that the gate has promoted.
    """
