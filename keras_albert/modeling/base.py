"""What all models have: checked inputs, raw strings, int8 and adapters."""

import warnings
from typing import Any, Self

import keras

from keras_albert.errors import AlbertError, check_choice
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.configured import (
    check_argument_names,
    leaves,
    own_path,
    quantize_paths,
    quantized_paths,
)
from keras_albert.modeling.inputs import (
    ROW,
    as_array,
    as_texts,
    check_data,
    check_inputs,
    holds_text,
    named_texts,
    round_length,
)
from keras_albert.modeling.labels import Classes, checked_labels
from keras_albert.modeling.preprocessing import Preprocessor, preprocessor_of
from keras_albert.modeling.streams import (
    batches_of_ids,
    is_stream,
    plain_errors,
)
from keras_albert.private_apis import KeepsJaxState
from keras_albert.text.tokenizer import VOCAB_FILE, Tokenizer


class AlbertModel(KeepsJaxState, keras.Model):
    """Abstract: a model that takes checked ids, or texts.

    Shapes are checked when the model is called or traced. Ids are checked
    where they arrive as NumPy arrays (`model(x)`, `fit`, `evaluate`,
    `predict`): in a compiled graph JAX would clamp an id out of range
    silently; so it does where the model is a part of another. Texts are
    tokenized in the same places: by `preprocess`, or, in a tf.data dataset,
    by `preprocessor`. Labels of classes may be the names that the model has
    for them.
    """

    config: AlbertConfig
    axes = ROW
    takes_packed = False  # rows of several examples

    def __new__(cls, *args, **kwargs):
        """Refuses arguments that the class does not have."""
        check_argument_names(cls, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __repr__(self) -> str:
        """What the model is, in one line."""
        if not (self.built and hasattr(self, "config")):
            return super().__repr__()
        config = self.config
        parts = {
            "name": self.name,
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "parameters": f"{self.count_params():,}",
            "vocabulary": f"{config.vocab_size:,} pieces"
            + ", ids only" * (self.tokenizer is None),
        }
        for name in ("labels", "num_labels"):
            if getattr(self, name, None):
                parts["labels"] = getattr(self, name)
                break
        shown = ", ".join(f"{name}={value}" for name, value in parts.items())
        return f"<{type(self).__name__} {shown}>"

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The vocabulary that turns texts into ids, where there is one."""
        return self.backbone.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None):
        self.backbone.tokenizer = tokenizer

    def preprocess(self, texts: Any) -> dict:
        """Texts -> the arrays that the model is called with.

        Args:
            texts: B texts: a list, an array, a column of a table. For pairs a
                tuple of two, or a dict of `text` and `pair`. What exceeds
                `max_position_embeddings` tokens is cut off.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, int32 [B, S]; S is the
            longest row, rounded up to a multiple of 32.

        Raises:
            AlbertError: the model has no vocabulary, no texts, one bare text.
        """
        texts = self.named_texts(texts)
        return self.tokenized(texts["text"], texts.get("pair"))

    def named_texts(self, texts: Any) -> dict:
        """The parts of examples by name; AlbertError if they do not fit."""
        return named_texts(texts)

    @property
    def preprocessor(self) -> Preprocessor:
        """`preprocess` for tf.data: `dataset.map(model.preprocessor)`.

        Raises:
            AlbertError: no vocabulary, or no tensorflow-text.
        """
        longest = self.config.max_position_embeddings
        return preprocessor_of(self.vocabulary(), longest)

    def __dir__(self):
        # When Keras saves a model it goes through all names and saves the
        # layers that it finds; this one is made on demand.
        return [name for name in super().__dir__() if name != "preprocessor"]

    def classes(self, shape: Any) -> dict[str | None, Classes]:
        """What labels may be, by output; None where there is only one.

        Args:
            shape: of `token_ids`.
        """
        return {}

    def checked_labels(self, y: Any, x: Any) -> Any:
        """Labels as numbers, checked; `x` are the ids that they belong to."""
        shape = x["token_ids"].shape if isinstance(x, dict) else ()
        return checked_labels(
            y, self.classes(shape), getattr(self, "loss", None)
        )

    def tokenized(self, texts: Any, pairs: Any = None) -> dict:
        """`preprocess` of texts, and of second texts where there are pairs."""
        texts = as_texts(texts)
        longest = self.config.max_position_embeddings
        arrays = self.vocabulary()(
            texts,
            None if pairs is None else as_texts(pairs, "pairs"),
            longest,
        )
        return round_length(arrays, longest)

    def vocabulary(self) -> Tokenizer:
        """The tokenizer; AlbertError if the model has none."""
        if self.tokenizer is None:
            raise AlbertError(
                "Texts need a vocabulary and this model has none. Set it: "
                f"model.tokenizer = Tokenizer({VOCAB_FILE!r}); or pass ids."
            )
        return self.tokenizer

    def _arrays(self, x):
        """Ids, checked, of ids or texts."""
        if holds_text(x):
            x = self.preprocess(x)
        check_data(self.config, x, self.axes, self.takes_packed)
        return x

    def _fed(self, x, y=None) -> tuple:
        """What Keras takes for x and y, in which there may be texts."""
        if is_stream(x):
            return batches_of_ids(x, self), y
        x = self._arrays(x)
        return x, y if y is None else self.checked_labels(y, x)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks the inputs, then calls the model."""
        if holds_text(inputs):
            inputs = self.preprocess(inputs)
        check_inputs(self.config, inputs, self.axes, self.takes_packed)
        return super().__call__(inputs, *args, **kwargs)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        *args: Any,
        validation_data: Any = None,
        **kwargs: Any,
    ) -> Any:
        """`keras.Model.fit` of ids or texts, after a check.

        Args:
            x: ids; texts as `preprocess` takes them; or batches of either,
                with their labels: a tf.data dataset, a torch DataLoader, a
                generator.
            y: labels: numbers, or names where the model has `labels`.
            args, kwargs: as Keras has them.
            validation_data: as x, or a tuple of x and y.

        Raises:
            AlbertError: ids or labels out of range; texts or labels that the
                model cannot read.
        """
        with plain_errors(self):
            if isinstance(validation_data, list | tuple):
                held_out, *rest = validation_data
                held_out, labels = self._fed(held_out, *rest[:1])
                weights = map(as_array, rest[1:])
                rest = [labels] * bool(rest)
                validation_data = (held_out, *rest, *weights)
            elif validation_data is not None:
                validation_data, _ = self._fed(validation_data)
            x, y = self._fed(x, y)
            return super().fit(
                x, y, *args, validation_data=validation_data, **_weighed(kwargs)
            )

    def train_on_batch(
        self, x: Any, y: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`keras.Model.train_on_batch` of ids or texts, after a check."""
        x, y = self._fed(x, y)
        return super().train_on_batch(x, y, *args, **_weighed(kwargs))

    def test_on_batch(
        self, x: Any, y: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`keras.Model.test_on_batch` of ids or texts, after a check."""
        x, y = self._fed(x, y)
        return super().test_on_batch(x, y, *args, **_weighed(kwargs))

    def predict_on_batch(self, x: Any) -> Any:
        """`keras.Model.predict_on_batch` of ids or texts, after a check."""
        return super().predict_on_batch(self._arrays(x))

    def evaluate(
        self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`keras.Model.evaluate` of what `fit` takes, after a check."""
        with plain_errors(self):
            x, y = self._fed(x, y)
            return super().evaluate(x, y, *args, **_weighed(kwargs))

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """`keras.Model.predict` of what `fit` takes, after a check."""
        with plain_errors(self):
            x, _ = self._fed(x)
            return super().predict(x, *args, **kwargs)

    def export(
        self,
        filepath: Any,
        *args: Any,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> Any:
        """`keras.Model.export` of the ids' part alone, with a signature.

        Raises:
            AlbertError: no `input_signature`. Keras cannot find out which of
                the optional inputs there are, and its export has neither the
                vocabulary nor the labels: `keras_albert.export` has them.
        """
        if input_signature is None:
            raise AlbertError(
                "Keras's own `export` knows neither texts nor labels. Export "
                f"the model with keras_albert.export(model, {str(filepath)!r})"
                "; or give `input_signature`, for a graph of ids alone."
            )
        super().export(
            filepath, *args, input_signature=input_signature, **kwargs
        )

    # What is int8 and what is frozen is kept with the model.

    def quantize(self, mode: str = "int8", **kwargs: Any) -> None:
        """`keras.Model.quantize` of every projection and table, in int8.

        Shared weights are quantized once and serve all layers. For inference:
        int8 weights have no gradient.

        Raises:
            AlbertError: another mode, or a model with relaxed sharing, whose
                kernels are sums.
        """
        check_choice("mode", mode, ("int8",))
        if self.config.relaxed_rank:
            raise AlbertError(
                "relaxed sharing cannot be quantized. Expected relaxed_rank=0. "
                f"Received: relaxed_rank={self.config.relaxed_rank}."
            )
        with warnings.catch_warnings():
            # Keras names each layer that has no weights to quantize.
            warnings.filterwarnings("ignore", message=".*quantize.*implement")
            super().quantize(mode, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Serializable arguments of the constructor, and what is special."""
        return {
            **super().get_config(),
            "quantized": quantized_paths(self),
            "frozen": [own_path(v) for v in self.weights if not v.trainable],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The inverse of `get_config`."""
        config = dict(config)
        quantized = config.pop("quantized", [])
        frozen = config.pop("frozen", [])
        model = cls(**config)
        quantize_paths(model, quantized)
        for weight in model.weights:
            if own_path(weight) in frozen:
                weight.trainable = False
        return model

    def leaves(self) -> dict[str, keras.layers.Layer]:
        """The projections and tables, by path without the model's name."""
        return leaves(self)


def _weighed(kwargs: dict) -> dict:
    """Arguments of Keras in which sample weights may be a list."""
    if "sample_weight" in kwargs:
        return kwargs | {"sample_weight": as_array(kwargs["sample_weight"])}
    return kwargs


def check_model(model) -> None:
    """AlbertError unless this is a model of this package."""
    if not isinstance(model, AlbertModel):
        raise AlbertError(
            "expected a model of this package, as keras_albert.load gives. "
            f"Received: {type(model).__name__}."
        )


def check_not_quantized(model: AlbertModel) -> None:
    """AlbertError where a projection or table is int8."""
    quantized = quantized_paths(model)
    if quantized:
        raise AlbertError(
            "the model is quantized, its weights cannot be written so. "
            f"Received: int8 in {quantized[0]} and {len(quantized) - 1} more. "
            "Take the model from before `quantize`."
        )


def check_plain(model: AlbertModel) -> None:
    """AlbertError where a model is quantized or has adapters."""
    check_not_quantized(model)
    adapted = [p for p, each in model.leaves().items() if each.lora_enabled]
    if adapted:
        raise AlbertError(
            "weights are exchanged between models without adapters. "
            f"Received: LoRA in {', '.join(adapted)}. Load them before "
            "`enable_lora`, or merge an adapted model: "
            "`keras-albert convert`."
        )
