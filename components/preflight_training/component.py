"""KFP wrapper of preflight_training."""

from typing import Any, Dict

from kfp import dsl

from components.container import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def preflight_training(
    records: dsl.Input[dsl.Dataset],
    preflight: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    model: str,
    model_parameters: Dict[str, Any] = {},
    epochs: int = 10,
    batch_size_per_replica: int = 128,
    optimizer: str = "adam",
    learning_rate: float = 0.001,
    learning_rate_scaling: str = "auto",
    learning_rate_schedule: str = "constant",
    warmup_epochs: float = 0.0,
    weight_decay: float = 0.0,
    random_flip: str = "none",
    random_crop_pixels: int = 0,
    mixup_alpha: float = 0.0,
    label_smoothing: float = 0.0,
    ema_decay: float = 0.0,
    backend: str = "auto",
    precision: str = "auto",
    in_memory_mib: int = 4096,
    shuffle_buffer: int = 20000,
    machine: str = "v5e-1",
    region: str = "",
    spot: bool = False,
    find_largest_batch: bool = False,
    max_step_ms: float = 0.0,
    max_price_usd: float = 0.0,
    max_host_wait: float = 0.0,
    compile_timeout_seconds: float = 900.0,
    compile_memory_mib: int = 16384,
) -> None:
    """Compile the training step for its machine; fails where it does not fit or breaks a budget."""
    import dataclasses
    import pathlib
    import shutil

    from components.artifacts import PREFLIGHT_REPORT_FILE
    from components.errors import InputError
    from components.models import whole_numbers
    from components.preflight_training import PreflightParams, preflight_training
    from components.step_record import step_record

    with step_record("preflight_training", preflight.path):
        params = PreflightParams(
            model=model,
            model_parameters=whole_numbers(model_parameters),
            epochs=epochs,
            batch_size_per_replica=batch_size_per_replica,
            optimizer=optimizer,
            learning_rate=learning_rate,
            learning_rate_scaling=learning_rate_scaling,
            learning_rate_schedule=learning_rate_schedule,
            warmup_epochs=warmup_epochs,
            weight_decay=weight_decay,
            random_flip=random_flip,
            random_crop_pixels=random_crop_pixels,
            mixup_alpha=mixup_alpha,
            label_smoothing=label_smoothing,
            ema_decay=ema_decay,
            backend=backend,
            precision=precision,
            in_memory_mib=in_memory_mib,
            shuffle_buffer=shuffle_buffer,
            machine=machine,
            region=region,
            spot=spot,
            find_largest_batch=find_largest_batch,
            max_step_ms=max_step_ms,
            max_price_usd=max_price_usd,
            max_host_wait=max_host_wait,
            compile_timeout_seconds=compile_timeout_seconds,
            compile_memory_mib=compile_memory_mib,
        )
        output = pathlib.Path(preflight.path)
        result = preflight_training(params, pathlib.Path(records.path), output)
        shutil.copyfile(output / PREFLIGHT_REPORT_FILE, report.path)
        preflight.metadata.update(dataclasses.asdict(result))
        if not result.passed:
            raise InputError(
                f"Stopped before training: {'; '.join(result.reasons)}. Correct the configuration; the report says "
                "more. To train without this check, set preflight: false."
            )
