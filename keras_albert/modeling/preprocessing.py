"""Texts to ids inside a tf.data pipeline, as a Keras layer.

Letters: B batch, C choices, S sequence length.
"""

import base64
import functools
from typing import Any, Self

import keras

from keras_albert.errors import AlbertError, check_flag
from keras_albert.modeling.config import LENGTH_STEP, AlbertConfig
from keras_albert.modeling.inputs import named_texts
from keras_albert.private_apis import takes_strings
from keras_albert.text.special_tokens import PAD_ID
from keras_albert.text.tokenizer import VOCAB_FILE, Tokenizer, check_max_length


@keras.saving.register_keras_serializable("keras_albert")
class Preprocessor(keras.layers.Layer):
    """Turns the texts of a tf.data dataset into ids, inside its graph.

    The ids are those of `model.preprocess`, which runs in Python. Map it over
    a dataset of batches, with or without labels:

    >>> dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(32)
    >>> dataset = dataset.map(model.preprocessor, tf.data.AUTOTUNE)
    >>> model.fit(dataset)

    Args:
        tokenizer: the vocabulary of the model.
        sequence_length: the longest row, in tokens; the rest is cut off.
        fixed_length: True pads every row to `sequence_length`, so that XLA
            (JAX, TPUs) compiles the model once. False pads the rows of a batch
            to the longest of them, rounded up to a multiple of 32, as
            `model.preprocess` does: less work where texts are short, and a
            compilation for each of the few lengths.

    Call arguments:
        x: strings [B]; a tuple of two (texts and their pairs); or a dict of
            `text` (and `pair`), of `question` and `context`, or of `context`,
            `choices` [B, C] (and `question`). Without the axis B where
            `fixed_length` is True.
        y: labels, returned as they are.
        sample_weight: weights, returned as they are.

    Returns:
        the ids x, (x, y) or (x, y, sample_weight), as given. The ids are a
        dict of int32 `token_ids`, `segment_ids` and `padding_mask`, [B, S] or
        of choices [B, C, S]; NumPy arrays where the layer is called outside
        of a TensorFlow graph.

    Raises:
        AlbertError: TensorFlow or tensorflow-text is not installed; `x` holds
            something else than texts; or, with `fixed_length=False`, a single
            example instead of a batch.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sequence_length: int = AlbertConfig.max_position_embeddings,
        fixed_length: bool = True,
        **kwargs: Any,
    ):
        if not isinstance(tokenizer, Tokenizer):
            raise AlbertError(
                f"`tokenizer` must be a Tokenizer: Tokenizer({VOCAB_FILE!r}). "
                f"Received: {type(tokenizer).__name__}."
            )
        check_max_length(sequence_length, pair=False, name="sequence_length")
        check_flag("fixed_length", fixed_length)
        # Imports TensorFlow, and says what to install where it is missing.
        from keras_albert.text.graph_tokenizer import GraphTokenizer

        super().__init__(**kwargs)
        # Strings are for TensorFlow, whatever the backend computes with.
        takes_strings(self)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length
        self.fixed_length = fixed_length
        self._graph = GraphTokenizer(tokenizer)
        self.built = True

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks the texts: what `call` raises Keras writes over many lines."""
        return super().__call__(self._texts(x), *args, **kwargs)

    def call(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """See the class."""
        import tensorflow as tf

        ids = self._ids(x)
        if tf.executing_eagerly():
            ids = {name: value.numpy() for name, value in ids.items()}
        if sample_weight is not None:
            return ids, y, sample_weight
        return ids if y is None else (ids, y)

    def _texts(self, x) -> dict:
        """The texts as tensors, by name."""
        import tensorflow as tf

        x = {name: tf.convert_to_tensor(v) for name, v in _named(x).items()}
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
        if self.fixed_length:  # reshaping forgets it
            length = self.sequence_length
            ids = {
                name: tf.ensure_shape(value, [*value.shape[:-1], length])
                for name, value in ids.items()
            }
        return {k: v[0] for k, v in ids.items()} if single else ids

    def _packed(self, x: dict) -> dict:
        """Rows that are as long as the longest of them."""
        import tensorflow as tf

        from keras_albert.text.graph_rows import pack_choices

        if "choices" in x:
            context = x["context"]
            question = x.get("question", tf.zeros_like(context))
            return pack_choices(
                self._graph,
                context,
                question,
                x["choices"],
                self.sequence_length,
            )
        if "context" in x:
            first, second = x["question"], x["context"]
        else:
            first, second = x["text"], x.get("pair")
        return self._graph.pack(
            self._graph(first),
            None if second is None else self._graph(second),
            self.sequence_length,
        )

    def _padded(self, ids: dict) -> dict:
        import tensorflow as tf

        found, length = tf.shape(ids["token_ids"])[1], self.sequence_length
        if not self.fixed_length:
            rounded = -(-found // LENGTH_STEP) * LENGTH_STEP
            length = tf.minimum(rounded, self.sequence_length)
        padding = [[0, 0], [0, tf.maximum(length - found, 0)]]
        return {
            name: tf.pad(value, padding, constant_values=PAD_ID)
            for name, value in ids.items()
        }

    def get_config(self) -> dict[str, Any]:
        """Serializable arguments of the constructor, vocabulary included."""
        content = base64.b64encode(self.tokenizer.model_bytes).decode("ascii")
        return {
            **super().get_config(),
            "tokenizer": {"model": content, **self.tokenizer.settings},
            "sequence_length": self.sequence_length,
            "fixed_length": self.fixed_length,
        }

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """The inverse of `get_config`."""
        settings = dict(config["tokenizer"])
        content = base64.b64decode(settings.pop("model"))
        tokenizer = Tokenizer.from_bytes(content, **settings)
        return cls(**{**config, "tokenizer": tokenizer})


@functools.lru_cache(maxsize=4)
def preprocessor_of(tokenizer: Tokenizer, longest: int) -> Preprocessor:
    """The preprocessor whose ids are those of `model.preprocess`.

    Kept outside of the model: as an attribute it would be one of the layers
    that are saved with it.
    """
    return Preprocessor(tokenizer, longest, fixed_length=False)


_FORMS = (  # names that are needed, and that may stand beside them
    ({"text"}, {"pair"}),
    ({"question", "context"}, set()),
    ({"context", "choices"}, {"question"}),
)


def _is_single(x: dict) -> bool:
    """Whether these are the texts of one example, not of a batch."""
    return any(
        value.shape.rank == (1 if name == "choices" else 0)
        for name, value in x.items()
    )


def _named(x) -> dict:
    if not isinstance(x, dict):
        return named_texts(x)
    if not any(
        needed <= x.keys() <= needed | allowed for needed, allowed in _FORMS
    ):
        raise AlbertError(
            "texts may be named `text` (and `pair`); `question` and "
            "`context`; or `context`, `choices` (and `question`). Received: "
            f"{sorted(map(str, x))}."
        )
    return x
