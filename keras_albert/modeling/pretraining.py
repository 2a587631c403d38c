"""Pretraining heads: masked-LM, and sentence order or next sentence.

Letters: B batch, S sequence length, P predicted positions, E embedding size,
H hidden size, V vocabulary, K examples in a row.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers, ops

from keras_albert.errors import AlbertError, check_choice, check_positive
from keras_albert.modeling.backbone import (
    AlbertBackbone,
    HeadedModel,
    vectors_at,
)
from keras_albert.modeling.config import FILL_MASK_CHOICES, SENTENCE_TASKS
from keras_albert.modeling.inputs import (
    as_texts,
    check_equally_many,
    named_texts,
    round_length,
)
from keras_albert.modeling.layers import ACTIVATIONS, initializer, layer_norm
from keras_albert.text.special_tokens import MASK_ID, SPECIAL_PIECES
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer

MASK = SPECIAL_PIECES[MASK_ID]
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
            autocast=False,  # stays float32, like the logits
        )
        self.built = True

    def call(self, x, word_table):
        """Maps vectors and the word embedding layer to logits.

        Args:
            x: float [B, P, H].
            word_table: the `ReversibleEmbedding` of the words.

        Returns:
            float32 [B, P, V].
        """
        x = self.layer_norm(self.dense(x))  # [B, P, E]
        logits = word_table(x, reverse=True)  # [B, P, V]
        return ops.cast(logits, "float32") + self.output_bias


class Fill(NamedTuple):
    """A prediction for one [MASK] of a text."""

    piece: str
    """the predicted piece, as written in the vocabulary: it begins with the
    word mark if it begins a word"""
    probability: float
    """probability of the piece, from 0 to 1"""
    text: str
    """the text with this [MASK] replaced; others are kept"""


def filled(text: str, number: int, piece: str, probability: float) -> Fill:
    """Replaces one [MASK] of a text, counted from 0, by a piece."""
    parts = text.split(MASK)
    before = MASK.join(parts[: number + 1])
    after = MASK.join(parts[number + 1 :])
    word = piece.replace(WORD_MARK, " ").lstrip()
    return Fill(piece, probability, before + word + after)


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
        """Masked-LM logits at `masked_positions`, or at all positions.

        Args:
            sequence_output: float [B, S, H].
            inputs: the model's inputs; `masked_positions`, int [B, P], is
                optional.

        Returns:
            float32 [B, P, V], or [B, S, V] without `masked_positions`.
        """
        x = sequence_output
        positions = inputs.get("masked_positions")
        if positions is not None:
            x = vectors_at(x, positions)
        return self.masked_lm(x, word_table=self.backbone.embeddings.word)

    def preprocess(self, texts: Any) -> dict:
        """As `AlbertModel.preprocess`; "[MASK]" becomes the mask token."""
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
        """Raises AlbertError: in a graph "[MASK]" would be read as a word."""
        raise AlbertError(
            f"{type(self).__name__} has no preprocessor for datasets, in which "
            '"[MASK]" would be a word. Make ids with model.preprocess(texts), '
            "or pretraining examples with `pretraining_dataset`."
        )

    def fill_mask(
        self, texts: list[str], top_k: int = FILL_MASK_CHOICES
    ) -> list[list[list[Fill]]]:
        """Predicts the pieces at the "[MASK]"s of texts.

        Args:
            texts: B texts (not pairs), each with at least one "[MASK]".
            top_k: number of predictions for each "[MASK]".

        Returns:
            A list for each text, of a list for each of its masks, of `top_k`
            `Fill`s, the most probable first.

        Raises:
            AlbertError: a text has no "[MASK]", or is so long that one is cut
                off; or `texts` is a single text.
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
        # The vocabulary may have fewer pieces than the model's vocab_size.
        named = probabilities[: self.tokenizer.vocab_size]
        fills = []
        for index in np.argsort(-named)[:top_k]:
            piece = self.tokenizer.id_to_piece(index)
            fills.append(filled(text, number, piece, float(named[index])))
        return fills


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
        [B, K, 2] with `cls_positions`. Class 1 means, for `sop`, that the two
        texts were swapped, and for `nsp`, that the second text is from
        another document.
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
        sequence_output = outputs["sequence_output"]
        logits = {"mlm": self.masked_logits(sequence_output, inputs)}
        if self.sentence_pair is not None:
            logits[self.sentence_task] = self.sentence_pair(
                outputs["pooled_output"]
            )
        return logits

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sentence_task": self.sentence_task}


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForMaskedLM(_MaskedModel):
    """Masked-LM alone.

    Args:
        backbone: the encoder; its word embeddings are the decoder's weights.

    Call arguments:
        inputs: see AlbertBackbone; "[MASK]" in a text becomes the mask token.
            Also `masked_positions`, int [B, P], the positions to predict;
            all positions when absent.

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


def masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, without [CLS] and [SEP]; "[MASK]" gives MASK_ID."""
    first, *others = text.split(MASK)
    ids = tokenizer.encode(first)
    blank = tokenizer.piece_to_id(WORD_MARK)
    for part in others:
        following = tokenizer.encode(part)
        # SentencePiece puts a word mark before each text, as if a blank came
        # first. In "[MASK]." there is no blank before ".": remove the mark.
        if not part[:1].isspace() and following[:1] == [blank]:
            following = following[1:]
        ids += [MASK_ID, *following]
    return ids
