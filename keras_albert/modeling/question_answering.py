"""Question answering heads: the span of an answer (SQuAD 1.1 and 2.0).

Letters: B batch, S sequence length, H hidden size, K beam.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_albert.errors import AlbertError, check_positive
from keras_albert.modeling.backbone import (
    AlbertBackbone,
    HeadedModel,
    vectors_at,
)
from keras_albert.modeling.config import CLASSIFIER_DROPOUT
from keras_albert.modeling.inputs import (
    as_texts,
    check_equally_many,
    names_of,
    tokenized,
)
from keras_albert.modeling.labels import Classes
from keras_albert.modeling.layers import layer_norm
from keras_albert.text.special_tokens import SEP_ID

# Number of answer starts, and of ends per start (reference run_squad_v2.py).
QA_BEAM = 5
IMPOSSIBLE = -1e30  # logit of a position that cannot be in an answer


class _QuestionModel(HeadedModel):
    """Abstract: reads a question, and a context that may hold its answer."""

    def preprocess(self, texts: Any) -> dict:
        """Tokenizes texts into the arrays that the model is called with.

        Args:
            texts: dict of `question` and `context`, B texts each. The longer
                one is cut at its end, if both have too many tokens.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, int32 [B, S]; segment
            1 is the context.
        """
        texts = self.named_texts(texts)
        questions = as_texts(texts["question"], "question")
        contexts = as_texts(texts["context"], "context")
        check_equally_many(question=questions, context=contexts)
        return tokenized(self, questions, contexts)

    def named_texts(self, texts: Any) -> dict:
        """The dict itself; raises AlbertError if it has other keys."""
        needed = {"question", "context"}
        if not isinstance(texts, dict) or texts.keys() != needed:
            raise AlbertError(
                "question answering takes a dict of `question` and "
                f"`context`. Received: {names_of(texts)}."
            )
        return texts

    def classes(self, shape: Any) -> dict[str | None, Classes]:
        """Labels are the positions at which an answer starts and ends."""
        positions = Classes(shape[-1], "the tokens of a row")
        return {"start": positions, "end": positions}


def _answerable(inputs):
    """Mask of the positions that an answer may have: bool [B, S].

    These are the context without its [SEP], and [CLS] for no answer.
    """
    token_ids = inputs["token_ids"]
    segment_ids = inputs.get("segment_ids")
    if segment_ids is None:
        segment_ids = ops.zeros_like(token_ids)
    in_context = ops.logical_and(
        ops.equal(segment_ids, 1), ops.not_equal(token_ids, SEP_ID)
    )
    padding_mask = inputs.get("padding_mask")
    if padding_mask is not None:
        in_context = ops.logical_and(in_context, ops.cast(padding_mask, "bool"))
    first = ops.equal(ops.cumsum(ops.ones_like(token_ids, "int32"), axis=1), 1)
    return ops.logical_or(in_context, first)


def _best(logits, count: int):
    """Log-probabilities and positions of the `count` best, the best first."""
    log_probs, index = ops.top_k(ops.log_softmax(logits), count)
    return log_probs, ops.cast(index, "int32")  # int64 on torch


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForQuestionAnswering(_QuestionModel):
    """Predicts where an answer starts and ends (SQuAD 1.1).

    Args:
        backbone: the encoder; its pooler is not used.

    Call arguments:
        inputs: see AlbertBackbone; segment 1 is the context. Or texts.

    Returns:
        dict of float32 logits [B, S]: `start` and `end`. As in the reference,
        positions outside the context are not masked.

    Source: reference squad_utils.py, create_v1_model.
    """

    def __init__(self, backbone: AlbertBackbone, **kwargs: Any):
        super().__init__(backbone, **kwargs)
        self.span = self._logits(2, "span")
        self.build()

    def build(self, input_shape: Any = None) -> None:
        self.span.build((None, None, self.config.hidden_size))
        self.built = True

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> dict[str, Any]:
        x = self.backbone(inputs, training=training)["sequence_output"]
        start, end = ops.unstack(self.span(x), axis=-1)
        return {"start": start, "end": end}


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForQuestionAnsweringV2(_QuestionModel):
    """Predicts whether there is an answer, and where it is (SQuAD 2.0).

    The end is predicted given a start: the true start in training, each of
    the K best starts in inference.

    Args:
        backbone: the encoder; its pooler is not used.
        beam: K, number of starts, and of ends for each start.
        dropout: dropout rate before the answer classifier.

    Call arguments:
        inputs: see AlbertBackbone; segment 1 is the context. In training also
            `start_positions`, int [B], the true starts.

    Returns:
        With `start_positions`, a dict of float32 logits: `start` [B, S],
        `end` [B, S], `answer_class` [B, 1] (above 0 means no answer). The
        loss of the reference is half the cross-entropy of each of the three.
        Without `start_positions`, a dict of the beam: `start_top_log_probs`
        and `start_top_index` [B, K], `end_top_log_probs` and `end_top_index`
        [B, K, K] (K ends for each start), and `answer_class` [B, 1]. If S is
        static and smaller than K, it stands for K.

    Raises:
        AlbertError: `start_positions` is missing in training, or `beam` is no
            positive integer.

    Source: reference squad_utils.py L1428-1575.
    """

    def __init__(
        self,
        backbone: AlbertBackbone,
        beam: int = QA_BEAM,
        dropout: float = CLASSIFIER_DROPOUT,
        **kwargs: Any,
    ):
        super().__init__(backbone, **kwargs)
        check_positive("beam", beam)
        size = self.config.hidden_size
        self.beam = beam
        self.start = self._logits(1, "start")
        self.end_dense = self._dense(size, "end_dense", activation="tanh")
        self.end_layer_norm = layer_norm("end_layer_norm", self.dtype_policy)
        self.end = self._logits(1, "end")
        self.answer_dense = self._dense(size, "answer_dense", activation="tanh")
        self.dropout = self._dropout(dropout)
        self.answer = self._logits(1, "answer", use_bias=False)
        self.build()

    def build(self, input_shape: Any = None) -> None:
        size = self.config.hidden_size
        self.start.build((None, None, size))
        self.end_dense.build((None, None, 2 * size))
        self.end_layer_norm.build((None, None, size))
        self.end.build((None, None, size))
        self.answer_dense.build((None, 2 * size))
        self.answer.build((None, size))
        self.built = True

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> dict[str, Any]:
        x = self.backbone(inputs, training=training)["sequence_output"]
        answerable = _answerable(inputs)
        start = self._masked(self.start(x), answerable)  # [B, S]
        answer_class = self._answer_class(x, start, training)
        start_positions = inputs.get("start_positions")
        if training and start_positions is None:
            raise AlbertError(
                "training needs `start_positions`, int [batch], the token at "
                f"which each answer starts. Received: {sorted(inputs)}. For "
                "texts: x = model.preprocess(texts); "
                "x['start_positions'] = ..."
            )
        if start_positions is not None:
            starts = ops.expand_dims(start_positions, 1)
            end = self._end(x, starts, answerable)[:, 0]
            return {"start": start, "end": end, "answer_class": answer_class}
        beam = min(self.beam, x.shape[1] or self.beam)
        start_log_probs, start_index = _best(start, beam)  # [B, K]
        end = self._end(x, start_index, answerable)  # [B, K, S]
        end_log_probs, end_index = _best(end, beam)  # [B, K, K]
        return {
            "start_top_log_probs": start_log_probs,
            "start_top_index": start_index,
            "end_top_log_probs": end_log_probs,
            "end_top_index": end_index,
            "answer_class": answer_class,
        }

    def compute_output_spec(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> dict[str, keras.KerasTensor]:
        # Not by `call`: JAX cannot compare an unknown length with the beam.
        batch, length = inputs["token_ids"].shape
        answer_class = keras.KerasTensor((batch, 1), "float32")
        if "start_positions" in inputs:
            row = keras.KerasTensor((batch, length), "float32")
            return {"start": row, "end": row, "answer_class": answer_class}
        beam = min(self.beam, length or self.beam)
        return {
            f"{name}_top_{kind}": keras.KerasTensor(shape, dtype)
            for name, shape in (
                ("start", (batch, beam)),
                ("end", (batch, beam, beam)),
            )
            for kind, dtype in (("log_probs", "float32"), ("index", "int32"))
        } | {"answer_class": answer_class}

    def _masked(self, logits, answerable):
        """Logits [..., S, 1] -> float32 [..., S], IMPOSSIBLE where masked."""
        return ops.where(answerable, ops.squeeze(logits, -1), IMPOSSIBLE)

    def _end(self, x, starts, answerable):
        """The end logits [B, K, S] for each of K starts, int [B, K]."""
        start_vectors = ops.expand_dims(vectors_at(x, starts), 2)
        batch, length, hidden = ops.shape(x)
        shape = (batch, ops.shape(starts)[1], length, hidden)  # [B, K, S, H]
        both = ops.concatenate(
            [
                ops.broadcast_to(ops.expand_dims(x, 1), shape),
                ops.broadcast_to(start_vectors, shape),
            ],
            axis=-1,
        )
        hidden = self.end_layer_norm(self.end_dense(both))  # [B, K, S, H]
        return self._masked(self.end(hidden), ops.expand_dims(answerable, 1))

    def _answer_class(self, x, start, training):
        """The no-answer logit, float32 [B, 1].

        It is computed from the vector of [CLS] and the mean of all vectors,
        weighted by the probability that the answer starts there.
        """
        probs = ops.expand_dims(ops.softmax(start), 2)  # [B, S, 1], float32
        # Not a matrix product, for the inner dimension 1; see `encoder.block`.
        start_vector = ops.sum(probs * ops.cast(x, "float32"), axis=1)  # [B, H]
        start_vector = ops.cast(start_vector, x.dtype)
        both = ops.concatenate([start_vector, x[:, 0]], axis=-1)  # [B, 2 H]
        hidden = self.dropout(self.answer_dense(both), training=training)
        return self.answer(hidden)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "beam": self.beam,
            "dropout": self.dropout.rate,
        }
