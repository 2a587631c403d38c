"""AlbertForTextEmbedding: one vector for each text.

Letters: B batch, T texts of an example, S sequence length, H hidden size,
D size of the vectors: that of the projection, or H without one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_albert.errors import (
    AlbertError,
    check_choice,
    check_flag,
    check_positive,
)
from keras_albert.modeling import whitening
from keras_albert.modeling.backbone import (
    AlbertBackbone,
    HeadedModel,
    padding_mask_of,
)
from keras_albert.modeling.config import (
    IDF_FIRST_LAST,
    IDF_POOLINGS,
    POOLINGS,
)
from keras_albert.modeling.gradient_caching import computed_in_parts
from keras_albert.modeling.inputs import as_texts, vocabulary_of
from keras_albert.modeling.pooling import (
    POOL,
    checked_dimensions,
    inverse_document_frequencies,
    normalized,
)
from keras_albert.modeling.whitening import Projection
from keras_albert.text.model_inputs import text_rows

# Where XLA compiles each shape, `encode` pads batches to a multiple of this, so
# that there are few. Padding to 32 would more than double the work for texts
# of a sentence.
_ENCODED_STEP = 8


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForTextEmbedding(HeadedModel):
    """Computes one vector for each text.

    A pretrained encoder gives poor vectors until it is fine-tuned, see
    `keras-albert finetune --task embedding`, or `fit` with
    `MultipleNegativesRanking` and examples of several texts. `whitened` makes
    better ones without training.

    Args:
        backbone: the encoder; its pooler is not used.
        pooling: "mean" averages the vectors of all tokens; "max" takes the
            largest value of each unit; "cls" takes the vector of [CLS];
            "weighted_layers" is the mean of all tokens of a weighted mean of
            the outputs of all layers, whose weights are learned; "idf" is the
            mean of all tokens, each weighted by how rare its piece is, which
            `adapt` computes from texts; "idf_first_last" has that mean of what
            the first layer reads, followed by that of what the last one writes.
        projection: D, the size of a dense layer after the pooling; None for no
            such layer.
        max_tokens: the most tokens of a text; None for as many as the encoder
            reads.
        normalize: whether the vectors are scaled to length 1.

    Call arguments:
        inputs: see AlbertBackbone; or, for examples of T texts, arrays of the
            shape [B, T, S].

    Returns:
        float32 [B, D]; [B, T, D] for examples of T texts.

    Raises:
        AlbertError: an argument is out of range.
    """

    takes_several = True

    def __init__(
        self,
        backbone: AlbertBackbone,
        pooling: str = "mean",
        projection: int | None = None,
        max_tokens: int | None = None,
        normalize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(backbone, **kwargs)
        check_choice("pooling", pooling, POOLINGS)
        self.pooling = pooling
        if max_tokens is not None:
            check_positive("max_tokens", max_tokens)
            most = self.config.max_position_embeddings
            if max_tokens > most:
                raise AlbertError(
                    "`max_tokens` must not exceed max_position_embeddings="
                    f"{most}. Received: {max_tokens}."
                )
        self.max_tokens = max_tokens
        check_flag("normalize", normalize)
        self.normalize = normalize
        self.layer_weights = None
        self.token_weights = None
        self.projection = None
        if projection is not None:
            check_positive("projection", projection)
            self.projection = self._logits(int(projection), "projection")
        self.rows_at_once = None
        self.build()

    def build(self, input_shape: Any = None) -> None:
        if self.pooling == "weighted_layers":
            # A softmax of zeros: at first all layers have the same weight.
            self.layer_weights = self.add_weight(
                (self.config.num_hidden_layers,),
                "zeros",
                dtype="float32",  # in which the pooling computes
                autocast=False,
                name="layer_weights",
            )
        if self.pooling in IDF_POOLINGS:
            # Until `adapt` is called, all pieces have the same weight.
            self.token_weights = self.add_weight(
                (self.config.vocab_size,),
                "ones",
                trainable=False,
                dtype="float32",
                autocast=False,
                name="token_weights",
            )
        if self.projection is not None:
            self.projection.build((None, self._pooled_size))
        self.built = True

    @property
    def rows_at_once(self) -> int | None:
        """Most rows whose activations a training step holds; None for all.

        It changes how the gradient is computed, not its value.
        """
        return self._rows_at_once

    @rows_at_once.setter
    def rows_at_once(self, rows: int | None) -> None:
        self._rows_at_once = rows
        # XLA cannot differentiate the loop over the parts on TensorFlow.
        is_loop = rows is not None and keras.backend.backend() == "tensorflow"
        self.supports_jit = not is_loop

    @property
    def most_tokens(self) -> int:
        """The most tokens of a text; `preprocess` cuts the rest off."""
        return self.max_tokens or super().most_tokens

    @property
    def size(self) -> int:
        """D, the size of the vectors."""
        if self.projection is None:
            return self._pooled_size
        return self.projection.units

    @property
    def _pooled_size(self) -> int:
        """The size of the vectors before the projection."""
        parts = 2 if self.pooling == IDF_FIRST_LAST else 1
        return parts * self.config.hidden_size

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> Any:
        shape = ops.shape(inputs["token_ids"])
        if len(shape) == 2:
            return self._vectors(inputs, training)
        batch, texts, length = shape
        count = -1 if batch is None else batch * texts  # None while building
        rows = {
            name: ops.reshape(value, (count, length))
            for name, value in inputs.items()
        }
        vectors = self._vectors(rows, training)
        return ops.reshape(vectors, (-1, texts, self.size))

    def _vectors(self, rows: Mapping[str, Any], training: bool | None) -> Any:
        """The vectors of rows [R, S]: float32 [R, D]."""
        if training and self.rows_at_once:
            return computed_in_parts(
                self,
                lambda part: self._pooled(part, training=True),
                rows,
                self.rows_at_once,
                self.size,
            )
        return self._pooled(rows, training)

    def _token_vectors(
        self, rows: Mapping[str, Any], training: bool | None
    ) -> Any:
        """The vectors to pool, float32 [R, S, H]; or 2H for idf_first_last."""
        outputs = self.backbone(
            rows,
            training=training,
            return_hidden_states=self.layer_weights is not None,
            return_embedding_output=self.pooling == IDF_FIRST_LAST,
        )
        last = ops.cast(outputs["sequence_output"], "float32")
        if self.layer_weights is not None:
            shares = ops.softmax(self.layer_weights.value)
            return sum(
                shares[number] * ops.cast(layer, "float32")
                for number, layer in enumerate(outputs["hidden_states"])
            )
        if self.pooling == IDF_FIRST_LAST:
            first = ops.cast(outputs["embedding_output"], "float32")
            return ops.concatenate([first, last], axis=-1)
        return last

    def _pooled(self, rows: Mapping[str, Any], training: bool | None) -> Any:
        x = self._token_vectors(rows, training)
        mask = padding_mask_of(rows)
        if self.token_weights is not None:
            weights = ops.take(self.token_weights.value, rows["token_ids"])
            mask = ops.cast(mask, "float32") * weights
        vectors = POOL[self.pooling](x, mask)
        if self.projection is not None:
            vectors = self.projection(vectors)
        return ops.normalize(vectors) if self.normalize else vectors

    def adapt(self, texts: Sequence[str]) -> None:
        """Computes the weights of pieces for IDF_POOLINGS from texts.

        The model must have the tokenizer. `finetune` does this with the texts
        that a model is trained on.

        Raises:
            AlbertError: the model has another pooling or no tokenizer, or
                `texts` is not a list of one text or more.
        """
        if self.token_weights is None:
            raise AlbertError(
                "only a model with pooling "
                f"{' or '.join(map(repr, IDF_POOLINGS))} has weights of "
                f"tokens. Received: {self.pooling!r}. Make one: "
                'AlbertForTextEmbedding(backbone, "idf").'
            )
        tokenizer, texts = vocabulary_of(self), as_texts(texts)
        rows = text_rows(tokenizer, texts, None, self.most_tokens)
        self.token_weights.assign(
            inverse_document_frequencies(rows, self.config.vocab_size)
        )

    def whitened(
        self, texts: Sequence[str], dimensions: int | None = None
    ) -> "AlbertForTextEmbedding":
        """A model whose vectors tell texts of one kind apart, without training.

        The vectors of an encoder that was not trained for it differ mostly in a
        few directions, whatever the texts say. Here a projection is computed
        after which the vectors of `texts` have a mean of 0, and their numbers
        are uncorrelated and have nearly the same variance (whitening, Su et al.
        2021, arXiv:2103.15316). The first numbers are of the directions in
        which the texts differed most. With `normalize`, vectors are scaled to
        length 1 after that.

        Args:
            texts: texts like those that will be compared. A thousand or more
                are better than few.
            dimensions: how many numbers the new vectors have; None for as many
                as those of this model.

        Returns:
            a model with the same encoder, not a copy of it. Its projection
            includes that of this model.

        Raises:
            AlbertError: the model has no tokenizer, or its projection is
                quantized or has LoRA; `texts` is not a list of more than
                `dimensions` different texts, or all of them have the same
                vector; `dimensions` is more than the vectors of this model
                have.
        """
        return whitening.whitened(self, texts, dimensions)

    def with_words(
        self, texts: Sequence[str], share: float = 0.1
    ) -> "AlbertForTextEmbedding":
        """A model whose vectors also tell which words a text has.

        The layers of a small model, or of one that was trained on few texts,
        make too little of rare words. Here the numbers of a whitened or trained
        model are followed by those of the words: the mean of what the first
        layer reads, weighted as the tokens are, and whitened. If all vectors
        were of one length, the cosine of two texts would be `1 - share` times
        the cosine of this model plus `share` times that of the words.

        Args:
            texts: texts like those that will be compared.
            share: the share of the words in the squared length of the vectors,
                above 0 and below 1, in the mean of `texts`. That of one text
                may be another.

        Returns:
            a model with the same encoder, not a copy of it, the pooling
            "idf_first_last", and vectors of D + E numbers (E: embedding size;
            H if that is smaller).

        Raises:
            AlbertError: as `whitened`; or the pooling is not "idf", or `share`
                is not between 0 and 1.
        """
        return whitening.with_words(self, texts, share)

    def with_projection(
        self,
        weights: Projection | None,
        normalize: bool,
        pooling: str | None = None,
    ) -> "AlbertForTextEmbedding":
        """Makes a model with the same encoder and another projection.

        `weights` are the kernel and the bias, or None for no projection. The
        new model has the same weights of layers and of tokens, and the same
        pooling if `pooling` is None.
        """
        model = AlbertForTextEmbedding(
            self.backbone,
            pooling or self.pooling,
            None if weights is None else len(weights[1]),
            self.max_tokens,
            normalize,
        )
        if weights is not None:
            model.projection.set_weights(list(weights))
        for name in ("layer_weights", "token_weights"):
            value = getattr(self, name)
            if value is not None:
                getattr(model, name).assign(ops.convert_to_numpy(value))
        return model

    def _encoded(self, texts: list[str], batch_size: int) -> np.ndarray:
        """The vectors of texts, as the model computes them: float32 [N, D]."""
        ids = self.preprocess(texts)
        lengths = ids["padding_mask"].sum(axis=1)
        vectors = np.zeros((len(lengths), self.size), "float32")
        order = np.argsort(lengths, kind="stable")
        for start in range(0, len(order), batch_size):
            rows = chosen = order[start : start + batch_size]
            longest = int(lengths[chosen].max())
            if self.compiles_each_shape:  # make all batches of few shapes
                longest = -(-longest // _ENCODED_STEP) * _ENCODED_STEP
                rows = np.pad(chosen, (0, batch_size - len(chosen)), "edge")
            batch = {name: value[rows, :longest] for name, value in ids.items()}
            vectors[chosen] = self.predict_on_batch(batch)[: len(chosen)]
        return vectors

    def encode(
        self,
        texts: list[str],
        batch_size: int = 32,
        normalize: bool = True,
        dimensions: int | None = None,
    ) -> np.ndarray:
        """Computes the vectors of texts.

        Texts of similar length share batches, so that little padding is
        computed.

        Args:
            texts: N texts.
            batch_size: number of texts per batch.
            normalize: whether to scale the vectors to length 1; a model that
                was made with `normalize` does so in any case.
            dimensions: how many of the first numbers of each vector are kept;
                None for all. A model that was trained for it (`finetune
                --embedding.dimensions`) loses little.

        Returns:
            float32 [N, D], or [N, dimensions].

        Raises:
            AlbertError: the model has no vocabulary, or vectors of fewer
                numbers than `dimensions`.
        """
        check_positive("batch_size", batch_size)
        size = checked_dimensions(dimensions, self.size)
        vectors = self._encoded(texts, batch_size)[:, :size]
        # The model has normalized all numbers of its vectors.
        is_cut = self.normalize and dimensions is not None
        return normalized(vectors) if normalize or is_cut else vectors

    def similarity(self, a: list[str], b: list[str]) -> np.ndarray:
        """Cosine similarities of texts, float32 [len(a), len(b)]."""
        return self.encode(a) @ self.encode(b).T

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "pooling": self.pooling}
        if self.projection is not None:
            config["projection"] = self.projection.units
        if self.max_tokens is not None:
            config["max_tokens"] = self.max_tokens
        if self.normalize:
            config["normalize"] = True
        return config
