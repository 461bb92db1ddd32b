"""Scores models on the very same examples, each counted once, and writes the evaluation and its report."""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.states import NOT_PROMOTED, PROMOTED
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import (
    EVALUATION_FILE,
    KEY_FEATURE,
    LABEL_FEATURE,
    PREDICTIONS_FILE,
    REPORT_FILE,
    TEXT_FEATURE,
    Manifest,
    ModelInfo,
    load_history,
)
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    THRESHOLD,
    TextInput,
)
from tpu_components.core.examples.slice_values import load_slices
from tpu_components.core.examples.text import START, Tokenizer, load_vocabulary
from tpu_components.core.files import storage
from tpu_components.core.machines import device as devices
from tpu_components.core.pages import page
from tpu_components.core.pages.scores import percent
from tpu_components.core.registry.versions import model_digest
from tpu_components.core.results.evaluation_info import Baseline, Difference, EvaluatedModel, Evaluation, Slice, Unseen
from tpu_components.core.results.metric_table import scalars
from tpu_components.evaluate_model import language_model
from tpu_components.evaluate_model.baseline import find_baseline, find_language_baseline
from tpu_components.evaluate_model.champion import find_champion
from tpu_components.evaluate_model.chance import ModelFigures, find_chance
from tpu_components.evaluate_model.gate import decide
from tpu_components.evaluate_model.influence import influences, language_influences
from tpu_components.evaluate_model.leaks import find_seen_examples
from tpu_components.evaluate_model.metrics import compute_metrics, macro_notes
from tpu_components.evaluate_model.multi_label import compute_multi_label_metrics
from tpu_components.evaluate_model.params import LENGTH, EvaluateParams, EvaluateResult
from tpu_components.evaluate_model.regression import compute_regression_metrics
from tpu_components.evaluate_model.report import Answer, Prediction, ReportContent, plain_number, render_report
from tpu_components.evaluate_model.slices import check_slices, find_slices

_STEP = "evaluate_model"
_CHUNK_BYTES = 256 << 20  # Decoded inputs held in memory at a time.
_RIGHT_PICTURES = 20


def evaluate_model(params: EvaluateParams, records_dir: Path, model_dir: Path, output: Path) -> EvaluateResult:
    """Score a model and, if there is one, the champion on one split, and judge it.

    Both compute in float32, as they will be served.

    Args:
        params: Split to score, and the rules of the gate.
        records_dir: Folder that create_tfrecords wrote.
        model_dir: Folder that train_model wrote.
        output: Gets evaluation.json, report.html and predictions.npz; appears whole or not at all.

    Raises:
        InputError: If the split is empty, a model is damaged or does not fit the data set, or a metric that is asked
            for is another task's.
    """
    storage.require_output(output, EVALUATION_FILE)
    manifest = Manifest.load(records_dir)
    params.check_task(manifest.task)
    manifest.split(params.split)
    check_slices(params, manifest, records_dir)
    info = _matching_info(model_dir, manifest, "model")
    digest = model_digest(model_dir)
    with tempfile.TemporaryDirectory(prefix="champion-") as scratch:
        champion = find_champion(params.champion, digest, Path(scratch))
        models = [model_dir]
        if champion.directory:
            models.append(champion.directory)
            _matching_info(champion.directory, manifest, "champion").check_files(champion.directory)
        device = devices.prepare(params.backend, params.accelerator, params.num_replicas, "float32")
        judge = _judge_passages if manifest.task == LANGUAGE_MODEL else _judge_examples
        judged = judge(params, device, records_dir, manifest, models)
    champion_metrics = judged.scalars[1] if champion.directory else None
    fair = (judged.unseen and judged.unseen.scalars) or judged.scalars
    decision = decide(
        params,
        fair[0],
        fair[1] if champion.directory else None,
        num_not_finite=judged.num_not_finite,
        baseline=judged.baseline,
        notes=macro_notes(judged.metrics[0]),
        differences=judged.differences,
        slices=judged.slices,
    )
    if judged.unseen:
        decision = dataclasses.replace(decision, reasons=(judged.unseen.rule, *decision.reasons))
    result = EvaluateResult(
        promote=decision.promote,
        reasons=decision.reasons,
        num_examples=judged.metrics[0].num_examples,
        metrics=judged.scalars[0],
        champion_metrics=champion_metrics,
    )
    with storage.staged_directory(output) as staged:
        Evaluation(
            split=params.split,
            dataset_fingerprint=manifest.fingerprint,
            model=EvaluatedModel(info.name, info.parameters, "best", digest),
            class_names=manifest.class_names,
            gate=decision,
            challenger=dataclasses.asdict(judged.metrics[0]),
            champion=dataclasses.asdict(judged.metrics[1]) if champion.directory else None,
            registered_champion=champion.registered,
            baseline=judged.baseline,
            unseen=judged.unseen,
            intervals=judged.intervals,
            differences=judged.differences,
            slices=judged.slices,
        ).save(staged)
        np.savez_compressed(staged / PREDICTIONS_FILE, **judged.predictions)
        (staged / REPORT_FILE).write_text(judged.render(info, result), encoding="utf-8")
    progress.say(_STEP, f"{PROMOTED if result.promote else NOT_PROMOTED}: " + "; ".join(map(str, result.reasons)))
    return result


METRICS_BY_TASK: Mapping[str, Callable[[np.ndarray, np.ndarray, Manifest, EvaluateParams], Any]] = {
    CLASSIFICATION: lambda labels, outputs, manifest, params: compute_metrics(
        labels, outputs, manifest.class_names, params.top_k
    ),
    MULTI_LABEL: lambda labels, outputs, manifest, params: compute_multi_label_metrics(
        labels, outputs, manifest.class_names
    ),
    REGRESSION: lambda labels, outputs, manifest, params: compute_regression_metrics(
        labels, outputs, manifest.class_names, manifest.interface.task
    ),
}


def _no_answer(manifest: Manifest) -> np.ndarray:
    """Return float32[outputs]: every class alike, or every target's mean."""
    interface = manifest.interface
    if manifest.task == REGRESSION:
        return np.array(interface.mean, np.float32)
    each = 1 / interface.num_classes if manifest.task == CLASSIFICATION else THRESHOLD
    return np.full(interface.output_shape, each, np.float32)


def _matching_info(model_dir: Path, manifest: Manifest, role: str) -> ModelInfo:
    info = ModelInfo.load(model_dir)
    # A champion of texts has the words of the data that it learnt from.
    if not (info.understands(manifest) if role == "champion" else info.fits(manifest)):
        raise InputError(
            f"The {role} in {model_dir} does not fit the data set: expected {manifest.task} with "
            f"{list(manifest.class_names)} and {manifest.input}, received {info.task} with "
            f"{list(info.class_names)} and {info.input}. Evaluate it on the data set it was made for, or train a new "
            "one"
            + (" with gate.champion left empty and a deploy.model_name of its own." if role == "champion" else ".")
        )
    return info


@dataclasses.dataclass(frozen=True)
class _Judged:
    """The figures of a task, of the model and then of the champion, and how they are shown.

    Attributes:
        metrics: A dataclass each, with `num_examples`.
        scalars: The figures that the gate judges.
        num_not_finite: Examples for which the model gave NaN or infinity.
        predictions: The arrays of predictions.npz: `labels`, and `probabilities` or `values` as the exported
            model gives them.
        render: The report.
        baseline: Comparison of the model with the best constant answer, on the examples that the gate judges by.
        intervals: Bounds of the model's figures with 95 % confidence, on the examples that the gate judges by.
        differences: The model beside the champion, on the same; empty without one.
        unseen: The same figures without what a model has trained on, where it has trained on some of the split.
        slices: Parts of the examples that the gate judges by; of a language model none.
    """

    metrics: Sequence[Any]
    scalars: Sequence[Mapping[str, float]]
    num_not_finite: int
    predictions: Mapping[str, Any]
    render: Callable[[ModelInfo, EvaluateResult], str]
    baseline: Baseline
    intervals: Mapping[str, tuple[float, float]]
    differences: Mapping[str, Difference]
    unseen: Unseen | None = None
    slices: tuple[Slice, ...] = ()


def _judge_examples(
    params: EvaluateParams, device: devices.Device, records_dir: Path, manifest: Manifest, models: Sequence[Path]
) -> _Judged:
    scored = _score(params, device, records_dir, manifest, models)
    bad = ~np.isfinite(scored.outputs).all(axis=2)
    # A row that is not finite is no answer. The gate refuses the model all the same.
    outputs = np.where(bad[:, :, None], _no_answer(manifest), scored.outputs)
    compute = METRICS_BY_TASK[manifest.task]
    metrics = [compute(scored.labels, of_one, manifest, params) for of_one in outputs]
    seen = find_seen_examples(params.split, records_dir, manifest.fingerprint, models)
    unseen = None
    labels, fair, figures = scored.labels, outputs, metrics
    properties = {LENGTH: scored.lengths, **load_slices(records_dir, params.split)}
    if seen is not None:
        rest = ~seen.any(axis=0)
        if rest.any():
            labels, fair = labels[rest], outputs[:, rest]
            properties = {name: values[rest] for name, values in properties.items()}
            figures = [compute(labels, of_one, manifest, params) for of_one in fair]
        unseen = Unseen.find(seen, scored.keys, [scalars(of_one) for of_one in figures] if rest.any() else [])
    baseline = find_baseline(manifest.task, labels, fair[0], manifest.class_names)

    def measured(of_one: np.ndarray, its_figures: Any) -> ModelFigures:
        return ModelFigures(
            figures=scalars(its_figures),
            formulas=influences(manifest.interface.task, labels, of_one, params.top_k),
            measure=lambda metric, kept: scalars(compute(labels[kept], of_one[kept], manifest, params)).get(metric),
            num_examples=len(labels),
        )

    judged = [measured(*pair) for pair in zip(fair, figures, strict=True)]
    intervals, differences = find_chance(judged, params.confidence, params.max_regression)
    slices = find_slices(params, manifest, labels, fair, properties)

    def render(info: ModelInfo, result: EvaluateResult) -> str:
        content = _report_content(params, records_dir, manifest, models[0], info, scored, outputs, metrics, result)
        if unseen is None:  # The page's figures are those of all examples.
            content = dataclasses.replace(content, intervals=intervals, differences=differences)
        return render_report(dataclasses.replace(content, baseline=baseline, slices=slices))

    return _Judged(
        metrics=metrics,
        scalars=[scalars(figures) for figures in metrics],
        num_not_finite=int(bad[0].sum()),
        predictions={"labels": scored.labels, manifest.interface.task.answer: outputs[0]},
        render=render,
        baseline=baseline,
        intervals=intervals,
        differences=differences,
        unseen=unseen,
        slices=slices,
    )


def _judge_passages(
    params: EvaluateParams, device: devices.Device, records_dir: Path, manifest: Manifest, models: Sequence[Path]
) -> _Judged:
    scored = language_model.score_passages(params, device, records_dir, manifest, models)
    num_unknown = manifest.split(params.split).statistics["num_unknown"]
    baseline = find_language_baseline(scored.targets, scored.models[0].nats)
    metrics = [language_model.compute_language_metrics(scored.targets, of_one, num_unknown) for of_one in scored.models]
    judged = [
        ModelFigures(
            scalars(figures), language_influences(scored.targets, of_one.nats, of_one.hits), len(scored.targets)
        )
        for of_one, figures in zip(scored.models, metrics, strict=True)
    ]
    intervals, differences = find_chance(judged, params.confidence, params.max_regression)

    def render(info: ModelInfo, result: EvaluateResult) -> str:
        return render_report(
            ReportContent(
                title=_title(manifest, info),
                subtitle=_subtitle(info),
                facts=_facts(params, manifest, info),
                metrics=metrics[0],
                champion=metrics[1] if len(metrics) > 1 else None,
                promote=result.promote,
                reasons=result.reasons,
                history=load_history(models[0]),
                samples=language_model.write_samples(device, models[0], scored, manifest.class_names),
                passages=language_model.hardest_passages(scored, manifest.class_names),
                baseline=baseline,
                intervals=intervals,
                differences=differences,
            )
        )

    return _Judged(
        metrics=metrics,
        scalars=[scalars(figures) for figures in metrics],
        num_not_finite=scored.models[0].num_not_finite,
        predictions=language_model.predictions(scored),
        render=render,
        baseline=baseline,
        intervals=intervals,
        differences=differences,
    )


@dataclasses.dataclass(frozen=True)
class _Scores:
    """The answers of every model to a split, in the order of the records.

    Attributes:
        labels: [examples] or [examples, …].
        keys: One for each example.
        outputs: float32[models, examples, classes or targets].
        lengths: int[examples]: tokens of a text that a model reads; 0 of an image.
    """

    labels: np.ndarray
    keys: Sequence[str]
    outputs: np.ndarray
    lengths: np.ndarray


def _score(
    params: EvaluateParams, device: devices.Device, records_dir: Path, manifest: Manifest, model_dirs: Sequence[Path]
) -> _Scores:
    from tpu_components.core.models.trained import load_trained_model, predict

    with device.scope():
        models = [load_trained_model(directory) for directory in model_dirs]
    readers = [_input_reader(directory, manifest) for directory in model_dirs]
    step = params.batch_size_per_replica * device.num_replicas
    chunk = max(1, _CHUNK_BYTES // (records.input_bytes(manifest.input) * step)) * step
    labels: list[np.ndarray] = []
    keys: list[str] = []
    lengths: list[np.ndarray] = []
    outputs: list[list[np.ndarray]] = [[] for _ in models]
    num_examples = manifest.split(params.split).num_examples
    with progress.track(_STEP, num_examples * len(models), manifest.input.plural) as bar:
        chunks = records.read_batches(records_dir, manifest, params.split, chunk, with_keys=True)
        for fields in chunks.as_numpy_iterator():
            labels.append(fields[LABEL_FEATURE])
            keys.extend(key.decode() for key in fields[KEY_FEATURE])
            lengths.append(_lengths(manifest, fields))
            for model, read, so_far in zip(models, readers, outputs, strict=True):
                so_far.append(predict(model, read(fields), params.batch_size_per_replica, device.num_replicas))
                bar.update(len(fields[LABEL_FEATURE]))
    answers = np.stack([np.concatenate(of_one) for of_one in outputs])
    return _Scores(np.concatenate(labels), keys, answers, np.concatenate(lengths))


def _lengths(manifest: Manifest, fields: Mapping[str, Any]) -> np.ndarray:
    if not isinstance(manifest.input, TextInput):
        return np.zeros(len(fields[LABEL_FEATURE]), int)
    lengths: np.ndarray = (fields[manifest.input.feature] != PADDING).sum(axis=1)
    return lengths


def _input_reader(model_dir: Path, manifest: Manifest) -> Callable[[Mapping[str, Any]], np.ndarray]:
    """Return a function from a batch to a model's inputs: the records', or tokens of its own where its words differ."""
    wanted = ModelInfo.load(model_dir).input
    if not isinstance(wanted, TextInput) or wanted == manifest.input:
        return lambda fields: fields[manifest.input.feature]
    tokenizer = Tokenizer(wanted, load_vocabulary(model_dir, wanted))
    return lambda fields: np.stack([tokenizer.encode(text).ids for text in fields[TEXT_FEATURE]])


def _report_content(
    params: EvaluateParams,
    records_dir: Path,
    manifest: Manifest,
    model_dir: Path,
    info: ModelInfo,
    scored: _Scores,
    outputs: np.ndarray,
    metrics: Sequence[Any],
    result: EvaluateResult,
) -> ReportContent:
    chosen, *others = (_CHOOSE[manifest.task](manifest, scored, of_one) for of_one in outputs)
    shown, right = chosen.wrong[: params.num_pictures].tolist(), chosen.right[:_RIGHT_PICTURES].tolist()
    broken: list[int] = []
    changed = None
    for champion in others:
        newly = chosen.wrong[np.isin(chosen.wrong, champion.right)].tolist()
        changed = int(np.isin(chosen.right, champion.wrong).sum()), len(newly)
        broken = newly[: params.num_pictures]
    pick = records.pick_texts if isinstance(manifest.input, TextInput) else records.pick_inputs
    picked: Mapping[int, Any] = pick(records_dir, manifest, params.split, [*shown, *right, *broken])
    return ReportContent(
        title=_title(manifest, info),
        subtitle=_subtitle(info),
        facts=_facts(params, manifest, info),
        metrics=metrics[0],
        champion=metrics[1] if len(metrics) > 1 else None,
        promote=result.promote,
        reasons=result.reasons,
        history=load_history(model_dir),
        wrong=[chosen.describe(index, picked[index]) for index in shown],
        num_wrong=len(chosen.wrong),
        right=[chosen.describe(index, picked[index]) for index in right],
        broken=[chosen.describe(index, picked[index]) for index in broken],
        changed=None if manifest.task == REGRESSION else changed,
        answers=(scored.labels, outputs[0]) if manifest.task == REGRESSION else None,
    )


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """Examples for the report: the wrong ones, worst first, right ones, and how to describe one with its image or text.

    Examples are indices.
    """

    wrong: np.ndarray
    right: np.ndarray
    describe: Callable[[int, Any], Any]


def _choose_classes(manifest: Manifest, scored: _Scores, probabilities: np.ndarray) -> _Chosen:
    predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    wrong, names = np.flatnonzero(predicted != scored.labels), manifest.class_names

    def describe(index: int, content: np.ndarray | str) -> Prediction:
        said, true = predicted[index], scored.labels[index]
        answer = Answer(names[said], percent(confidence[index], 0), "good" if said == true else "bad")
        truth = [Answer(names[true], percent(probabilities[index, true], 0), note="true")] if said != true else []
        return Prediction(scored.keys[index], content, [answer, *truth])

    worst_first = wrong[np.argsort(-confidence[wrong], kind="stable")]
    return _Chosen(worst_first, np.flatnonzero(predicted == scored.labels), describe)


def _choose_labels(manifest: Manifest, scored: _Scores, probabilities: np.ndarray) -> _Chosen:
    true, predicted = scored.labels > 0, probabilities > THRESHOLD
    right = (true == predicted).all(axis=1)
    losses = manifest.interface.task.losses(scored.labels, probabilities)

    def describe(index: int, content: np.ndarray | str) -> Prediction:
        def those(mask: np.ndarray, look: str, note: str = "") -> list[Answer]:
            chosen = np.flatnonzero(mask[index])
            return [Answer(manifest.class_names[i], percent(probabilities[index, i], 0), look, note) for i in chosen]

        truth = ", ".join(manifest.class_names[i] for i in np.flatnonzero(true[index])) or "none"
        answers = [*those(predicted & ~true, "bad"), *those(predicted & true, "good")] or [Answer("no label")]
        missed = those(true & ~predicted, "bad", "missed")
        return Prediction(scored.keys[index], content, [*answers, *missed, Answer(truth, note="true")])

    wrong = np.flatnonzero(~right)
    return _Chosen(wrong[np.argsort(-losses[wrong], kind="stable")], np.flatnonzero(right), describe)


def _choose_numbers(manifest: Manifest, scored: _Scores, values: np.ndarray) -> _Chosen:
    losses = manifest.interface.task.losses(scored.labels, values)

    def describe(index: int, content: np.ndarray | str) -> Prediction:
        answers = []
        for name, true, said in zip(manifest.class_names, scored.labels[index], values[index], strict=True):
            answers += [Answer(name), Answer("true", plain_number(true)), Answer("predicted", plain_number(said))]
            answers.append(Answer("error", plain_number(said - true), "bad"))
        return Prediction(scored.keys[index], content, answers)

    worst_first = np.argsort(-losses, kind="stable")
    return _Chosen(worst_first, worst_first[:0], describe)


_CHOOSE: Mapping[str, Callable[[Manifest, _Scores, np.ndarray], _Chosen]] = {
    CLASSIFICATION: _choose_classes,
    MULTI_LABEL: _choose_labels,
    REGRESSION: _choose_numbers,
}


def _title(manifest: Manifest, info: ModelInfo) -> str:
    what = f"{info.name} on {manifest.source}"
    return f"{page.run_name()}: {what}" if page.run_name() else what


def _subtitle(info: ModelInfo) -> str:
    """Return what tells this run from others of its name."""
    training = info.training
    stages = training.get("stages", ())
    rates = dict.fromkeys(stage["learning_rate"] or training["learning_rate"] for stage in stages)
    batch = f"{training['batch_size_per_replica']:,}"
    if training["num_replicas"] > 1:
        batch += f" × {training['num_replicas']:,}"
    return ", ".join(
        (
            page.now(),
            f"learning rate {' then '.join(f'{rate:g}' for rate in rates or [training['learning_rate']])}",
            f"batch {batch}",
            f"trained on {training['num_replicas']:,} × {training['accelerator']}"
            + (f" of {training['host']}" if training.get("host") else ""),
        )
    )


def _facts(params: EvaluateParams, manifest: Manifest, info: ModelInfo) -> Mapping[str, str]:
    training = info.training
    return {
        "Model": info.name,
        "Data": manifest.source,
        "Data fingerprint": manifest.fingerprint[:16],
        "Splits": ", ".join(f"{name} {split.num_examples:,}" for name, split in manifest.splits.items()),
        "Scored on": params.split,
        "Set aside": f"{len(manifest.quarantined):,} unreadable inputs",
        "Trained on": f"{training['num_replicas']} × {training['accelerator']}, {training['backend']}, "
        f"{training['precision']}",
        "Training": f"{training['epochs']} epochs{_in_stages(training)}, {training['seconds']:,.0f} s, "
        f"{training['examples_per_second']:,.0f} {manifest.input.plural}/s",
        **_goodput_facts(training),
        "Best epoch": _describe_best_epoch(training),
        **_replica_facts(training),
        **_text_facts(params.split, manifest),
        **_copy_facts(params.split, manifest),
    }


def _in_stages(training: Mapping[str, Any]) -> str:
    stages = training.get("stages", ())
    said = (f"{stage['epochs']} with {', '.join(stage['frozen']) or 'nothing'} frozen" for stage in stages)
    return f" ({', then '.join(said)})" if stages else ""


def _goodput_facts(training: Mapping[str, Any]) -> Mapping[str, str]:
    """Say how much of the time that was paid for trained, and what became of the rest."""
    if not (paid := training.get("paid_seconds")):
        return {}
    count = training["sessions"]
    names = {
        "trained": "training",
        "start_up": "start-up",
        "waiting": "waiting for input and checkpoints",
        "lost": "lost by kills",
        "other": "validation and else",
    }
    parts = ", ".join(f"{paid[part]:,.0f} {words}" for part, words in names.items())
    sessions = "1 session" if count == 1 else f"{count:,} sessions"
    return {"Goodput": f"{training['goodput']:.0%} of {sum(paid.values()):,.0f} s in {sessions}: {parts}"}


def _describe_best_epoch(training: Mapping[str, Any]) -> str:
    why = {
        "validation_loss": ", the lowest validation loss",
        "loss": ", the lowest training loss: there is no validation split",
    }
    return f"{training['best_epoch']}{why.get(training.get('judged_by', ''), '')}"


def _replica_facts(training: Mapping[str, Any]) -> Mapping[str, str]:
    if not training.get("num_synchronized_layers"):
        return {}
    return {"Batch normalisation": f"synchronised: by the batch of all {training['num_replicas']} replicas"}


def _text_facts(split: str, manifest: Manifest) -> Mapping[str, str]:
    texts, told = manifest.input, manifest.split(split).statistics
    if not isinstance(texts, TextInput):
        return {}
    side = "last" if texts.truncate == START else "first"
    return {
        "Texts": f"the {side} {texts.num_tokens} tokens of each; {told['num_truncated']:,} are longer",
        "Unknown words": f"{told['num_unknown'] / told['num_tokens']:.2%} of the tokens",
    }


def _copy_facts(split: str, manifest: Manifest) -> Mapping[str, str]:
    copies = manifest.split(split).statistics.get("num_also_in_train")
    return {} if copies is None else {"Also in train": f"{copies:,} {manifest.input.plural}, exact copies"}
