"""The step preflight_training as a KFP component.

`python -m tests.evidence.generated` writes the inputs after `*`, and their entries in `Args:`, from the fields of
PreflightParams.
"""

from typing import Any, Dict, NamedTuple

from kfp import dsl

from tpu_components.core.base.container_images import LOCAL_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def preflight_training(
    records: dsl.Input[dsl.Dataset],
    preflight: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    fingerprint: Dict[str, str] = {},
    *,
    training: Dict[str, Any],
    epochs: int = 0,
    paid: Dict[str, Any] = {
        "machine": "v5e-1",
        "region": "",
        "spot": False,
        "target": "vertex",
        "timeout_seconds": 0,
        "attempts": 1,
    },
    find_largest_batch: bool = False,
    max_step_ms: float = 0.0,
    max_price_usd: float = 0.0,
    max_host_wait: float = 0.0,
    compile_timeout_seconds: float = 900.0,
    compile_memory_mib: int = 16384,
) -> NamedTuple(  # type: ignore[valid-type]
    "Results", [("timeout", str), ("footprint", Dict[str, Any]), ("prediction", Dict[str, Any])]
):
    """Compile the training step for its machine. Fail if the step does not fit in memory or exceeds a budget.

    Args:
        records: Records that create_tfrecords wrote.
        fingerprint: Digests of the step's `code` and of the `model`. The step does not read them; the platform's cache
            runs the step again when one changes.
        training: Parameters of train_model: model, hyper-parameters, backend, precision, and input pipeline. With the
            `jax` backend, the step of all replicas is compiled. With `tensorflow`, the step of one replica is compiled.
            The backend `auto` means jax. The precision `auto` means mixed_bfloat16 for a TPU and float32 for a GPU.
            Keys: `model`, `model_parameters`, `epochs`, `batch_size_per_replica`, `optimizer`, `optimizer_parameters`,
            `learning_rate`, `learning_rate_scaling`, `learning_rate_schedule`, `schedule_parameters`, `warmup_epochs`,
            `stages`, `initial_model`, `weight_decay`, `loss`, `loss_parameters`, `metrics`, `balance_classes`,
            `class_weights`, `random_flip`, `random_crop_pixels`, `random_resized_crop`, `mixup_alpha`,
            `label_smoothing`, `ema_decay`, `early_stopping_epochs`, `monitor`, `callbacks`, `seed`, `backend`,
            `accelerator`, `num_replicas`, `precision`, `in_memory_mib`, `shuffle_buffer`, `residency`,
            `steps_per_execution`, `sharding`, `checkpoint_seconds`, `profile_steps`.
        epochs: Number of epochs for which the time and price of a run are computed. 0 means the number of epochs in
            `training`.
        paid: Machine on which the training runs, and the settings that determine its price: `machine` is its name, and
            `region`, `spot` and `target` (the platform) select the price. `timeout_seconds` is the time limit of each
            attempt at training; 0 means a limit that is derived from the estimate. `attempts` is the largest number of
            attempts.
        find_largest_batch: Find the largest batch per replica that fits, by compiling the step for several batch sizes.
            If false, preflight computes only an upper bound. If the configured batch does not fit, preflight searches
            for the largest batch even if this is false.
        max_step_ms: Reject a training run whose step takes longer than this on the device, in milliseconds. 0 means no
            limit.
        max_price_usd: Reject a run whose expected price on the platform is above this number of US dollars. 0 means no
            limit. On Kubeflow and for GPUs, this number also determines the time limit of training, unless
            `machine.timeout_seconds` is set. A run may cost more: see the highest price in preflight's report.
        max_host_wait: Reject a run in which the device would wait for data for more than this share of the time, from 0
            to 1. 0 means no limit.
        compile_timeout_seconds: Time limit of one compilation, in seconds. The time that the compiler waits for a CPU
            on a busy machine does not count.
        compile_memory_mib: Memory limit of a compilation, in MiB.

    Returns:
        preflight: Folder with the findings: `preflight.json` and `preflight.html`.
        report: Findings as an HTML page.
        timeout: Time limit of the training in Vertex AI's format, seconds followed by `s`.
        footprint: Memory, step time and price of the training run, to store with a registered version. Keys: `machine`,
            `region`, `spot`, `num_examples`, `num_validation`, `epochs`, `global_batch`, `parameters`, `step_ms`,
            `peak_bytes`, `capacity_bytes`, `usd_per_hour`, `compiler`, `target`, `price_factor`.
        prediction: Predicted time, memory and price of the training run, which evaluate_model compares with the run.
            Keys: `program`, `machine`, `step_ms`, `low_ms`, `high_ms`, `compiler_ms`, `mxu_utilization`, `peak_bytes`,
            `seconds`, `low_seconds`, `high_seconds`, `usd_per_hour`, `price_source`, `basis`.
    """
    inputs = dict(locals())
    import dataclasses
    import shutil

    from tpu_components.core.base.errors import InputError
    from tpu_components.core.component.step_record import run_component
    from tpu_components.core.examples.artifacts import PREFLIGHT_REPORT_FILE
    from tpu_components.preflight_training import PreflightParams, preflight_training

    def show(result: Any) -> Any:
        shutil.copyfile(f"{preflight.path}/{PREFLIGHT_REPORT_FILE}", report.path)
        figures = dataclasses.asdict(result)
        footprint = figures.pop("footprint")
        prediction = figures.pop("prediction")
        preflight.metadata.update(figures)
        if not result.passed:
            raise InputError(
                f"Stopped before training: {'; '.join(result.reasons)}. Correct the configuration; the report says "
                "more. To train without this check, set preflight: false."
            )
        return f"{result.timeout_seconds}s", footprint, prediction

    return run_component(
        "preflight_training", preflight_training, PreflightParams, inputs, "records", "preflight", then=show
    )
