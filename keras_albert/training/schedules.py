"""Learning rate over time."""

from typing import Any

import keras
from keras import ops

from keras_albert.errors import check_positive, check_positive_number
from keras_albert.training.config import check_warmup


@keras.saving.register_keras_serializable("keras_albert")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then polynomial decay to zero at the last step.

    The decay counts from step 0 and the warm-up replaces it, so the rate
    jumps down at the end of warm-up: from `peak` (not quite reached) to
    `peak * (1 - warmup_steps / steps)`. Published behaviour: reference
    optimization.py L36-64.

    Args:
        learning_rate: peak.
        steps: optimizer steps in all; the rate is 0 from then on.
        warmup_steps: steps of warm-up; step 0 has rate 0.
        power: of the decay; 1 is linear.
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
        """Step (any integer tensor) -> float32 rate."""
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
