"""Losses with one normalizer for a batch that is divided among replicas."""

from typing import Any

import keras
from keras import ops

from keras_albert.distribution.backend import loss_normalizer
from keras_albert.errors import AlbertError, check_positive_number
from keras_albert.modeling.layers import fused_operations

MASKED_LM_LOSS_EPSILON = 1e-5  # reference run_pretraining.py, denominator
# Avoids a division by 0 for a batch without weight, whose loss is 0. Added to
# any other number of rows it has no effect in float32.
_NOT_ZERO = 1e-12


@keras.saving.register_keras_serializable("keras_albert")
class WeightedCrossEntropy(keras.losses.Loss):
    """sum(weight * cross-entropy) / (sum(weight) + epsilon).

    The sums are over the whole batch, so that all predictions have equal
    weight, whether their row has few or many of them. The loss of a batch
    without predictions is 0.

    Args:
        epsilon: added to the denominator.

    Call arguments:
        y_true: int [...], labels.
        y_pred: float [..., V], logits.
        sample_weight: float [...], weights; ones when absent.

    Raises:
        AlbertError: the shapes do not match.

    Source: reference run_pretraining.py L332-335.
    """

    def __init__(
        self,
        epsilon: float = MASKED_LM_LOSS_EPSILON,
        name: str = "weighted_cross_entropy",
        **kwargs: Any,
    ):
        check_positive_number("epsilon", epsilon)
        super().__init__(name=name, **kwargs)
        self.epsilon = epsilon

    def __call__(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        """Computes the loss of a batch, a float32 scalar."""
        # This replaces `keras.losses.Loss.__call__`, which would divide by the
        # number of examples.
        losses = self.of_predictions(y_true, ops.cast(y_pred, "float32"))
        if sample_weight is None:
            sample_weight = ops.ones_like(losses)
        weight = ops.cast(sample_weight, "float32")
        # Another rank would be broadcast, perhaps along the wrong axis.
        _check_shape("sample_weight", weight, losses.shape)
        normalizer = loss_normalizer(ops.sum(weight), self.epsilon)
        return ops.sum(weight * losses) / normalizer

    def of_predictions(self, y_true: Any, logits: Any) -> Any:
        """The loss of each prediction, float32 [...]."""
        _check_shape("y_true", y_true, logits.shape[:-1])
        fused_ops = fused_operations(logits, training=True)
        if fused_ops:
            rows = ops.reshape(logits, (-1, logits.shape[-1]))
            losses = fused_ops.cross_entropy(ops.reshape(y_true, (-1,)), rows)
            return ops.reshape(losses, ops.shape(logits)[:-1])
        return keras.losses.sparse_categorical_crossentropy(
            y_true, logits, from_logits=True
        )

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "epsilon": self.epsilon}


class MaskedLMDistillationLoss(WeightedCrossEntropy):
    """WeightedCrossEntropy of the labels and of a teacher's probabilities.

    Args:
        share: the weight of the loss for the teacher; labels have the rest.
        temperature: by which both logits are divided in that loss.

    Call arguments:
        y_true: float [..., 1 + V], the label and the teacher's logits; or int
            [...], the label alone, for which there is no teacher.
        y_pred: float [..., V], logits.
        sample_weight: float [...], weights; ones when absent.
    """

    def __init__(self, share: float, temperature: float):
        super().__init__(name="distilled_cross_entropy")
        self.share, self.temperature = share, temperature

    def of_predictions(self, y_true: Any, logits: Any) -> Any:
        if len(y_true.shape) < len(logits.shape):
            return super().of_predictions(y_true, logits)
        labels = ops.cast(y_true[..., 0], "int32")
        of_labels = super().of_predictions(labels, logits)
        of_teacher = _divergence_at(self.temperature, y_true[..., 1:], logits)
        return (1 - self.share) * of_labels + self.share * of_teacher


class WeightedMean(keras.losses.Loss):
    """sum(weight * loss) / (rows with a weight), of the rows of all replicas.

    `loss` has the reduction "none": Keras's reductions only sum over the rows
    of one replica. The loss of a batch without weight is 0.

    The sum is not divided by the sum of the weights. A rare class has a large
    weight, which would make the other rows of its batch count less.
    """

    def __init__(self, loss: keras.losses.Loss):
        super().__init__(name=loss.name)
        self.loss = loss

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Computes the loss of a batch, a scalar."""
        losses = self.loss(y_true, y_pred)
        if sample_weight is None:
            sample_weight = ops.ones_like(losses)
        weight = ops.cast(sample_weight, losses.dtype)
        count = ops.sum(ops.cast(weight > 0, losses.dtype))
        return ops.sum(weight * losses) / loss_normalizer(count, _NOT_ZERO)


class DistillationLoss(keras.losses.Loss):
    """The losses of labels and of a teacher's outputs, for each row: [B].

    The teacher's loss is T^2 KL(softmax(teacher / T) || softmax(student / T)),
    where `teacher` and `student` are logits and T is the temperature. For
    several labels it is the mean of this over the labels, each of which has the
    probabilities of yes and no. For a regression it is the squared difference
    of the two numbers.

    Args:
        labels: the loss of the labels, with the reduction "none".
        problem: what the model predicts, see `AlbertForSequenceClassification`.
        share: the weight of the loss for the teacher; labels have the rest.
        temperature: T.

    Call arguments:
        y_true: float [B, K + C], the labels and the teacher's logits.
        y_pred: float [B, C], logits.

    Source: Hinton et al. 2015 (arXiv:1503.02531), section 2.
    """

    def __init__(
        self,
        labels: keras.losses.Loss,
        problem: str,
        share: float,
        temperature: float,
    ):
        super().__init__(name="distilled", reduction="none")
        self.labels, self.problem = labels, problem
        self.share, self.temperature = share, temperature

    def call(self, y_true, y_pred):
        count = y_pred.shape[-1]
        labels, teacher = y_true[:, :-count], y_true[:, -count:]
        if self.problem == "single_label":
            labels = ops.cast(labels[:, 0], "int32")
        of_teacher = self._of_teacher(teacher, ops.cast(y_pred, "float32"))
        of_labels = self.labels(labels, y_pred)
        return (1 - self.share) * of_labels + self.share * of_teacher

    def _of_teacher(self, teacher, student):
        if self.problem == "regression":
            return ops.mean((teacher - student) ** 2, axis=-1)
        if self.problem == "single_label":
            return _divergence_at(self.temperature, teacher, student)
        t, s = (x / self.temperature for x in (teacher, student))
        scale = self.temperature**2
        yes = _divergence(ops.log_sigmoid(t), ops.log_sigmoid(s))
        no = _divergence(ops.log_sigmoid(-t), ops.log_sigmoid(-s))
        return scale * ops.mean(yes + no, axis=-1)


def _divergence_at(temperature: float, teacher, student):
    """T^2 KL(softmax(teacher / T), softmax(student / T)): [..., C] -> [...]."""
    t, s = (ops.log_softmax(x / temperature) for x in (teacher, student))
    return temperature**2 * ops.sum(_divergence(t, s), axis=-1)


def _divergence(p, q):
    """The terms of the Kullback-Leibler divergence, of log-probabilities."""
    return ops.exp(p) * (p - q)


def _check_shape(name: str, value, expected) -> None:
    found, expected = tuple(ops.shape(value)), tuple(expected)
    sizes = zip(found, expected, strict=False)
    if len(found) != len(expected) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes
    ):
        raise AlbertError(
            f"`{name}` must have the shape of the logits without the last "
            f"axis, {expected}. Received: {found}."
        )
