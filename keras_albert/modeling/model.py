"""What all models have: checked inputs, raw strings, int8 and adapters."""

import warnings
from typing import Any, Self

import keras
import numpy as np

from keras_albert.config import (
    VOCAB_FILE,
    AlbertConfig,
    AlbertError,
    check_choice,
)
from keras_albert.modeling.inputs import (
    ROW,
    as_texts,
    check_data,
    check_inputs,
    holds_text,
    round_length,
)
from keras_albert.private_apis import sublayers
from keras_albert.text.tokenizer import Tokenizer


class AlbertModel(keras.Model):
    """Abstract: a model that takes checked ids, or texts.

    Shapes are checked when the model is called or traced. Ids are checked
    where they arrive as NumPy arrays (`model(x)`, `fit`, `evaluate`,
    `predict`): in a compiled graph JAX would clamp an id out of range
    silently; so it does where the model is a part of another. Texts are
    tokenized in the same places, by `preprocess`.
    """

    config: AlbertConfig
    axes = ROW
    takes_packed = False  # rows of several examples

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
            texts: list of B texts, or a tuple of two such lists: pairs. What
                exceeds `max_position_embeddings` tokens is cut off.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, int32 [B, S]; S is the
            longest row, rounded up to a multiple of 32.

        Raises:
            AlbertError: the model has no vocabulary, no texts, one bare text.
        """
        pairs = None
        if isinstance(texts, tuple) and len(texts) == 2:
            texts, pairs = texts
        return self.tokenized(texts, pairs)

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
        """Checks ids in NumPy inputs, then `keras.Model.fit`."""
        if isinstance(validation_data, list | tuple):
            held_out, *rest = validation_data
            rest = map(_labels, rest)
            validation_data = (self._arrays(held_out), *rest)
        return super().fit(
            self._arrays(x),
            _labels(y),
            *args,
            validation_data=validation_data,
            **kwargs,
        )

    def train_on_batch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks ids in NumPy inputs, then `keras.Model.train_on_batch`."""
        return super().train_on_batch(self._arrays(x), *args, **kwargs)

    def test_on_batch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks ids in NumPy inputs, then `keras.Model.test_on_batch`."""
        return super().test_on_batch(self._arrays(x), *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Checks ids in NumPy inputs, then `keras.Model.predict_on_batch`."""
        return super().predict_on_batch(self._arrays(x))

    def evaluate(
        self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Checks ids in NumPy inputs, then `keras.Model.evaluate`."""
        return super().evaluate(self._arrays(x), _labels(y), *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks ids in NumPy inputs, then `keras.Model.predict`."""
        return super().predict(self._arrays(x), *args, **kwargs)

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
            "quantized": [
                path
                for path, layer in self.leaves().items()
                if layer.quantization_mode is not None
            ],
            "frozen": [own_path(v) for v in self.weights if not v.trainable],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The inverse of `get_config`."""
        config = dict(config)
        quantized = config.pop("quantized", [])
        frozen = config.pop("frozen", [])
        model = cls(**config)
        for path, layer in model.leaves().items():
            if path in quantized and layer.quantization_mode is None:
                layer.quantize("int8")
        for weight in model.weights:
            if own_path(weight) in frozen:
                weight.trainable = False
        return model

    def leaves(self) -> dict[str, keras.layers.Layer]:
        """The projections and tables, by path without the model's name."""
        return {
            own_path(layer): layer
            for layer in sublayers(self)
            if isinstance(layer, keras.layers.Dense | keras.layers.Embedding)
        }


def _labels(y):
    """Labels in a list as an array: beside texts a list is natural."""
    return np.array(y) if isinstance(y, list) else y


def own_path(part) -> str:
    """The path of a layer or weight, without the model's own name.

    So it is the same in every model of one architecture: the name that files
    and name tables use.
    """
    return part.path.split("/", 1)[1]


def check_model(model) -> None:
    """AlbertError unless this is a model of this package."""
    if not isinstance(model, AlbertModel):
        raise AlbertError(
            "expected a model of this package, as keras_albert.load gives. "
            f"Received: {type(model).__name__}."
        )


def check_not_quantized(model: AlbertModel) -> None:
    """AlbertError where a projection or table is int8."""
    quantized = [
        path
        for path, layer in model.leaves().items()
        if layer.quantization_mode is not None
    ]
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
