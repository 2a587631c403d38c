"""Base classes and helpers of layers and models made from an AlbertConfig.

They check arguments before Keras does, and add what Keras omits from saved
configs: the AlbertConfig, and which weights are quantized.
"""

import dataclasses
import difflib
import inspect
from typing import Any, Self

from keras import layers

from keras_albert.errors import AlbertError
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.inputs import check_vectors
from keras_albert.private_apis import sublayers

# The arguments of every Keras layer: name, dtype, trainable and others.
_KERAS_ARGUMENTS = frozenset(
    inspect.signature(layers.Layer.__init__).parameters
)


def check_config(config) -> None:
    """Raises AlbertError unless `config` is an AlbertConfig."""
    if not isinstance(config, AlbertConfig):
        raise AlbertError(
            "`config` must be an AlbertConfig; AlbertConfig.from_json "
            f"reads a file. Received: {type(config).__name__}."
        )


def check_argument_names(cls: type, names) -> None:
    """Raises TypeError if `cls` lacks an argument; suggests a similar name.

    Without this check, a misspelt argument gives a confusing error: Python
    first reports that the intended argument is missing, or Keras refuses the
    misspelt one without a suggestion. Classes outside this package are not
    checked.
    """
    if not cls.__module__.startswith("keras_albert."):
        return
    known = {
        name: None
        for ancestor in cls.__mro__
        if ancestor.__module__.startswith("keras_albert.")
        for name in inspect.signature(ancestor.__init__).parameters
        if name not in ("self", "args", "kwargs")
    }
    for name in names:
        if name in known or name in _KERAS_ARGUMENTS:
            continue
        close = difflib.get_close_matches(name, known, n=1)
        remedy = (
            f"Did you mean `{close[0]}`?"
            if close
            else f"It takes {', '.join(f'`{each}`' for each in known)}."
        )
        raise TypeError(f"{cls.__name__}() has no argument `{name}`. {remedy}")


class ConfiguredLayer(layers.Layer):
    """Abstract: a public layer whose sizes come from an AlbertConfig.

    The AlbertConfig is saved with the layer, together with the paths of the
    projections and embedding tables that are quantized to int8.
    """

    def __new__(cls, *args, **kwargs):
        """Raises TypeError for an argument that the class does not have."""
        check_argument_names(cls, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, config: AlbertConfig, **kwargs: Any):
        super().__init__(**kwargs)
        check_config(config)
        self.config = config

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "config": dataclasses.asdict(self.config),
            "quantized": quantized_paths(self),
        }

    @classmethod
    def from_config(cls, config: Any) -> Self:
        config = {**config, "config": AlbertConfig.from_dict(config["config"])}
        quantized = config.pop("quantized", [])
        layer = cls(**config)
        if quantized:
            layer.build()
            quantize_paths(layer, quantized)
        return layer


class VectorLayer(ConfiguredLayer):
    """Abstract: a public layer that takes float [B, S, H] and padding masks."""

    def __init__(self, config: AlbertConfig, **kwargs: Any):
        super().__init__(config, **kwargs)
        self.supports_masking = True  # passes the mask of its input on

    def __call__(
        self,
        x: Any,
        padding_mask: Any = None,
        example_ids: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Checks shapes and dtypes, then calls the layer."""
        # Checked here, not in `call`: Keras adds many lines to errors of
        # `call`.
        check_vectors(self.config, x, padding_mask, example_ids)
        return super().__call__(x, padding_mask, example_ids, **kwargs)

    def compute_output_shape(self, x_shape: Any) -> tuple[int | None, ...]:
        return tuple(x_shape)


def own_path(part) -> str:
    """The path of a layer or weight without the name of the model.

    It is therefore the same in all models of an architecture. Files and the
    name tables of `checkpoints` use it.
    """
    return part.path.split("/", 1)[1]


def leaves(layer: layers.Layer) -> dict[str, layers.Layer]:
    """The projections and embedding tables in a layer, by `own_path`."""
    return {
        own_path(part): part
        for part in sublayers(layer)
        if isinstance(part, layers.Dense | layers.Embedding)
    }


def quantized_paths(layer: layers.Layer) -> list[str]:
    """The paths of the projections and embedding tables that are int8."""
    if not layer.built:  # then the paths are not known yet
        return []
    return [
        path
        for path, part in leaves(layer).items()
        if part.quantization_mode is not None
    ]


def quantize_paths(layer: layers.Layer, paths: list[str]) -> None:
    """Quantizes the projections and tables at `paths` that are not int8 yet."""
    for path, part in leaves(layer).items():
        if path in paths and part.quantization_mode is None:
            part.quantize("int8")
