"""LAMB as published with ALBERT, the reference's AdamW, and Muon.

`keras.optimizers.Lamb` is a different algorithm: it corrects the bias of the
moving averages, applies weight decay outside the trust ratio, and scales every
variable by a trust ratio.
"""

import re
import warnings
from typing import Any

import keras
from keras import ops
from keras.optimizers import schedules

from keras_albert.distribution.backend import optimizer_reduces_replicas
from keras_albert.errors import (
    AlbertError,
    check_not_negative,
    check_positive_number,
    check_probability,
    is_number,
)
from keras_albert.private_apis import OptimizerHooks
from keras_albert.training.config import OptimizerConfig

# Weights that LAMB neither decays nor adapts (reference optimization.py L90).
EXCLUDED_WEIGHTS = ("LayerNorm", "layer_norm", "bias")
MOMENTUM = 0.95  # of Muon


@keras.saving.register_keras_serializable("keras_albert")
class Lamb(OptimizerHooks):
    """The LAMB optimizer with which ALBERT was pretrained.

    For each variable w, let m and v be the moving averages of the gradient and
    of its square, without bias correction. The update is u = m / (sqrt(v) +
    epsilon), plus weight_decay * w unless w is excluded from weight decay.
    Unless w is excluded from layer adaptation, u is multiplied by the trust
    ratio |w| / |u| (1 if either is 0). Then w -= learning_rate * u.

    Args:
        learning_rate: a float or a schedule.
        beta_1: decay rate of m.
        beta_2: decay rate of v.
        epsilon: as above.
        weight_decay: as above.
        exclude_from_weight_decay: regular expressions. A variable is excluded
            if one of them is found in the last two parts of its path, such as
            `layer_norm/gamma`, so that the name of the model has no effect.
        exclude_from_layer_adaptation: the same for the trust ratio; if None,
            the variables that are excluded from weight decay.
        layer_adaptation: whether to use trust ratios. Without them this is the
            reference's AdamWeightDecayOptimizer: AdamW without bias correction.
        global_clipnorm: largest global norm of the gradients; None for none,
            or for another kind of clipping, such as `clipnorm`. It is the norm
            of the whole step's gradient: repeated embedding rows are summed
            first, and so are the replicas of tf.distribute.
        **kwargs: arguments of `keras.optimizers.Optimizer`, such as `use_ema`,
            `ema_momentum` and `gradient_accumulation_steps`. The schedule and
            the moving averages of the weights count updates, not the parts
            that are accumulated for one update.

    Raises:
        AlbertError: a number is out of range, or exclusions are no list.

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
            # 0 is valid: a schedule may have set it when the model was saved.
            check_not_negative("learning_rate", learning_rate)
            learning_rate = float(learning_rate)  # Keras refuses np.float32
        check_probability("beta_1", beta_1)
        check_probability("beta_2", beta_2)
        check_positive_number("epsilon", epsilon)
        check_not_negative("weight_decay", weight_decay)
        if global_clipnorm is not None:
            check_positive_number("global_clipnorm", global_clipnorm)
        _check_patterns("exclude_from_weight_decay", exclude_from_weight_decay)
        if exclude_from_layer_adaptation is not None:
            _check_patterns(
                "exclude_from_layer_adaptation", exclude_from_layer_adaptation
            )
        if kwargs.get("ema_overwrite_frequency") and kwargs.get(
            "gradient_accumulation_steps"
        ):
            # No error, as saved models may have both.
            warnings.warn(
                "Keras overwrites the weights also at the parts of a batch, "
                "which are no updates. Leave ema_overwrite_frequency="
                f"{kwargs['ema_overwrite_frequency']!r} or "
                "gradient_accumulation_steps="
                f"{kwargs['gradient_accumulation_steps']!r} out.",
                stacklevel=2,
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
        # Not called `weight_decay`, which Keras would apply a second time.
        self.decay_rate = weight_decay
        self.decay_exclusions = tuple(exclude_from_weight_decay)
        self.adaptation_exclusions = (
            None
            if exclude_from_layer_adaptation is None
            else tuple(exclude_from_layer_adaptation)
        )
        self.layer_adaptation = layer_adaptation

    def exclude_from_weight_decay(
        self, var_list: Any = None, var_names: Any = None
    ) -> None:
        """Raises AlbertError: Keras's own weight decay is not used here."""
        raise AlbertError(
            "give patterns of paths when the optimizer is made: "
            f"{type(self).__name__}(exclude_from_weight_decay=[...]). "
            f"Received: var_list={var_list!r:.60}, var_names={var_names!r:.60}."
        )

    def build(self, variables: list[keras.Variable]) -> None:
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
        # Exclusions are decided here, since they depend on paths: under
        # tf.distribute `update_step` gets variables without a path.
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
        """Updates one variable; called by Keras for each of them."""
        index = self.index_of(variable)
        learning_rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        m, v = self._momentums[index], self._velocities[index]
        decay = self.decay_rate if self._decays[index] else 0.0
        if not self._adapts[index] and _in_one_pass(
            variable,
            m,
            v,
            gradient,
            learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            eps=self.epsilon,
            weight_decay=decay,
        ):
            return
        new_m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
        new_v = self.beta_2 * v + (1.0 - self.beta_2) * ops.square(gradient)
        self.assign(m, new_m)
        self.assign(v, new_v)
        weights = ops.convert_to_tensor(variable)
        update = new_m / (ops.sqrt(new_v) + self.epsilon)
        if decay:
            update = update + decay * weights
        if self._adapts[index]:
            update = update * _trust_ratio(weights, update)
        self.assign_sub(variable, learning_rate * update)

    # With `gradient_accumulation_steps` Keras correctly clips the mean of the
    # accumulated gradients. But its schedule and its moving averages count
    # every call of `apply`. The two methods below count updates.

    def learning_rate_now(self) -> Any:
        """The learning rate of the next update."""
        rate = self.rate_or_schedule
        if isinstance(rate, schedules.LearningRateSchedule):
            return rate(self.iterations)
        return super().learning_rate_now()

    def update_averages(
        self, trainable_variables: list[keras.Variable]
    ) -> None:
        """Updates the moving averages if this call of `apply` is an update."""
        if not self.use_ema:
            return
        parts = self.gradient_accumulation_steps or 1
        is_update = ops.equal((self.calls + 1) % parts, 0)
        is_first = self.calls < parts
        momentum = ops.cast(self.ema_momentum, "float32")
        momentum = ops.where(is_first, ops.zeros_like(momentum), momentum)
        for variable, average in zip(
            trainable_variables, self.moving_averages, strict=True
        ):
            old = ops.convert_to_tensor(average)
            new = momentum * old + (1.0 - momentum) * variable
            average.assign(ops.where(is_update, new, old))

    @property
    def last_learning_rate(self) -> float:
        """The rate of the last update; `learning_rate` is that of the next."""
        rate = self.rate_or_schedule
        if isinstance(rate, schedules.LearningRateSchedule):
            rate = rate(ops.maximum(self.iterations - 1, 0))
        return float(ops.convert_to_numpy(rate))

    @property
    def averages(self) -> list[keras.Variable]:
        """Moving averages of the trainable variables; empty without EMA."""
        if not self.use_ema:
            return []
        return list(self.moving_averages)

    # Keras clips the gradients of each replica, before they are summed. The
    # published algorithm clips that of the whole batch: these methods do.

    def clip(self, gradients: list[Any]) -> list[Any]:
        """Clips gradients, unless replicas must be summed first."""
        if optimizer_reduces_replicas():
            return gradients
        return super().clip(gradients)

    def sum_over_replicas(
        self, gradients_and_variables: list[tuple[Any, keras.Variable]]
    ) -> list[tuple[Any, keras.Variable]]:
        """Sums gradients over the replicas of tf.distribute, then clips."""
        reduced = super().sum_over_replicas(gradients_and_variables)
        # The gradient of an embedding lookup is tf.IndexedSlices, in which a
        # row may occur several times, so that its norm would be wrong. Adding
        # zeros converts it to a tensor, in which these rows are summed.
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


@keras.saving.register_keras_serializable("keras_albert")
class Muon(Lamb):
    """Muon for the matrices of layers, AdamW for all other weights.

    This AdamW has no bias correction, see `layer_adaptation` of `Lamb`.

    For a matrix w of R rows and C columns, let m be 0.95 * m + gradient, and n
    be gradient + 0.95 * m. All singular values of n are made nearly equal, so
    that no direction is left behind because its gradient is small. The update u
    is the result times 0.2 * sqrt(max(R, C)), plus weight_decay * w. Then
    w -= learning_rate * u. The tables of the embeddings, vectors, matrices of
    a single row or column, and what the exits of several layers have in one
    variable are updated by AdamW, with the same learning rate.

    `keras.optimizers.Muon` differs: it clips gradients before replicas are
    summed, counts the parts of an accumulated batch as updates, and updates
    the projection of the embeddings by AdamW.

    Args: those of `Lamb`, of which layer adaptation is always off.

    Source: Liu et al. 2025, arXiv:2502.16982, section 2.2.
    """

    def __init__(self, *args: Any, name: str = "muon", **kwargs: Any):
        kwargs["layer_adaptation"] = False
        super().__init__(*args, name=name, **kwargs)

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        # Not one column: the products would have an inner dimension of 1, at
        # which oneDNN corrupts memory (docs/decisions/onednn.md).
        self._is_matrix = [
            len(v.shape) == 2
            and min(v.shape) > 1
            # The biases of the exits of all layers are one variable.
            and not v.path.endswith(("embeddings", "bias"))
            for v in variables
        ]

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable; called by Keras for each of them."""
        index = self.index_of(variable)
        if not self._is_matrix[index]:
            super().update_step(gradient, variable, learning_rate)
            return
        m = self._momentums[index]
        gradient = ops.cast(gradient, variable.dtype)
        new_m = MOMENTUM * m + gradient
        self.assign(m, new_m)
        update = _with_equal_singular_values(gradient + MOMENTUM * new_m)
        # About as large as the updates of AdamW (arXiv:2502.16982, eq. 4).
        update = 0.2 * max(variable.shape) ** 0.5 * update
        if self._decays[index]:
            update = update + self.decay_rate * ops.convert_to_tensor(variable)
        learning_rate = ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, learning_rate * update)


def make_optimizer(
    config: OptimizerConfig, learning_rate, accumulate: int = 1
) -> Lamb:
    """Makes the optimizer of a training run.

    With `accumulate`, gradients of so many parts of a batch are averaged.
    """
    settings = {
        "learning_rate": learning_rate,
        "beta_1": config.beta_1,
        "beta_2": config.beta_2,
        "epsilon": config.epsilon,
        "weight_decay": config.weight_decay,
        "global_clipnorm": config.clip_norm,
        "gradient_accumulation_steps": accumulate if accumulate > 1 else None,
    }
    if config.ema_momentum is not None:
        settings |= {"use_ema": True, "ema_momentum": config.ema_momentum}
    if config.optimizer == "muon":
        return Muon(**settings)
    return Lamb(layer_adaptation=config.optimizer == "lamb", **settings)


def _check_patterns(name: str, patterns) -> None:
    # Iterating over a single string would give a pattern for each letter.
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


def _in_one_pass(weights, m, v, gradient, learning_rate, **settings) -> bool:
    """Updates a variable by AdamW in a single kernel, if the backend has one.

    Returns whether it did; if not, the caller has to update the variable.
    """
    if keras.backend.backend() != "torch":
        return False
    from keras_albert.training import fused_torch

    return fused_torch.update(
        weights.value, m.value, v.value, gradient, learning_rate, **settings
    )


def _with_equal_singular_values(matrix):
    """Moves the singular values of a matrix to between 0.7 and 1.2.

    Those below about 0.0015 times its Frobenius norm stay smaller, and a
    matrix of zeros stays as it is. The method is five Newton-Schulz
    iterations with the coefficients of Jordan et al. 2024
    (https://kellerjordan.github.io/posts/muon), which need only matrix
    products and are therefore faster than a singular value decomposition.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = ops.transpose(matrix) if is_tall else matrix
    x = x / (ops.sqrt(ops.sum(ops.square(x))) + 1e-7)
    for _ in range(5):
        square = ops.matmul(x, ops.transpose(x))
        factor = -4.7750 * square + 2.0315 * ops.matmul(square, square)
        x = 3.4445 * x + ops.matmul(factor, x)
    return ops.transpose(x) if is_tall else x


def _trust_ratio(weights, update):
    weight_norm = ops.sqrt(ops.sum(ops.square(weights)))
    update_norm = ops.sqrt(ops.sum(ops.square(update)))
    usable = ops.logical_and(weight_norm > 0, update_norm > 0)
    safe_norm = ops.where(usable, update_norm, ops.ones_like(update_norm))
    return ops.where(usable, weight_norm / safe_norm, ops.ones_like(safe_norm))
