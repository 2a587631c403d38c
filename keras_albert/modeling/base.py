"""The base classes of all models and layers of this package.

They check arguments before Keras does, and add what Keras omits from saved
configs: the AlbertConfig, and which weights are int8 or frozen. A model also
accepts texts, label names and batches of them; `feeding.py` turns these into
the arrays that the forward pass reads.
"""

import dataclasses
import inspect
import os
import warnings
from collections.abc import Container, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import keras
from keras import layers

from keras_albert.errors import (
    AlbertError,
    check_argument_names,
    check_choice,
)
from keras_albert.modeling.config import AlbertConfig
from keras_albert.private_apis import (
    KeepsJaxState,
    sublayers,
    without_retracing_warnings,
)

if TYPE_CHECKING:
    from keras_albert.modeling.labels import Classes
    from keras_albert.modeling.preprocessing import Preprocessor
    from keras_albert.text.tokenizer import Tokenizer

# The arguments of every Keras layer: name, dtype, trainable and others.
_OF_KERAS = frozenset(inspect.signature(layers.Layer.__init__).parameters)


def feeding() -> ModuleType:
    """Returns the module that checks inputs and turns texts into ids.

    It is imported when the first inputs arrive, so that the file of a model,
    such as `modeling/pretraining.py`, imports nothing that reads texts.
    """
    from keras_albert.modeling import feeding

    return feeding


class AlbertModel(KeepsJaxState, keras.Model):
    """Abstract: a Keras model that checks its inputs and also accepts texts.

    Shapes are checked when the model is called or traced. The range of ids is
    checked when they arrive as NumPy arrays, in `model(x)`, `fit`, `evaluate`
    and `predict`, or in batches of an iterator, PyDataset or DataLoader. It is
    not checked in a tf.data dataset, or if the model is part of another model:
    a negative token id may then count from the end of the table, and one that
    is too large gives NaN on JAX.
    Texts are tokenized in the same methods, by `preprocess` or, for a tf.data
    dataset, by `preprocessor`. Class labels may be given by name if the model
    has label names.
    """

    config: AlbertConfig
    tokenizer: "Tokenizer | None"  # the vocabulary that turns texts into ids
    axes = ("batch", "sequence")  # names of the axes of `token_ids`
    wordpiece_file: str | None = None  # a vocabulary that cannot be read
    takes_packed = False  # whether a row may hold several examples
    # whether an example may have several texts: [batch, text, sequence]
    takes_several = False
    is_encoder = False  # whether it has no head
    has_one_class = False  # whether each example has one of several classes
    predicted_axes = None  # `axes` of the last inputs that Keras was given

    def __new__(cls, *args, **kwargs):
        _check_arguments(cls, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __repr__(self) -> str:
        if not (self.built and hasattr(self, "config")):
            return super().__repr__()
        return f"<{type(self).__name__} {_summary(self)}>"

    @property
    def compiles_each_shape(self) -> bool:
        """Whether XLA compiles the model anew for each shape of a batch.

        Under a strategy of tf.distribute with several replicas it may, on TPUs,
        although `jit_compile` is False; the answer is then True.
        """
        strategy = getattr(self, "distribute_strategy", None)  # TensorFlow's
        several = strategy is not None and strategy.num_replicas_in_sync > 1
        return self.jit_compile or several

    @property
    def most_tokens(self) -> int:
        """The most tokens of a text; `preprocess` cuts the rest off."""
        return self.config.max_position_embeddings

    def preprocess(self, texts: Any) -> dict:
        """Tokenizes texts into the arrays that the model is called with.

        Args:
            texts: B texts: a list, an array or a column of a table. For pairs
                of texts, a tuple of two of these, or a dict of `text` and
                `pair`. Rows are cut at `most_tokens` tokens.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, int32 [B, S]; S is the
            length of the longest row, rounded up to a multiple of 32.

        Raises:
            AlbertError: there is no vocabulary, or no list of texts.
        """
        texts = self.named_texts(texts)
        return feeding().tokenized(self, texts["text"], texts.get("pair"))

    def named_texts(self, texts: Any) -> dict:
        """Puts texts into a dict by the checked names of their parts."""
        return feeding().named_texts(texts)

    @property
    def preprocessor(self) -> "Preprocessor":
        """`preprocess` for tf.data: `dataset.map(model.preprocessor)`.

        Raises AlbertError without a vocabulary, or without tensorflow-text.
        """
        return feeding().preprocessor(self)

    def __dir__(self):
        # When Keras saves a model, it reads every attribute and saves the
        # layers that it finds. Reading `preprocessor` would create a layer.
        return [name for name in super().__dir__() if name != "preprocessor"]

    def classes(self, shape: Any) -> "dict[str | None, Classes]":
        """The valid labels of the outputs whose labels are classes, by output.

        The key is None for a single output; `shape` is that of `token_ids`.
        """
        return {}

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = feeding().called_with(self, inputs)
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
            x: ids; texts as for `preprocess`; or batches of either with labels:
                a tf.data dataset, DataLoader, iterator, or PyDataset of ids.
            y: labels: numbers, or names if the model has `labels`.
            args, kwargs: see `keras.Model.fit`.
            validation_data: as x; or (x, y) or (x, y, sample_weight).

        Raises:
            AlbertError: an id or label is out of range, or texts or labels
                have a form that the model does not accept.
        """
        with feeding().unwrapped_errors(self):
            if validation_data is not None:
                kwargs["validation_data"] = validation_data
            given = feeding().by_name(super().fit, x, y, *args, **kwargs)
            validation_data = given.pop("validation_data", None)
            feeding().check_read_once(given, validation_data)
            held_out = feeding().held_out(self, validation_data)
            given = feeding().fed(self, given)
            return super().fit(validation_data=held_out, **given)

    def train_on_batch(
        self, x: Any, y: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`keras.Model.train_on_batch` for ids or texts, checked first."""
        method = super().train_on_batch
        return feeding().call_fed(self, method, x, y, *args, **kwargs)

    def test_on_batch(
        self, x: Any, y: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`keras.Model.test_on_batch` for ids or texts, checked first."""
        method = super().test_on_batch
        return feeding().call_fed(self, method, x, y, *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """`keras.Model.predict_on_batch` for ids or texts, checked first."""
        with without_retracing_warnings():
            return super().predict_on_batch(feeding().arrays(self, x))

    def evaluate(
        self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`keras.Model.evaluate` for the inputs of `fit`, checked first."""
        with feeding().unwrapped_errors(self):
            method = super().evaluate
            return feeding().call_fed(self, method, x, y, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """`keras.Model.predict` for the inputs of `fit`, checked first."""
        with feeding().unwrapped_errors(self):
            x = feeding().fed(self, {"x": x})["x"]
            return super().predict(x, *args, **kwargs)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """`keras.Model.save`. Raises AlbertError for HDF5, an older format.

        Keras would write the file, and could not read the model from it.
        """
        if str(filepath).endswith((".h5", ".hdf5")):
            raise AlbertError(
                "the file of a model must end in .keras. Received: "
                f"{str(filepath)!r}. Weights alone go into HDF5 with "
                "model.save_weights('x.weights.h5'); a folder with the "
                "vocabulary is written by model.save_to_preset."
            )
        if isinstance(filepath, str | os.PathLike):
            filepath = os.path.expanduser(filepath)
        super().save(filepath, *args, **kwargs)

    def export(
        self,
        filepath: Any,
        *args: Any,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> Any:
        """`keras.Model.export`: a graph that takes ids, without tokenizer.

        `keras_albert.export` writes models with their vocabulary and labels.
        Raises AlbertError without `input_signature`, which Keras cannot infer.
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

    def quantize(self, mode: str = "int8", **kwargs: Any) -> None:
        """`keras.Model.quantize`: makes all projections and tables int8.

        Weights that layers share are quantized once. A quantized model is for
        inference: int8 weights have no gradient. Raises AlbertError for another
        mode than "int8", a `config`, or a model with relaxed sharing, whose
        kernels are sums of two weights.
        """
        check_choice("mode", mode, ("int8",))
        config = kwargs.get("config")  # Keras fills in the default
        if config and config.get_config() != type(config)().get_config():
            raise AlbertError(
                "`config` must have its default values: a saved model only "
                "records which layers are int8. Received: "
                f"config={type(config).__name__}(...). Leave it out."
            )
        for part in (self, *sublayers(self)):  # the members of an ensemble
            if isinstance(part, AlbertModel) and part.config.relaxed_rank:
                raise AlbertError(
                    "relaxed sharing cannot be quantized. Expected "
                    "relaxed_rank=0. Received: "
                    f"relaxed_rank={part.config.relaxed_rank}."
                )
        with warnings.catch_warnings():
            # Keras warns of each layer that has no weights to quantize.
            warnings.filterwarnings("ignore", message=".*quantize.*implement")
            super().quantize(mode, **kwargs)

    @classmethod
    def from_preset(cls, preset: Any, **options: Any) -> Self:
        """`keras_albert.load` by the name that it has in KerasHub.

        Args:
            preset: a folder, `hf://organization/name`: any source of `load`.
            options: keyword arguments of `load`.

        Returns:
            A model of this class; AlbertBackbone takes the encoder of any.

        Raises:
            AlbertError: as `load`, or the model is one of another class.
        """
        # Not at the top: what reads files builds models of these classes.
        from keras_albert.checkpoints.load import load

        if cls.is_encoder:
            options = {"backbone": True, **options}
        model = load(preset, **options)
        if not isinstance(model, cls):
            raise AlbertError(
                f"{preset}: expected an {cls.__name__}. Received: an "
                f"{type(model).__name__}. Read it as what it is, with "
                "keras_albert.load; or give its encoder another head: "
                f"{cls.__name__}(AlbertBackbone.from_preset(...), ...)."
            )
        return model

    def save_to_preset(self, folder: Any, max_shard_size: None = None) -> None:
        """Writes a folder that `from_preset` and `keras_albert.load` read.

        The folder has this package's format, and any backend can read it.
        `keras_albert.save_keras_hub` writes one that KerasHub reads.

        Args:
            folder: the output folder; created if absent, must be empty.
            max_shard_size: must be None; KerasHub's tasks pass it.

        Raises:
            AlbertError: the folder is not empty, or the disk is full.
        """
        if max_shard_size is not None:
            raise AlbertError(
                "`max_shard_size` must be None: weights are in one file here. "
                f"Received: {max_shard_size}. A task of KerasHub around a "
                "model of this package is saved by task.save('x.keras'), or as "
                "KerasHub's own: to_keras_hub(from_keras_hub(task))."
            )
        from keras_albert.training.model_folder import ModelFolder

        ModelFolder.without_task(self).save_new(folder)

    def get_compile_config(self) -> dict[str, Any]:
        """How the model was compiled, for a file that any backend can read."""
        config = super().get_compile_config()
        # Keras has stored what "auto" means on this backend, with which another
        # one would compute much more slowly. (The same, if chosen, becomes it.)
        if config and config["jit_compile"] == keras.Sequential().jit_compile:
            config["jit_compile"] = "auto"
        return config

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),  # has neither int8 nor frozen weights
            "quantized": quantized_paths(self),
            "frozen": _frozen_paths(self),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return _with_saved_parts(cls, config)

    def leaves(self) -> dict[str, layers.Layer]:
        """The projections and embedding tables, by path within the model."""
        return _projections_and_tables(self)


class ConfiguredLayer(layers.Layer):
    """Abstract: a public layer whose sizes come from an AlbertConfig.

    The AlbertConfig is saved with the layer, together with the paths of the
    projections and embedding tables that are quantized to int8, and of the
    weights that are frozen.
    """

    def __new__(cls, *args, **kwargs):
        _check_arguments(cls, kwargs)
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
            "frozen": _frozen_paths(self),
        }

    @classmethod
    def from_config(cls, config: Any) -> Self:
        sizes = AlbertConfig.from_dict(config["config"])
        return _with_saved_parts(cls, {**config, "config": sizes})


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
        # Not in `call`, to whose errors Keras adds many lines.
        feeding().check_vectors(self.config, x, padding_mask, example_ids)
        return super().__call__(x, padding_mask, example_ids, **kwargs)

    def compute_output_shape(self, x_shape: Any) -> tuple[int | None, ...]:
        return tuple(x_shape)


def _check_arguments(cls: type, arguments: Mapping[str, Any]) -> None:
    check_argument_names(cls, arguments, _OF_KERAS)
    if arguments.get("trainable") is False:
        # Keras applies the argument before the weights of inner layers exist,
        # and these would still be trained.
        raise AlbertError(
            "`trainable` must be set after the layer is made. Received: "
            f"{cls.__name__}(..., trainable=False). Write x = {cls.__name__}"
            "(...), and then x.trainable = False."
        )


def _with_saved_parts(cls: type, config: Mapping[str, Any]) -> Any:
    """Makes a model or layer of a saved config.

    It restores which of its parts are int8, and which weights are frozen.
    """
    config = dict(config)
    quantized, frozen = (config.pop(key, []) for key in ("quantized", "frozen"))
    trainable = config.pop("trainable", True)
    layer = cls(**config)
    if quantized or frozen:
        if not layer.built:
            layer.build()
        _quantize_paths(layer, quantized)
        freeze(layer, frozen)
    if not trainable:
        layer.trainable = False
    return layer


def check_config(config) -> None:
    """Raises AlbertError unless `config` is an AlbertConfig."""
    if not isinstance(config, AlbertConfig):
        raise AlbertError(
            "`config` must be an AlbertConfig; AlbertConfig.from_json "
            f"reads a file. Received: {type(config).__name__}."
        )


def own_paths(root: layers.Layer, parts: Iterable[Any]) -> dict[str, Any]:
    """Layers or weights of `root` by their paths inside of their model.

    The paths lack the names of the model and of what is around it, such as a
    layer of the user that made the model when it was built. They are therefore
    the same in all models of an architecture. Files and the name tables of
    `checkpoints` use them.
    """
    models = (each for each in sublayers(root) if isinstance(each, AlbertModel))
    # The path of a backbone does not begin with that of the model around it.
    prefixes = {f"{each.path}/" for each in (root, *models)}
    found = {}
    for part in parts:
        inside = (p for p in prefixes if part.path.startswith(p))
        found[part.path.removeprefix(max(inside, key=len))] = part
    return found


def _projections_and_tables(layer: layers.Layer) -> dict[str, layers.Layer]:
    kinds = layers.Dense | layers.Embedding
    parts = (part for part in sublayers(layer) if isinstance(part, kinds))
    return own_paths(layer, parts)


def quantized_paths(layer: layers.Layer) -> list[str]:
    """The paths of the projections and embedding tables that are int8."""
    if not layer.built:  # then the paths are not known yet
        return []
    leaves = _leaves(layer)
    return [k for k in leaves if leaves[k].quantization_mode is not None]


def _quantize_paths(layer: layers.Layer, paths: list[str]) -> None:
    for path, part in _leaves(layer).items():
        if path in paths and part.quantization_mode is None:
            part.quantize("int8")


def _leaves(layer: layers.Layer) -> dict[str, layers.Layer]:
    if isinstance(layer, AlbertModel):
        return layer.leaves()
    return _projections_and_tables(layer)


def _frozen_paths(layer: layers.Layer) -> list[str]:
    """The paths of the weights that training leaves as they are."""
    return [*own_paths(layer, (v for v in layer.weights if not v.trainable))]


def freeze(root: layers.Layer, paths: Container[str]) -> None:
    """Freezes the weights with these paths.

    A layer is set to not trainable if all its weights are frozen. Otherwise
    TensorFlow could not unfreeze them later: it ignores that True is assigned
    to `trainable` of a layer where it is True already.
    """
    weights = own_paths(root, root.weights)
    frozen = {id(weights[path]) for path in weights if path in paths}
    for layer in sublayers(root):
        if layer.weights and frozen.issuperset(map(id, layer.weights)):
            layer.trainable = False
    for weight in root.weights:
        weight.trainable = weight.trainable and id(weight) not in frozen


def _summary(model: AlbertModel) -> str:
    config = model.config
    parts = {
        "name": model.name,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "sharing": config.sharing,
        "parameters": f"{model.count_params():,}",
        "vocabulary": f"{config.vocab_size:,} pieces"
        + ", ids only" * (model.tokenizer is None),
    }
    labels = getattr(model, "labels", None)
    if labels := labels or getattr(model, "num_labels", None):
        parts["labels"] = labels
    return ", ".join(f"{name}={value}" for name, value in parts.items())
