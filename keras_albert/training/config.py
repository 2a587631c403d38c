"""Settings of the optimizer, and checks shared by all training runs."""

import dataclasses
from typing import Literal

from keras_albert.errors import (
    AlbertError,
    check_choice,
    check_fields,
    check_not_negative,
    check_positive_number,
    check_probability,
    is_whole,
)


def check_warmup(warmup_steps: int, steps: int) -> None:
    """Raises AlbertError unless the warm-up ends before the run."""
    if not is_whole(warmup_steps) or not 0 <= warmup_steps < steps:
        raise AlbertError(
            "`warmup_steps` must be an integer from 0 to steps - 1. Received: "
            f"warmup_steps={warmup_steps!r}, steps={steps}. A tenth of the "
            "steps is usual."
        )


def check_parts(batch_size: int, accumulate: int) -> None:
    """Raises AlbertError unless `accumulate` divides `batch_size`."""
    if batch_size % accumulate:
        raise AlbertError(
            "`batch_size` must be a multiple of `accumulate`. Received: "
            f"batch_size={batch_size}, accumulate={accumulate}."
        )


def check_teaching(
    teacher: str | None, teacher_share: float, temperature: float
) -> None:
    """Raises AlbertError unless the options of distillation fit each other."""
    if teacher == "":
        raise AlbertError(
            "`teacher` must name a model. Received an empty text. Leave "
            "--teacher out."
        )
    check_positive_number("teacher_share", teacher_share)
    if teacher_share > 1:
        raise AlbertError(
            "`teacher_share` must be at most 1. "
            f"Received: teacher_share={teacher_share}."
        )
    check_positive_number("temperature", temperature)
    for name, value, default in (
        ("teacher_share", teacher_share, TEACHER_SHARE),
        ("temperature", temperature, TEMPERATURE),
    ):
        if teacher is None and value != default:
            raise AlbertError(
                f"`{name}` needs a teacher. Received: {name}={value}. Give "
                "--teacher, or leave it out."
            )


# Defaults of distillation: half of the loss is for the teacher's predictions.
TEACHER_SHARE, TEMPERATURE = 0.5, 2.0
# Of text embeddings: what is minimized for pairs with a score (`CosineLoss`),
# and the divisor of cosines (Gao et al. 2021, arXiv:2104.08821, section 3).
COSINE_LOSSES, COSINE_TEMPERATURE = ("ranking", "regression"), 0.05
CHECKPOINTS_FOLDER = "checkpoints"
OPTIMIZERS = ("lamb", "adamw", "muon")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer of a run.

    LAMB is as published (Paper 4.1; reference optimization.py). The default
    learning rate is for LAMB and a batch size of 4096. For a smaller batch,
    scale it with the square root: 0.00176 * sqrt(batch_size / 4096).
    """

    optimizer: Literal[OPTIMIZERS] = OPTIMIZERS[0]
    """lamb; adamw, which is LAMB without the trust ratio, as in the reference;
    or muon, which is Muon for the matrices of layers and AdamW for the rest.
    Small models learn fastest with muon, at a rate of 0.003 if they are 128
    wide, of 0.0015 if 256"""
    learning_rate: float = 0.00176
    """peak learning rate"""
    beta_1: float = 0.9
    """decay rate of the moving average of the gradient"""
    beta_2: float = 0.999
    """decay rate of the moving average of the squared gradient"""
    epsilon: float = 1e-6
    """number added to the denominator of the update"""
    weight_decay: float = 0.01
    """weight decay; LayerNorm weights and biases are excluded"""
    clip_norm: float = 1.0
    """gradients are scaled down to this global norm if theirs is larger"""
    ema_momentum: float | None = None
    """momentum of the moving averages of the weights. If given, the averages
    are evaluated and saved instead of the weights"""

    def __post_init__(self):
        numbers = "learning_rate epsilon clip_norm"
        check_fields(check_positive_number, self, numbers)
        check_probability("beta_1", self.beta_1)
        check_probability("beta_2", self.beta_2)
        if self.ema_momentum is not None:
            check_probability("ema_momentum", self.ema_momentum)
        check_not_negative("weight_decay", self.weight_decay)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
