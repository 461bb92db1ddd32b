"""KFP wrapper of train_model."""

from typing import Any, Dict

from kfp import dsl

from components.container import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_model(
    records: dsl.Input[dsl.Dataset],
    trained: dsl.Output[dsl.Model],
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
    early_stopping_epochs: int = 0,
    seed: int = 0,
    backend: str = "auto",
    accelerator: str = "auto",
    num_replicas: int = 0,
    precision: str = "auto",
    in_memory_mib: int = 4096,
    shuffle_buffer: int = 20000,
    checkpoint_seconds: float = 60.0,
) -> None:
    """Train a Keras model; a restarted task continues from its checkpoint."""
    import dataclasses
    import pathlib

    from components.models import whole_numbers
    from components.step_record import step_record
    from components.train_model import TrainParams, train_model

    with step_record("train_model", trained.path):
        params = TrainParams(
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
            early_stopping_epochs=early_stopping_epochs,
            seed=seed,
            backend=backend,
            accelerator=accelerator,
            num_replicas=num_replicas,
            precision=precision,
            in_memory_mib=in_memory_mib,
            shuffle_buffer=shuffle_buffer,
            checkpoint_seconds=checkpoint_seconds,
        )
        result = train_model(params, pathlib.Path(records.path), pathlib.Path(trained.path))
        trained.metadata.update(dataclasses.asdict(result))
