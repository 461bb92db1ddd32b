"""Builds the pipeline: connects the KFP components of the steps."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from kfp import dsl

from tpu_components.core.base.container_images import Images, with_image
from tpu_components.core.base.typed_values import as_json
from tpu_components.core.component.step_record import RUN_VARIABLE
from tpu_components.core.files.location import Location
from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.sources.params import BEAM, FAN_OUT
from tpu_components.create_tfrecords.component import (
    create_tfrecords,
    list_source,
    merge_parts,
    plan_parts,
    write_parts,
    write_with_beam,
)
from tpu_components.deploy_model.component import deploy_model
from tpu_components.evaluate_model.component import evaluate_model, mark_promoted
from tpu_components.export_model.component import export_model
from tpu_components.preflight_training.component import preflight_training
from tpu_components.preflight_training.receipts.store import RECEIPTS_VARIABLE, ReceiptStore
from tpu_components.train_model.component import train_model
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.platforms.resources import apply, resources_of

PIPELINE_NAME = "training-pipeline"


def _constants(params: Any, *but: str) -> dict[str, Any]:
    """Return the fields of a Params dataclass as component inputs, without the fields that `but` names."""
    return {name: value for name, value in as_json(params).items() if name not in but}


def training_pipeline(
    config: Config,
    on_machines: Mapping[str, Callable[..., dsl.PipelineTask]] = {},
    cache_keys: Mapping[str, str] | None = None,
    data_version: str = "",
    lineage: Mapping[str, Any] | None = None,
    place: Callable[[str, dsl.PipelineTask], dsl.PipelineTask] = lambda step, task: task,
    estimated_timeout: bool = False,
    fingerprints: Mapping[str, Mapping[str, str]] | None = None,
    exit_task: Callable[[], dsl.PipelineTask] | None = None,
    images: Images | None = None,
) -> Any:
    """Build the pipeline of a configuration.

    Args:
        config: Parameters of every step. The pipeline's inputs are the few parameters that change per run.
        on_machines: Components of the steps that run on a TPU or GPU, by step. The image and the machine of these
            components are already set.
        cache_keys: Cache key of each step in a local run. Without `cache_keys`, the platform computes the keys. In
            that case, an additional step lists the data in every run, to detect changes.
        data_version: In a local run, the `source_version` of the data from which `cache_keys` are computed.
        lineage: Facts about the run for the registry, in addition to the artifacts' metadata.
        place: Function that sets a task's platform-specific options and returns the task. It is called with the name
            of the step and its task, for each step that is not in `on_machines`.
        estimated_timeout: Whether the training step uses preflight's estimate as its time limit. Without preflight,
            this has no effect.
        fingerprints: Additional input of each step for the platform's cache; see `platform_fingerprints`.
        exit_task: Function that adds the task that runs when all other tasks have ended, even if they have failed.
        images: Images of the steps that are not in `on_machines`, or None for the images that `make image` builds.

    Returns:
        A KFP pipeline, to compile or to call inside a kfp.local session.
    """
    images = images or Images()
    # A platform's cache sees an alias only as text, and would miss that it has moved.
    uncached = ["evaluate_model", "deploy_model"] if parse_reference(config.champion) else []
    if parse_reference(config.training.initial_model):
        uncached.append("train_model")

    def add(
        step: str, component: Any, is_last: bool = True, image: str = images.steps, **inputs: Any
    ) -> dsl.PipelineTask:
        make = on_machines.get(step) or with_image(component, image)
        task = make(**inputs, fingerprint=dict((fingerprints or {}).get(step, {})))
        if not cache_keys and step in ("preflight_training", "evaluate_model"):  # Their pages show the name.
            task.set_env_variable(RUN_VARIABLE, config.name)
        if not cache_keys and step == "preflight_training":
            store = ReceiptStore.of_environment()
            if store and Location(store.uri).is_remote:
                task.set_env_variable(RECEIPTS_VARIABLE, store.uri)
        if step not in on_machines and step != "train_model":
            task = place(step, apply(task, resources_of(config, step)))
        if cache_keys:  # Of a step with several tasks, only the last one is cached.
            return task.set_caching_options(True, cache_keys[step]) if is_last else task.set_caching_options(False)
        return task.set_caching_options(False) if step in uncached else task

    def add_steps(source: Any, epochs: Any, learning_rate: Any, champion: Any) -> None:
        data = _constants(config.data, "source")
        version: Any = data_version
        if not cache_keys:
            listed = with_image(list_source, images.steps)(source=source, **data)
            listed = apply(listed, resources_of(config, "create_tfrecords"))
            version = place("create_tfrecords", listed).set_caching_options(False).output
        inputs = {"source": source, "data": data, "data_version": version}
        if config.data.engine == FAN_OUT:
            planned = add("create_tfrecords", plan_parts, is_last=False, **inputs).outputs["planned"]
            with dsl.ParallelFor(list(range(config.data.engine_tasks)), name="ranges") as number:
                written = add(
                    "create_tfrecords", write_parts, is_last=False, planned=planned, number=number, **inputs
                ).outputs["parts"]
            # Vertex AI collects artifacts (https://github.com/kubeflow/pipelines/issues/3412), Kubeflow Pipelines from
            # 2.14 on (its CHANGELOG.md, pull request 11725).
            writing = add("create_tfrecords", merge_parts, planned=planned, parts=dsl.Collected(written), **inputs)
        elif config.data.engine == BEAM:
            writing = add("create_tfrecords", write_with_beam, image=images.beam, **inputs)
        else:
            writing = add("create_tfrecords", create_tfrecords, source=source, data_version=version, **data)
        records = writing.outputs["records"]
        preflight = None
        limits = {}
        footprint = {}
        prediction = {}
        if config.preflight:
            preflight = add(
                "preflight_training",
                preflight_training,
                image=images.training,
                records=records,
                epochs=epochs,
                **_constants(config.preflight, "epochs"),
            )
            footprint = {"preflight": preflight.outputs["footprint"]}
            # To the evaluation, not to the training: a new prediction must not repeat the training.
            prediction = {"prediction": preflight.outputs["prediction"]}
            if estimated_timeout:
                limits = {"job_timeout": preflight.outputs["timeout"]}
        training = add(
            "train_model",
            train_model,
            image=images.training,
            records=records,
            epochs=epochs,
            learning_rate=learning_rate,
            **_constants(config.training, "epochs", "learning_rate"),
            **limits,
        )
        trained = training.outputs["trained"]
        if preflight:
            training.after(preflight)
        evaluated = add(
            "evaluate_model",
            evaluate_model,
            records=records,
            model=trained,
            champion=champion,
            **prediction,
            **_constants(config.gate, "champion", "prediction"),
        )
        if not config.export and cache_keys:  # No step follows, and a local run reads the gate's decision itself.
            return
        with dsl.If(evaluated.outputs["Output"] == True, name="promoted"):  # noqa: E712 (KFP overloads ==)
            if not config.export:
                marked = with_image(mark_promoted, images.steps)(model=trained)
                place("evaluate_model", apply(marked, resources_of(config, "evaluate_model")))
                return
            export = add(
                "export_model", export_model, records=records, model=trained, **_constants(config.export)
            ).outputs["export"]
            if config.deploy and config.deploy.registry:
                add(
                    "deploy_model",
                    deploy_model,
                    records=records,
                    model=trained,
                    export=export,
                    evaluation=evaluated.outputs["evaluation"],
                    lineage=dict(lineage or {"run": config.name}),
                    **footprint,
                    **_constants(config.deploy, "lineage", "preflight"),
                )

    @dsl.pipeline(name=PIPELINE_NAME, description="Labelled data to a checked Keras model for CPU serving.")
    def pipeline(
        source: str = config.data.source,
        epochs: int = config.training.epochs,
        learning_rate: float = config.training.learning_rate,
        champion: str = config.champion,
    ) -> None:
        """Run the steps.

        Args:
            source: Kind and place of the data, as in create_tfrecords.
            epochs: Largest number of passes over the training split.
            learning_rate: Peak learning rate for one replica.
            champion: Model to beat, as in evaluate_model. Empty for none.
        """
        with dsl.ExitHandler(exit_task(), name="run") if exit_task else contextlib.nullcontext():
            add_steps(source, epochs, learning_rate, champion)

    return pipeline
