"""The base class of all models: input checks, text inputs, int8, adapters."""

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
    """Abstract: a Keras model that checks its inputs and also accepts texts.

    Shapes are checked when the model is called or traced. The range of ids is
    checked when they arrive as NumPy arrays, in `model(x)`, `fit`, `evaluate`
    and `predict`. It cannot be checked in a compiled graph, or if the model
    is part of another model: there JAX silently clamps an id out of range.
    Texts are tokenized in the same methods, by `preprocess` or, for a tf.data
    dataset, by `preprocessor`. Class labels may be given by name if the model
    has label names.
    """

    config: AlbertConfig
    axes = ROW  # names of the axes of `token_ids`
    takes_packed = False  # whether a row may hold several examples

    def __new__(cls, *args, **kwargs):
        """Raises TypeError for an argument that the class does not have."""
        check_argument_names(cls, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __repr__(self) -> str:
        """The class, sizes, vocabulary and labels of the model in one line."""
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
        """The vocabulary that turns texts into ids, or None."""
        return self.backbone.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None):
        self.backbone.tokenizer = tokenizer

    def preprocess(self, texts: Any) -> dict:
        """Tokenizes texts into the arrays that the model is called with.

        Args:
            texts: B texts: a list, an array or a column of a table. For pairs
                of texts, a tuple of two of these, or a dict of `text` and
                `pair`. Rows are cut at `max_position_embeddings` tokens.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, int32 [B, S]; S is the
            length of the longest row, rounded up to a multiple of 32.

        Raises:
            AlbertError: the model has no vocabulary, or `texts` is empty or a
                single string.
        """
        texts = self.named_texts(texts)
        return self.tokenized(texts["text"], texts.get("pair"))

    def named_texts(self, texts: Any) -> dict:
        """The texts of examples in a dict, by the names of their parts.

        Raises:
            AlbertError: a dict with other keys than this model's.
        """
        return named_texts(texts)

    @property
    def preprocessor(self) -> Preprocessor:
        """`preprocess` for tf.data: `dataset.map(model.preprocessor)`.

        Raises:
            AlbertError: the model has no vocabulary, or tensorflow-text is
                not installed.
        """
        longest = self.config.max_position_embeddings
        return preprocessor_of(self.vocabulary(), longest)

    def __dir__(self):
        # When Keras saves a model, it reads every attribute and saves the
        # layers that it finds. Reading `preprocessor` would create a layer.
        return [name for name in super().__dir__() if name != "preprocessor"]

    def classes(self, shape: Any) -> dict[str | None, Classes]:
        """The valid labels of each output, by its name.

        The key is None if the model has a single output; outputs whose labels
        are not classes are left out.

        Args:
            shape: the shape of `token_ids`.
        """
        return {}

    def checked_labels(self, y: Any, x: Any) -> Any:
        """Converts label names to numbers and checks the range of labels.

        Args:
            y: labels, as `fit` takes them.
            x: the ids of the same examples.

        Raises:
            AlbertError: a label is out of range, or its name is unknown.
        """
        shape = x["token_ids"].shape if isinstance(x, dict) else ()
        return checked_labels(
            y, self.classes(shape), getattr(self, "loss", None)
        )

    def tokenized(self, texts: Any, pairs: Any = None) -> dict:
        """Tokenizes texts, or pairs of texts, and pads them to one length."""
        texts = as_texts(texts)
        longest = self.config.max_position_embeddings
        arrays = self.vocabulary()(
            texts,
            None if pairs is None else as_texts(pairs, "pairs"),
            longest,
        )
        return round_length(arrays, longest)

    def vocabulary(self) -> Tokenizer:
        """The tokenizer; raises AlbertError if the model has none."""
        if self.tokenizer is None:
            raise AlbertError(
                "Texts need a vocabulary and this model has none. Set it: "
                f"model.tokenizer = Tokenizer({VOCAB_FILE!r}); or pass ids."
            )
        return self.tokenizer

    def _arrays(self, x):
        """Converts texts to ids and checks ids."""
        if holds_text(x):
            x = self.preprocess(x)
        check_data(self.config, x, self.axes, self.takes_packed)
        return x

    def _fed(self, x, y=None) -> tuple:
        """x and y for Keras: texts become ids, label names become numbers."""
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
        """`keras.Model.fit` for ids or texts, which are checked first.

        Args:
            x: ids; texts as `preprocess` takes them; or batches of either,
                with their labels: a tf.data dataset, a torch DataLoader, a
                generator.
            y: labels: numbers, or names if the model has `labels`.
            args, kwargs: see `keras.Model.fit`.
            validation_data: batches, as x; or a tuple (x, y) or (x, y,
                sample_weight).

        Raises:
            AlbertError: an id or label is out of range, or texts or labels
                have a form that the model does not accept.
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
        """`keras.Model.train_on_batch` for ids or texts, checked first."""
        x, y = self._fed(x, y)
        return super().train_on_batch(x, y, *args, **_weighed(kwargs))

    def test_on_batch(
        self, x: Any, y: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`keras.Model.test_on_batch` for ids or texts, checked first."""
        x, y = self._fed(x, y)
        return super().test_on_batch(x, y, *args, **_weighed(kwargs))

    def predict_on_batch(self, x: Any) -> Any:
        """`keras.Model.predict_on_batch` for ids or texts, checked first."""
        return super().predict_on_batch(self._arrays(x))

    def evaluate(
        self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`keras.Model.evaluate` for the inputs of `fit`, checked first."""
        with plain_errors(self):
            x, y = self._fed(x, y)
            return super().evaluate(x, y, *args, **_weighed(kwargs))

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """`keras.Model.predict` for the inputs of `fit`, checked first."""
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
        """`keras.Model.export`: a graph that takes ids, without tokenizer.

        Raises:
            AlbertError: `input_signature` is missing. Keras cannot tell which
                optional inputs the graph should have. `keras_albert.export`
                writes models with their vocabulary and labels.
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

    # Keras's own config records neither which weights are int8 nor which are
    # frozen: `get_config` below adds both, and `from_config` restores them.

    def quantize(self, mode: str = "int8", **kwargs: Any) -> None:
        """`keras.Model.quantize`: makes all projections and tables int8.

        Weights that layers share are quantized once. A quantized model is for
        inference: int8 weights have no gradient.

        Raises:
            AlbertError: another mode than "int8", or a model with relaxed
                sharing, whose kernels are sums of two weights.
        """
        check_choice("mode", mode, ("int8",))
        if self.config.relaxed_rank:
            raise AlbertError(
                "relaxed sharing cannot be quantized. Expected relaxed_rank=0. "
                f"Received: relaxed_rank={self.config.relaxed_rank}."
            )
        with warnings.catch_warnings():
            # Keras warns of each layer that has no weights to quantize.
            warnings.filterwarnings("ignore", message=".*quantize.*implement")
            super().quantize(mode, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "quantized": quantized_paths(self),
            "frozen": [own_path(v) for v in self.weights if not v.trainable],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
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
        """The projections and embedding tables, by path within the model."""
        return leaves(self)


def _weighed(kwargs: dict) -> dict:
    """Keyword arguments of Keras, with `sample_weight` as an array."""
    if "sample_weight" in kwargs:
        return kwargs | {"sample_weight": as_array(kwargs["sample_weight"])}
    return kwargs


def check_model(model) -> None:
    """Raises AlbertError unless `model` is a model of this package."""
    if not isinstance(model, AlbertModel):
        raise AlbertError(
            "expected a model of this package, as keras_albert.load gives. "
            f"Received: {type(model).__name__}."
        )


def check_not_quantized(model: AlbertModel) -> None:
    """Raises AlbertError if a projection or embedding table is int8."""
    quantized = quantized_paths(model)
    if quantized:
        raise AlbertError(
            "a quantized model cannot be written in this format. "
            f"Received: int8 in {quantized[0]} and {len(quantized) - 1} more. "
            "Take the model from before `quantize`."
        )


def check_plain(model: AlbertModel) -> None:
    """Raises AlbertError if a model is quantized or has LoRA adapters."""
    check_not_quantized(model)
    adapted = [p for p, each in model.leaves().items() if each.lora_enabled]
    if adapted:
        raise AlbertError(
            "weights are exchanged between models without adapters. "
            f"Received: LoRA in {', '.join(adapted)}. Load them before "
            "`enable_lora`, or merge an adapted model: "
            "`keras-albert convert`."
        )
