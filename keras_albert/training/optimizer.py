"""The published LAMB, and the reference's AdamW, on every backend.

`keras.optimizers.Lamb` is another algorithm: it corrects the bias, decays
outside the trust ratio and adapts every variable.
"""

import re
from typing import Any

import keras
from keras import ops
from keras.optimizers import schedules

from keras_albert.distribution.backend import optimizer_reduces_replicas
from keras_albert.errors import (
    AlbertError,
    check_positive_number,
    check_probability,
    is_number,
)
from keras_albert.private_apis import OptimizerHooks
from keras_albert.training.config import OptimizerConfig

# Weights that LAMB neither decays nor adapts (reference optimization.py L90).
EXCLUDED_WEIGHTS = ("LayerNorm", "layer_norm", "bias")


@keras.saving.register_keras_serializable("keras_albert")
class Lamb(OptimizerHooks):
    """LAMB as ALBERT was pretrained with.

    For each variable: m, v are the moving averages of the gradient and its
    square, without bias correction; u = m / (sqrt(v) + epsilon), plus
    weight_decay * w unless excluded; unless excluded from layer adaptation, u
    is scaled by |w| / |u| (1 when either is 0); w -= learning_rate * u.

    Args:
        learning_rate: float or schedule.
        beta_1, beta_2, epsilon, weight_decay: as above.
        exclude_from_weight_decay: regular expressions; a variable is excluded
            when one is found in the last two parts of its path
            (`layer_norm/gamma`), so a model's name never matters.
        exclude_from_layer_adaptation: the same for the trust ratio; None
            means as for weight decay.
        layer_adaptation: False is the reference's AdamW.
        global_clipnorm: largest norm of all gradients together. Repeated
            embedding rows are summed first, and under tf.distribute replicas
            are summed first: the true norm of the step's gradient.
        **kwargs: of `keras.optimizers.Optimizer`: `use_ema`, `ema_momentum`,
            `gradient_accumulation_steps` (the schedule and the moving averages
            count updates, not the parts that are accumulated for one).

    Source: reference lamb_optimizer.py L66-118, optimization.py L84-109.
    """

    def __init__(
        self,
        learning_rate: Any = OptimizerConfig.learning_rate,
        beta_1: float = OptimizerConfig.beta_1,
        beta_2: float = OptimizerConfig.beta_2,
        epsilon: float = OptimizerConfig.epsilon,
        weight_decay: float = OptimizerConfig.weight_decay,
        exclude_from_weight_decay: tuple[str, ...] = EXCLUDED_WEIGHTS,
        exclude_from_layer_adaptation: tuple[str, ...] | None = None,
        layer_adaptation: bool = True,
        global_clipnorm: float | None = OptimizerConfig.clip_norm,
        name: str = "lamb",
        **kwargs: Any,
    ):
        if is_number(learning_rate) or not callable(learning_rate):
            check_positive_number("learning_rate", learning_rate)
        check_probability("beta_1", beta_1)
        check_probability("beta_2", beta_2)
        check_positive_number("epsilon", epsilon)
        if not is_number(weight_decay) or weight_decay < 0:
            raise AlbertError(
                "`weight_decay` must be a number, 0 (none) or more. "
                f"Received: weight_decay={weight_decay!r}."
            )
        if global_clipnorm is not None:
            check_positive_number("global_clipnorm", global_clipnorm)
        _check_patterns("exclude_from_weight_decay", exclude_from_weight_decay)
        if exclude_from_layer_adaptation is not None:
            _check_patterns(
                "exclude_from_layer_adaptation", exclude_from_layer_adaptation
            )
        super().__init__(
            learning_rate=learning_rate,
            global_clipnorm=global_clipnorm,
            name=name,
            **kwargs,
        )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        # Not `self.weight_decay`: Keras would decay a second time.
        self.decay_rate = weight_decay
        self.decay_exclusions = tuple(exclude_from_weight_decay)
        self.adaptation_exclusions = (
            None
            if exclude_from_layer_adaptation is None
            else tuple(exclude_from_layer_adaptation)
        )
        self.layer_adaptation = layer_adaptation

    def build(self, variables: list[keras.Variable]) -> None:
        """Makes the moving averages of each variable."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )
        adaptation_exclusions = (
            self.decay_exclusions
            if self.adaptation_exclusions is None
            else self.adaptation_exclusions
        )
        # Decided by path now: under tf.distribute `update_step` is handed
        # variables that have lost theirs.
        self._decays = [
            bool(self.decay_rate) and not _found(self.decay_exclusions, v.path)
            for v in variables
        ]
        self._adapts = [
            self.layer_adaptation and not _found(adaptation_exclusions, v.path)
            for v in variables
        ]

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Any
    ) -> None:
        """One variable's step; see the class."""
        index = self.index_of(variable)
        learning_rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        m, v = self._momentums[index], self._velocities[index]
        new_m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
        new_v = self.beta_2 * v + (1.0 - self.beta_2) * ops.square(gradient)
        self.assign(m, new_m)
        self.assign(v, new_v)
        weights = ops.convert_to_tensor(variable)
        update = new_m / (ops.sqrt(new_v) + self.epsilon)
        if self._decays[index]:
            update = update + self.decay_rate * weights
        if self._adapts[index]:
            update = update * _trust_ratio(weights, update)
        self.assign_sub(variable, learning_rate * update)

    # Accumulation (`gradient_accumulation_steps`). Keras clips the mean of the
    # parts, as it must be; but it counts parts, not updates, in the two below.

    def learning_rate_now(self) -> Any:
        """The schedule's rate, or the constant one, of the next update."""
        rate = self.rate_or_schedule
        if isinstance(rate, schedules.LearningRateSchedule):
            return rate(self.iterations)
        return super().learning_rate_now()

    def update_averages(
        self, trainable_variables: list[keras.Variable]
    ) -> None:
        """Updates the averages when the last part of a batch is applied."""
        if not self.use_ema:
            return
        parts = self.gradient_accumulation_steps or 1
        is_update = ops.equal((self.calls + 1) % parts, 0)
        is_first = self.calls < parts
        momentum = ops.where(is_first, 0.0, self.ema_momentum)
        for variable, average in zip(
            trainable_variables, self.moving_averages, strict=True
        ):
            old = ops.convert_to_tensor(average)
            new = momentum * old + (1.0 - momentum) * variable
            average.assign(ops.where(is_update, new, old))

    @property
    def last_learning_rate(self) -> float:
        """That of the update before; `learning_rate` is the next one's."""
        rate = self.rate_or_schedule
        if isinstance(rate, schedules.LearningRateSchedule):
            rate = rate(ops.maximum(self.iterations - 1, 0))
        return float(ops.convert_to_numpy(rate))

    @property
    def averages(self) -> list[keras.Variable]:
        """Moving averages of the trainable variables; none without EMA."""
        if not self.use_ema:
            return []
        return list(self.moving_averages)

    # Clipping. Keras clips before replicas are summed; here it comes after.

    def clip(self, gradients: list[Any]) -> list[Any]:
        """Gradients, clipped unless replicas are still to be summed."""
        if optimizer_reduces_replicas():
            return gradients
        return super().clip(gradients)

    def sum_over_replicas(
        self, gradients_and_variables: list[tuple[Any, keras.Variable]]
    ) -> list[tuple[Any, keras.Variable]]:
        """Gradients with their variables, summed over replicas, clipped."""
        reduced = super().sum_over_replicas(gradients_and_variables)
        # A lookup's gradient arrives as slices in which a row may repeat;
        # adding zeros sums them, without which their norm is too large.
        grads = [ops.add(g, ops.zeros(v.shape, g.dtype)) for g, v in reduced]
        variables = [variable for _, variable in reduced]
        return list(zip(super().clip(grads), variables, strict=True))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "weight_decay": self.decay_rate,
            "exclude_from_weight_decay": self.decay_exclusions,
            "exclude_from_layer_adaptation": self.adaptation_exclusions,
            "layer_adaptation": self.layer_adaptation,
        }


def make_optimizer(
    config: OptimizerConfig, learning_rate, accumulate: int = 1
) -> Lamb:
    """The optimizer of a run.

    Args:
        config: everything but the schedule.
        learning_rate: a float or a schedule.
        accumulate: parts of a batch whose gradients are averaged for a step.
    """
    averaging = {}
    if config.ema_momentum is not None:
        averaging = {"use_ema": True, "ema_momentum": config.ema_momentum}
    return Lamb(
        learning_rate=learning_rate,
        beta_1=config.beta_1,
        beta_2=config.beta_2,
        epsilon=config.epsilon,
        weight_decay=config.weight_decay,
        layer_adaptation=config.optimizer == "lamb",
        global_clipnorm=config.clip_norm,
        gradient_accumulation_steps=accumulate if accumulate > 1 else None,
        **averaging,
    )


def _check_patterns(name: str, patterns) -> None:
    # A bare string would be read as the patterns of its letters.
    try:
        if isinstance(patterns, str):
            raise TypeError("a single string")
        for pattern in patterns:
            re.compile(pattern)
    except (TypeError, re.error) as error:
        raise AlbertError(
            f"`{name}` must be a list of regular expressions ({error}). "
            f"Received: {name}={patterns!r}."
        ) from None


def _found(patterns: tuple[str, ...], path: str) -> bool:
    end = "/".join(path.split("/")[-2:])
    return any(re.search(pattern, end) for pattern in patterns)


def _trust_ratio(weights, update):
    weight_norm = ops.sqrt(ops.sum(ops.square(weights)))
    update_norm = ops.sqrt(ops.sum(ops.square(update)))
    usable = ops.logical_and(weight_norm > 0, update_norm > 0)
    safe_norm = ops.where(usable, update_norm, ops.ones_like(update_norm))
    return ops.where(usable, weight_norm / safe_norm, ops.ones_like(safe_norm))
