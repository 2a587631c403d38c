"""Pretraining heads: masked-LM, and a task on the pair of sentences.

Letters: B batch, S sequence length, P predicted positions, E embedding size,
H hidden size, V vocabulary, K examples in a row.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers, ops

from keras_albert.errors import AlbertError, check_choice, check_positive
from keras_albert.modeling.backbone import AlbertBackbone, vectors_at
from keras_albert.modeling.block import ACTIVATIONS
from keras_albert.modeling.config import FILL_MASK_CHOICES, SENTENCE_TASKS
from keras_albert.modeling.embeddings import initializer, layer_norm
from keras_albert.modeling.headed import HeadedModel
from keras_albert.modeling.inputs import (
    as_texts,
    check_equally_many,
    named_texts,
    round_length,
)
from keras_albert.text.special_tokens import MASK_ID, SPECIAL_PIECES
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer

MASK = SPECIAL_PIECES[MASK_ID]
# What examples call "none" is None for a model.
HEADS = (*(task for task in SENTENCE_TASKS if task != "none"), None)


class MaskedLMHead(layers.Layer):
    """H -> E -> activation -> LayerNorm -> logits through the word table.

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
        """Makes the weights; their shapes follow from the config."""
        self.dense.build((None, None, self.config.hidden_size))
        self.layer_norm.build((None, None, self.config.embedding_size))
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(self.config.vocab_size,),
            initializer="zeros",
            autocast=False,  # stays float32, as the logits do
        )
        self.built = True

    def call(self, x, word_table):
        """float [B, P, H], the embedding layer -> float32 [B, P, V]."""
        x = self.layer_norm(self.dense(x))  # [B, P, E]
        logits = word_table(x, reverse=True)  # [B, P, V]
        return ops.cast(logits, "float32") + self.output_bias


class Fill(NamedTuple):
    """What may stand at a [MASK]."""

    piece: str
    """as in the vocabulary: the word mark shows where a word begins"""
    probability: float
    text: str
    """the whole text with this piece (and [MASK] where others are)"""


def filled(text: str, number: int, piece: str, probability: float) -> Fill:
    """A text with a piece at one of its masks, counted from 0."""
    parts = text.split(MASK)
    before = MASK.join(parts[: number + 1])
    after = MASK.join(parts[number + 1 :])
    word = piece.replace(WORD_MARK, " ").lstrip()
    return Fill(piece, probability, before + word + after)


class _MaskedModel(HeadedModel):
    """Abstract: predicts the pieces that "[MASK]" hides in a text."""

    takes_packed = True

    def __init__(self, backbone: AlbertBackbone, **kwargs: Any):
        super().__init__(backbone, **kwargs)
        self.masked_lm = MaskedLMHead(
            self.config, dtype=self.dtype_policy, name="masked_lm"
        )

    def build(self, input_shape: Any = None) -> None:
        """Makes the weights; their shapes follow from the config."""
        self.masked_lm.build()
        self.built = True

    def masked_logits(
        self, sequence_output: Any, inputs: Mapping[str, Any]
    ) -> Any:
        """[B, S, H] -> [B, P, V] at `masked_positions`, where given."""
        x = sequence_output
        positions = inputs.get("masked_positions")
        if positions is not None:
            x = vectors_at(x, positions)
        return self.masked_lm(x, word_table=self.backbone.embeddings.word)

    def preprocess(self, texts: Any) -> dict:
        """As `AlbertModel.preprocess`; "[MASK]" in a text is the mask."""
        tokenizer = self.vocabulary()
        texts = named_texts(texts)
        texts, pairs = texts["text"], texts.get("pair")
        texts = as_texts(texts)
        rows_a = [masked_ids(tokenizer, text) for text in texts]
        rows_b = [None] * len(rows_a)
        if pairs is not None:
            pairs = as_texts(pairs, "pairs")
            check_equally_many(texts=texts, pairs=pairs)
            rows_b = [masked_ids(tokenizer, text) for text in pairs]
        longest = self.config.max_position_embeddings
        rows = [
            tokenizer.pack(a, b, longest)
            for a, b in zip(rows_a, rows_b, strict=True)
        ]
        return round_length(tokenizer.pad(rows), longest)

    @property
    def preprocessor(self) -> Any:
        """There is none: in a graph "[MASK]" would be read as a word."""
        raise AlbertError(
            f"{type(self).__name__} has no preprocessor for datasets, in which "
            '"[MASK]" would be a word. Make ids with model.preprocess(texts), '
            "or pretraining examples with `pretraining_dataset`."
        )

    def fill_mask(
        self, texts: list[str], top_k: int = FILL_MASK_CHOICES
    ) -> list[list[list[Fill]]]:
        """What may stand where the texts have "[MASK]".

        Args:
            texts: B texts (not pairs), each with at least one "[MASK]".
            top_k: most probable pieces for each.

        Returns:
            For each text, for each of its masks, `top_k` `Fill`s, the most
            probable first.

        Raises:
            AlbertError: a text without "[MASK]", or one so long that a mask
                is cut off; a bare text.
        """
        check_positive("top_k", top_k)
        texts = as_texts(texts)
        x = self.preprocess(texts)
        masks = [np.flatnonzero(row == MASK_ID) for row in x["token_ids"]]
        for text, found in zip(texts, masks, strict=True):
            written = text.count(MASK)
            if len(found) != written or not written:
                raise AlbertError(
                    f'each text needs "{MASK}" within the first '
                    f"{self.config.max_position_embeddings} tokens. "
                    f"Received: {text!r:.80} ({written} masks, {len(found)} "
                    "of them in reach). Write one, or shorten the text."
                )
        positions = np.zeros((len(texts), max(map(len, masks))), "int32")
        for row, found in enumerate(masks):
            positions[row, : len(found)] = found
        outputs = self.predict({**x, "masked_positions": positions}, verbose=0)
        logits = outputs["mlm"] if isinstance(outputs, dict) else outputs
        return [
            [
                self._fills(text, number, logits[row, number], top_k)
                for number in range(len(masks[row]))
            ]
            for row, text in enumerate(texts)
        ]

    def _fills(
        self, text: str, number: int, logits: np.ndarray, top_k: int
    ) -> list[Fill]:
        probabilities = np.exp(logits - logits.max())  # [V]
        probabilities /= probabilities.sum()
        # The model may know more ids than the vocabulary has pieces.
        named = probabilities[: self.tokenizer.vocab_size]
        fills = []
        for index in np.argsort(-named)[:top_k]:
            piece = self.tokenizer.id_to_piece(index)
            fills.append(filled(text, number, piece, float(named[index])))
        return fills


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForPretraining(_MaskedModel):
    """Masked-LM and a task on the pair of sentences (Paper 3.1, Table 5).

    Args:
        backbone: the encoder; its word embeddings are the decoder's weights.
        sentence_task: "sop", sentence order; "nsp", next sentence; None.

    Call arguments:
        inputs: those of AlbertBackbone, where "[MASK]" in a text is the mask;
            and `masked_positions`, int [B, P], the positions to predict;
            every position when absent.

    Returns:
        dict of float32 logits: `mlm` [B, P, V] and `sop` or `nsp` [B, 2], or
        [B, K, 2] with `cls_positions`. In both, class 1 is the pair that was
        tampered with: swapped, or with a second text from elsewhere.
    """

    needs_pooler = True

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
        """Whether a sentence task stands on it."""
        return self.sentence_task is not None

    def build(self, input_shape: Any = None) -> None:
        """Makes the weights; their shapes follow from the config."""
        super().build()
        if self.sentence_pair is not None:
            self.sentence_pair.build((None, self.config.hidden_size))

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> dict[str, Any]:
        """See the class."""
        outputs = self.backbone(inputs, training=training)
        sequence_output = outputs["sequence_output"]
        logits = {"mlm": self.masked_logits(sequence_output, inputs)}
        if self.sentence_pair is not None:
            logits[self.sentence_task] = self.sentence_pair(
                outputs["pooled_output"]
            )
        return logits

    def get_config(self) -> dict[str, Any]:
        """Serializable arguments of the constructor."""
        return {**super().get_config(), "sentence_task": self.sentence_task}


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForMaskedLM(_MaskedModel):
    """Masked-LM alone.

    Args:
        backbone: the encoder; its word embeddings are the decoder's weights.

    Call arguments:
        inputs: those of AlbertBackbone, where "[MASK]" in a text is the mask;
            and `masked_positions`, int [B, P], the positions to predict;
            every position when absent.

    Returns:
        float32 logits [B, P, V].
    """

    def __init__(self, backbone: AlbertBackbone, **kwargs: Any):
        super().__init__(backbone, **kwargs)
        self.build()

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> Any:
        """See the class."""
        outputs = self.backbone(inputs, training=training)
        return self.masked_logits(outputs["sequence_output"], inputs)


def masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, without [CLS] and [SEP]; "[MASK]" is the mask."""
    first, *others = text.split(MASK)
    ids = tokenizer.encode(first)
    blank = tokenizer.piece_to_id(WORD_MARK)
    for part in others:
        following = tokenizer.encode(part)
        # "[MASK]." : the word mark that SentencePiece puts before "." would
        # say that a blank stands there.
        if not part[:1].isspace() and following[:1] == [blank]:
            following = following[1:]
        ids += [MASK_ID, *following]
    return ids
