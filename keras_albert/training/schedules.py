"""The learning rate schedule."""

from typing import Any

import keras
from keras import ops

from keras_albert.errors import check_positive, check_positive_number
from keras_albert.training.config import check_warmup


@keras.saving.register_keras_serializable("keras_albert")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then polynomial decay to zero at the last step.

    The decay is counted from step 0, and the warm-up replaces its first steps.
    At the end of the warm-up the rate therefore jumps from almost the peak to
    `peak * (1 - warmup_steps / steps)` (with `power` 1), as published.

    Args:
        learning_rate: the peak learning rate.
        steps: total number of optimizer steps; from then on the rate is 0.
        warmup_steps: number of warm-up steps; the rate of step 0 is 0.
        power: exponent of the decay; 1 is linear.

    Raises:
        AlbertError: a number is out of range.

    Source: reference optimization.py L36-64.
    """

    def __init__(
        self,
        learning_rate: float,
        steps: int,
        warmup_steps: int = 0,
        power: float = 1.0,
    ):
        check_positive_number("learning_rate", learning_rate)
        check_positive("steps", steps)
        check_warmup(warmup_steps, steps)
        check_positive_number("power", power)
        self.learning_rate = learning_rate
        self.steps = steps
        self.warmup_steps = warmup_steps
        self.power = power

    def __call__(self, step: Any) -> Any:
        """The float32 learning rate of a step, an integer or a tensor."""
        step = ops.cast(step, "float32")
        share = ops.minimum(step, self.steps) / self.steps
        decayed = self.learning_rate * (1.0 - share) ** self.power
        if not self.warmup_steps:
            return decayed
        warming = self.learning_rate * step / self.warmup_steps
        return ops.where(step < self.warmup_steps, warming, decayed)

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "power": self.power,
        }
