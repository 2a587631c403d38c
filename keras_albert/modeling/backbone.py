"""AlbertBackbone: token ids -> contextual vectors.

Letters: B batch, S sequence length, H hidden size, L layers.
"""

import dataclasses

import keras
import numpy as np
from keras import layers, ops

from keras_albert.config import PAD_ID, AlbertConfig, AlbertError
from keras_albert.modeling.embeddings import Embeddings, initializer
from keras_albert.modeling.encoder import Encoder

_INPUTS = {"token_ids", "segment_ids", "padding_mask", "masked_positions"}


class AlbertModel(keras.Model):
    """Abstract: a model whose inputs are checked against its config.

    Shapes are checked when the model is called or traced. Ids are checked
    where they arrive as NumPy arrays (`model(x)`, `fit`, `evaluate`,
    `predict`): in a compiled graph JAX would clamp an id out of range
    silently.
    """

    config: AlbertConfig

    def __call__(self, inputs, *args, **kwargs):
        """Checks the inputs, then calls the model."""
        check_inputs(self.config, inputs)
        return super().__call__(inputs, *args, **kwargs)

    def fit(self, x=None, *args, **kwargs):
        """Checks ids in NumPy inputs, then `keras.Model.fit`."""
        check_ids(self.config, x)
        return super().fit(x, *args, **kwargs)

    def train_on_batch(self, x, *args, **kwargs):
        """Checks ids in NumPy inputs, then `keras.Model.train_on_batch`."""
        check_ids(self.config, x)
        return super().train_on_batch(x, *args, **kwargs)

    def test_on_batch(self, x, *args, **kwargs):
        """Checks ids in NumPy inputs, then `keras.Model.test_on_batch`."""
        check_ids(self.config, x)
        return super().test_on_batch(x, *args, **kwargs)

    def predict_on_batch(self, x):
        """Checks ids in NumPy inputs, then `keras.Model.predict_on_batch`."""
        check_ids(self.config, x)
        return super().predict_on_batch(x)

    def evaluate(self, x=None, *args, **kwargs):
        """Checks ids in NumPy inputs, then `keras.Model.evaluate`."""
        check_ids(self.config, x)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """Checks ids in NumPy inputs, then `keras.Model.predict`."""
        check_ids(self.config, x)
        return super().predict(x, *args, **kwargs)


@keras.saving.register_keras_serializable("keras_albert")
class AlbertBackbone(AlbertModel):
    """The ALBERT encoder with its pooler.

    Args:
        config: the architecture.

    Call arguments:
        inputs: dict of integer tensors [B, S]: `token_ids`; `segment_ids`
            (0 for the first text, 1 for the second; zeros when absent);
            `padding_mask` (1 token, 0 padding; `token_ids != 0` when absent).
        return_hidden_states: also return every layer's output.

    Returns:
        dict: `sequence_output` [B, S, H]; `pooled_output` [B, H], tanh of a
        projection of [CLS]; if asked for `hidden_states`, a list of L tensors
        [B, S, H] without the embedding (as the reference's
        `all_encoder_layers`).

    Raises:
        AlbertError: no `token_ids`, an unknown key, wrong rank or shapes that
            differ, more tokens than `max_position_embeddings`, ids out of
            range.

    Source: Paper 3.1; reference modeling.py L195-255.
    """

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(config, AlbertConfig):
            raise AlbertError(
                "`config` must be an AlbertConfig; AlbertConfig.from_json "
                f"reads a file. Received: {type(config).__name__}."
            )
        self.config = config
        self.embeddings = Embeddings(config, name="embeddings")
        self.encoder = Encoder(config, name="encoder")
        self.pooler = layers.Dense(
            config.hidden_size,
            activation="tanh",
            kernel_initializer=initializer(config),
            name="pooler",
        )
        self.build()

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.embeddings.build()
        self.encoder.build()
        self.pooler.build((None, self.config.hidden_size))
        self.built = True

    def call(self, inputs, training=None, return_hidden_states=False):
        """See the class."""
        token_ids = inputs["token_ids"]
        segment_ids = inputs.get("segment_ids")
        if segment_ids is None:
            segment_ids = ops.zeros_like(token_ids)
        padding_mask = inputs.get("padding_mask")
        if padding_mask is None:
            padding_mask = ops.not_equal(token_ids, PAD_ID)
        x = self.embeddings(token_ids, segment_ids, training=training)
        hidden_states = self.encoder(x, padding_mask, training=training)
        sequence_output = hidden_states[-1]  # [B, S, H]
        outputs = {
            "sequence_output": sequence_output,
            "pooled_output": self.pooler(sequence_output[:, 0]),  # [B, H]
        }
        if return_hidden_states:
            outputs["hidden_states"] = hidden_states
        return outputs

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {
            **super().get_config(),
            "config": dataclasses.asdict(self.config),
        }

    @classmethod
    def from_config(cls, config):
        """The inverse of `get_config`."""
        return cls(**{**config, "config": AlbertConfig(**config["config"])})


def check_inputs(config: AlbertConfig, inputs: dict) -> None:
    """Refuses inputs of another structure, shape, or (NumPy) range."""
    if not isinstance(inputs, dict) or "token_ids" not in inputs:
        received = (
            sorted(inputs)
            if isinstance(inputs, dict)
            else type(inputs).__name__
        )
        raise AlbertError(
            "Inputs must be a dict with `token_ids` (and `segment_ids`, "
            f"`padding_mask`), as Tokenizer returns. Received: {received}."
        )
    if unknown := sorted(inputs.keys() - _INPUTS):
        raise AlbertError(
            f"Inputs may have the keys {sorted(_INPUTS)}. Received also: "
            f"{unknown}."
        )
    shape = tuple(inputs["token_ids"].shape)
    if len(shape) != 2:
        raise AlbertError(
            "`token_ids` must have two axes [batch, sequence]. "
            f"Received shape: {shape}."
        )
    if shape[1] is not None and shape[1] > config.max_position_embeddings:
        raise AlbertError(
            f"A sequence must not exceed max_position_embeddings="
            f"{config.max_position_embeddings} tokens. Received: {shape[1]} "
            "tokens. Truncate it: Tokenizer(...)(texts, max_length="
            f"{config.max_position_embeddings})."
        )
    for name in ("segment_ids", "padding_mask"):
        other = tuple(inputs[name].shape) if name in inputs else shape
        if len(other) != 2 or any(
            None not in (a, b) and a != b
            for a, b in zip(other, shape, strict=True)
        ):
            raise AlbertError(
                f"`{name}` must have the shape of `token_ids`, {shape}. "
                f"Received: {other}."
            )
    check_ids(config, inputs)


def check_ids(config: AlbertConfig, inputs) -> None:
    """Refuses ids out of range in NumPy inputs; other inputs pass unseen."""
    if not isinstance(inputs, dict):
        return
    limits = {
        "token_ids": ("vocab_size", config.vocab_size),
        "segment_ids": ("type_vocab_size", config.type_vocab_size),
    }
    token_ids = inputs.get("token_ids")
    if isinstance(token_ids, np.ndarray) and token_ids.ndim == 2:
        limits["masked_positions"] = ("sequence length", token_ids.shape[1])
    for name, (field, size) in limits.items():
        ids = inputs.get(name)
        if not isinstance(ids, np.ndarray) or not ids.size:
            continue
        if not np.issubdtype(ids.dtype, np.integer):
            raise AlbertError(
                f"`{name}` must be integers. Received: {ids.dtype}."
            )
        if ids.min() < 0 or ids.max() >= size:
            wrong = ids.max() if ids.max() >= size else ids.min()
            raise AlbertError(
                f"`{name}` must be from 0 to {size - 1} ({field}={size}). "
                f"Received: {wrong}."
                + " Use the vocabulary that the model was trained with."
                * (name == "token_ids")
            )
