"""The learning rate at every step: warm-up, decay, and scaling with the number of replicas."""

import math


def scale_learning_rate(learning_rate: float, num_replicas: int, scaling: str, optimizer: str) -> float:
    """The peak learning rate for a global batch of `num_replicas` times the size.

    Linear for SGD (https://arxiv.org/abs/1706.02677), the square root for adaptive methods
    (https://arxiv.org/abs/2205.10287).

    Example:
        >>> scale_learning_rate(0.1, 8, "auto", "sgd"), scale_learning_rate(0.001, 4, "auto", "adam")
        (0.8, 0.002)
    """
    if scaling == "auto":
        scaling = "linear" if optimizer == "sgd" else "sqrt"
    return learning_rate * {"linear": float(num_replicas), "sqrt": math.sqrt(num_replicas), "none": 1.0}[scaling]


def warmup_steps(warmup_epochs: float, steps_per_epoch: int, total_steps: int) -> int:
    """Steps of warm-up; always fewer than all.

    Example:
        >>> warmup_steps(0.5, steps_per_epoch=10, total_steps=100)
        5
    """
    return min(round(warmup_epochs * steps_per_epoch), total_steps - 1)
