"""Preprocessor: a Keras layer that tokenizes texts in a tf.data pipeline.

Letters: B batch, C choices, S sequence length.
"""

import base64
import functools
from typing import Any, Self

import keras
import numpy as np

from keras_albert.errors import AlbertError, check_flag
from keras_albert.modeling.config import PREPROCESSED_STEP, AlbertConfig
from keras_albert.modeling.inputs import named_texts
from keras_albert.private_apis import allow_strings
from keras_albert.text.normalization import to_text
from keras_albert.text.special_tokens import PAD_ID
from keras_albert.text.tokenizer import (
    Tokenizer,
    check_is_tokenizer,
    check_max_length,
)


@keras.saving.register_keras_serializable("keras_albert")
class Preprocessor(keras.layers.Layer):
    """Tokenizes the texts of a tf.data dataset, inside its graph.

    The ids equal those of `model.preprocess`, which runs in Python. Map the
    layer over a dataset of batches, with or without labels:

    >>> dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(32)
    >>> dataset = dataset.map(model.preprocessor, tf.data.AUTOTUNE)
    >>> model.fit(dataset)

    Args:
        tokenizer: the vocabulary of the model.
        sequence_length: the most tokens of a row; longer texts are cut off.
        fixed_length: True pads every row to `sequence_length`, so that XLA
            (JAX, TPUs) compiles the model once. False pads the rows of a batch
            to the longest of them, rounded up to a multiple of 32, as
            `model.preprocess` does: this saves computation if texts are short,
            and XLA compiles the model for each of the few lengths.

    Call arguments:
        x: strings [B]; a tuple of two (texts and their pairs); or a dict of
            `text` (and `pair`), of `question` and `context`, or of `context`,
            `choices` [B, C] (and `question`). With `fixed_length` the axis B
            may be absent.
        y: labels, returned unchanged.
        sample_weight: weights, returned unchanged.

    Returns:
        x, (x, y) or (x, y, sample_weight), as called. Here x is a dict of int32
        `token_ids`, `segment_ids` and `padding_mask`, [B, S], or [B, C, S] for
        choices. Outside a TensorFlow graph they are NumPy arrays.

    Raises:
        AlbertError: TensorFlow or tensorflow-text is not installed; `x` does
            not hold texts; or `x` is no batch and `fixed_length` is False.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sequence_length: int = AlbertConfig.max_position_embeddings,
        fixed_length: bool = True,
        **kwargs: Any,
    ):
        check_is_tokenizer(tokenizer)
        check_max_length(sequence_length, pair=False, name="sequence_length")
        check_flag("fixed_length", fixed_length)
        # Imports TensorFlow; the error says what to install if it is missing.
        from keras_albert.text.graph_tokenizer import GraphTokenizer

        super().__init__(**kwargs)
        # Only TensorFlow has string tensors: no conversion to the backend.
        allow_strings(self)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length
        self.fixed_length = fixed_length
        self._graph = GraphTokenizer(tokenizer)
        self.built = True

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks the texts, then calls the layer."""
        # Not in `call`, to whose errors Keras adds many lines.
        return super().__call__(self._texts(x), *args, **kwargs)

    def call(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        import tensorflow as tf

        ids = self._ids(x)
        if tf.executing_eagerly():
            ids = {name: value.numpy() for name, value in ids.items()}
        if sample_weight is not None:
            return ids, y, sample_weight
        return ids if y is None else (ids, y)

    def _texts(self, x) -> dict:
        import tensorflow as tf

        if any(isinstance(v, keras.KerasTensor) for v in keras.tree.flatten(x)):
            raise AlbertError(
                "a model of keras.Input cannot take texts, as only TensorFlow "
                "has strings. Received: a KerasTensor. Map the preprocessor "
                "over the dataset, dataset.map(preprocessor), or call it first."
            )
        x = {
            name: tf.convert_to_tensor(keras.tree.map_structure(_encodable, v))
            for name, v in _named(x).items()
        }
        for name, value in x.items():
            if value.dtype != tf.string:
                raise AlbertError(
                    f"`{name}` must be strings. Received: {value.dtype.name}."
                )
        if _is_single(x) and not self.fixed_length:
            raise AlbertError(
                "the dataset holds single examples, whose rows would differ in "
                "length. Make batches first, dataset.batch(32), or pad to one "
                "length: Preprocessor(tokenizer, sequence_length)."
            )
        return x

    def _ids(self, x: dict) -> dict:
        import tensorflow as tf

        single = _is_single(x)
        if single:
            x = {name: value[tf.newaxis] for name, value in x.items()}
        ids = self._padded(self._packed(x))
        if "choices" in x:
            count = x["choices"].shape[1] or tf.shape(x["choices"])[1]
            ids = {
                name: tf.reshape(value, [-1, count, tf.shape(value)[1]])
                for name, value in ids.items()
            }
        if self.fixed_length:  # the static shape is lost by reshaping
            length = self.sequence_length
            ids = {
                name: tf.ensure_shape(value, [*value.shape[:-1], length])
                for name, value in ids.items()
            }
        return {k: v[0] for k, v in ids.items()} if single else ids

    def _packed(self, x: dict) -> dict:
        """Packs texts into rows, padded to the longest row of the batch."""
        import tensorflow as tf

        from keras_albert.text.graph_rows import pack_choices

        if "choices" in x:
            context = x["context"]
            question = x.get("question", tf.zeros_like(context))
            texts = context, question, x["choices"]
            return pack_choices(self._graph, *texts, self.sequence_length)
        names = ("question", "context") if "context" in x else ("text", "pair")
        texts = [self._graph(x[name]) for name in names if name in x]
        return self._graph.pack(*texts, max_length=self.sequence_length)

    def _padded(self, ids: dict) -> dict:
        import tensorflow as tf

        found, length = tf.shape(ids["token_ids"])[1], self.sequence_length
        if not self.fixed_length:
            rounded = -(-found // PREPROCESSED_STEP) * PREPROCESSED_STEP
            length = tf.minimum(rounded, self.sequence_length)
        padding = [[0, 0], [0, tf.maximum(length - found, 0)]]
        return {
            name: tf.pad(value, padding, constant_values=PAD_ID)
            for name, value in ids.items()
        }

    def get_config(self) -> dict[str, Any]:
        content = base64.b64encode(self.tokenizer.model_bytes).decode("ascii")
        return {
            **super().get_config(),
            "tokenizer": {"model": content, **self.tokenizer.settings},
            "sequence_length": self.sequence_length,
            "fixed_length": self.fixed_length,
        }

    @classmethod
    def from_config(cls, config: Any) -> Self:
        settings = dict(config["tokenizer"])
        content = base64.b64decode(settings.pop("model"))
        tokenizer = Tokenizer.from_bytes(content, **settings)
        return cls(**{**config, "tokenizer": tokenizer})


@functools.lru_cache(maxsize=4)
def preprocessor_of(tokenizer: Tokenizer, longest: int) -> Preprocessor:
    """The preprocessor whose ids equal those of `model.preprocess`.

    It is cached here and not in the model: Keras would save an attribute of
    the model as one of its layers.
    """
    return Preprocessor(tokenizer, longest, fixed_length=False)


_FORMS = (  # (required keys, optional keys)
    ({"text"}, {"pair"}),
    ({"question", "context"}, set()),
    ({"context", "choices"}, {"question"}),
)


def _is_single(x: dict) -> bool:
    return any(
        value.shape.rank == (1 if name == "choices" else 0)
        for name, value in x.items()
    )


def _named(x) -> dict:
    if not isinstance(x, dict):
        return named_texts(x)
    fits = (needed <= x.keys() <= needed | more for needed, more in _FORMS)
    if not any(fits):
        raise AlbertError(
            "texts may be named `text` (and `pair`); `question` and "
            "`context`; or `context`, `choices` (and `question`). Received: "
            f"{sorted(map(str, x))}."
        )
    return x


def _encodable(value: Any) -> Any:
    """Python strings without lone surrogates, which UTF-8 lacks."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
        return keras.tree.map_structure(_encodable, value.tolist())
    return to_text(value) if isinstance(value, str) else value
