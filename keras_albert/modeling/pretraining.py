"""Pretraining heads: masked-LM, and sentence order or next sentence.

Letters: B batch, S sequence length, P predicted positions, E embedding size,
H hidden size, V vocabulary, K examples in a row.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras
from keras import layers, ops

from keras_albert.errors import AlbertError, check_choice
from keras_albert.modeling.backbone import (
    AlbertBackbone,
    HeadedModel,
    vectors_at,
)
from keras_albert.modeling.base import feeding
from keras_albert.modeling.config import FILL_MASK_CHOICES, SENTENCE_TASKS
from keras_albert.modeling.layers import ACTIVATIONS, initializer, layer_norm

if TYPE_CHECKING:
    from keras_albert.modeling.masked_texts import Fill

# The values of `sentence_task`. Settings write "none", the model has None.
HEADS = (*(task for task in SENTENCE_TASKS if task != "none"), None)


class MaskedLMHead(layers.Layer):
    """Projects H -> E, activation, LayerNorm, then decodes to the vocabulary.

    The decoder's weights are the word embeddings.

    Source: reference run_pretraining.py, get_masked_lm_output.
    """

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.dense = layers.Dense(
            config.embedding_size,
            activation=ACTIVATIONS[config.hidden_act],
            kernel_initializer=initializer(config),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.layer_norm = layer_norm("layer_norm", self.dtype_policy)

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))
        self.layer_norm.build((None, None, self.config.embedding_size))
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(self.config.vocab_size,),
            initializer="zeros",
            dtype="float32",  # like the logits, whatever the policy
            autocast=False,
        )
        self.built = True

    def call(self, x, word_table):
        """Maps vectors [B, P, H] to float32 logits [B, P, V].

        `word_table` is the `ReversibleEmbedding` of the words.
        """
        x = self.layer_norm(self.dense(x))  # [B, P, E]
        logits = word_table(x, reverse=True)  # [B, P, V]
        return ops.cast(logits, "float32") + self.output_bias


class _MaskedModel(HeadedModel):
    """Abstract: predicts the pieces at the "[MASK]"s of a text."""

    takes_packed = True

    def __init__(self, backbone: AlbertBackbone, **kwargs: Any):
        super().__init__(backbone, **kwargs)
        self.masked_lm = MaskedLMHead(
            self.config, dtype=self.dtype_policy, name="masked_lm"
        )

    def build(self, input_shape: Any = None) -> None:
        self.masked_lm.build()
        self.built = True

    def masked_logits(
        self, sequence_output: Any, inputs: Mapping[str, Any]
    ) -> Any:
        """Masked-LM logits, float32 [B, P, V], at `masked_positions` [B, P].

        Without `masked_positions` all positions are predicted: [B, S, V].
        """
        x = sequence_output
        positions = inputs.get("masked_positions")
        if positions is not None:
            x = vectors_at(x, positions)
        return self.masked_lm(x, word_table=self.backbone.embeddings.word)

    def preprocess(self, texts: Any) -> dict:
        """As `AlbertModel.preprocess`; "[MASK]" becomes the mask token."""
        return feeding().masked_rows(self, texts)

    @property
    def preprocessor(self) -> Any:
        """Raises AlbertError: in a graph "[MASK]" would be read as a word."""
        raise AlbertError(
            f"{type(self).__name__} has no preprocessor for datasets, in which "
            '"[MASK]" would be a word. Make ids with model.preprocess(texts), '
            "or pretraining examples with `pretraining_dataset`."
        )

    def fill_mask(
        self, texts: list[str], top_k: int = FILL_MASK_CHOICES
    ) -> "list[list[list[Fill]]]":
        """Predicts the pieces at the "[MASK]"s of texts.

        Args:
            texts: B texts (not pairs), each with at least one "[MASK]".
            top_k: number of predictions for each "[MASK]".

        Returns:
            For each text, for each mask, `top_k` `Fill`s, the best first.

        Raises:
            AlbertError: a text has no "[MASK]", or one is cut off.
        """
        return feeding().fill_masks(self, texts, top_k)


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForPretraining(_MaskedModel):
    """Masked-LM and sentence order prediction (Paper 3.1, Table 5).

    Args:
        backbone: the encoder; its word embeddings are the decoder's weights.
        sentence_task: "sop" for sentence order prediction, "nsp" for next
            sentence prediction, None for masked-LM alone.

    Call arguments:
        inputs: see AlbertBackbone; "[MASK]" in a text becomes the mask token.
            Also `masked_positions`, int [B, P], the positions to predict;
            all positions when absent.

    Returns:
        dict of float32 logits: `mlm` [B, P, V] and `sop` or `nsp` [B, 2], or
        [B, K, 2] with `cls_positions`. Class 1 means that the texts were
        swapped (`sop`), or that the second is from another document (`nsp`).

    Raises:
        AlbertError: the backbone has no pooler, or `sentence_task` is unknown.
    """

    needs_pooler = True
    # A function from inputs to the masked-LM logits of a teacher. In training,
    # the loss gets them beside the labels: float [B, P, 1 + V].
    teacher: Callable | None = None

    def __init__(
        self,
        backbone: AlbertBackbone,
        sentence_task: str | None = "sop",
        **kwargs: Any,
    ):
        super().__init__(backbone, **kwargs)
        check_choice("sentence_task", sentence_task, HEADS)
        self.sentence_task = sentence_task
        self.sentence_pair = None
        if sentence_task:
            self.sentence_pair = self._logits(2, "sentence_pair")
        self.build()

    @property
    def reads_pooler(self) -> bool:
        """Whether the model has a sentence task, which reads the pooler."""
        return self.sentence_task is not None

    def build(self, input_shape: Any = None) -> None:
        super().build()
        if self.sentence_pair is not None:
            self.sentence_pair.build((None, self.config.hidden_size))

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> dict[str, Any]:
        outputs = self.backbone(inputs, training=training)
        logits = {"mlm": self.masked_logits(outputs["sequence_output"], inputs)}
        if self.sentence_pair is not None:
            pooled = outputs["pooled_output"]
            logits[self.sentence_task] = self.sentence_pair(pooled)
        return logits

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """The losses of the tasks; masked LM's also of a teacher, if any."""
        if training and self.teacher is not None:
            labels = ops.cast(y["mlm"], "float32")[..., None]
            both = ops.concatenate([labels, self.teacher(x)], axis=-1)
            y = {**y, "mlm": both}
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sentence_task": self.sentence_task}


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForMaskedLM(_MaskedModel):
    """Masked-LM alone.

    Args:
        backbone: the encoder; its word embeddings are the decoder's weights.

    Call arguments:
        inputs: see AlbertForPretraining.

    Returns:
        float32 logits [B, P, V].
    """

    def __init__(self, backbone: AlbertBackbone, **kwargs: Any):
        super().__init__(backbone, **kwargs)
        self.build()

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> Any:
        outputs = self.backbone(inputs, training=training)
        return self.masked_logits(outputs["sequence_output"], inputs)
