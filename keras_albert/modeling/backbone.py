"""AlbertBackbone: token ids -> contextual vectors.

Letters: B batch, S sequence length, H hidden size, L layers, A heads,
I inner blocks of a layer, K examples in a row.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import keras
from keras import layers, ops

from keras_albert.errors import (
    AlbertError,
    check_flag,
    check_positive,
    check_positive_number,
    check_probability,
)
from keras_albert.modeling.base import (
    AlbertModel,
    check_config,
    feeding,
    freeze,
    own_paths,
)
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.encoder import SharedEncoder
from keras_albert.modeling.layers import FactorizedEmbedding, initializer
from keras_albert.private_apis import track_parameters

if TYPE_CHECKING:
    from keras_albert.text.tokenizer import Tokenizer

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, section 7.1


@keras.saving.register_keras_serializable("keras_albert")
class AlbertBackbone(AlbertModel):
    """The ALBERT encoder with its pooler.

    Args:
        config: the architecture.
        pooler: whether to add the pooler; False if no head reads it.
        loop: "unrolled", or "scan" over the layers; see `SharedEncoder`.
        remat: recompute activations to save memory; see `SharedEncoder`.
        tokenizer: the vocabulary; with it the model also accepts texts.

    Call arguments:
        inputs: texts, see `preprocess`; or a dict of integer tensors [B, S]:
            `token_ids`; `segment_ids` (0 for the first text, 1 for the
            second; zeros when absent); `padding_mask` (1 token, 0 padding;
            `token_ids != 0` when absent).
            Three optional keys describe packed rows, which hold several
            examples each: `example_ids` [B, S], the number of a token's
            example (0 padding; tokens attend only within their example);
            `position_ids` [B, S], a token's position in its example; and
            `cls_positions` [B, K], the position in the row of each example's
            [CLS] (any valid position, such as 0, for unused entries). Each of
            the three may be passed without the others.
        return_hidden_states: also return every layer's output.
        return_attention_scores: also return the attention probabilities.
        return_embedding_output: also return what the first layer reads.
        pooled_only: return only `pooled_output`, for less computation.

    Returns:
        dict: `sequence_output` [B, S, H]; `pooled_output` [B, H], tanh of a
        projection of [CLS] ([B, K, H] with `cls_positions`); on request
        `hidden_states`, a list of L tensors [B, S, H] without the embedding
        output (as the reference's `all_encoder_layers`),
        `attention_scores`, a list of L x I tensors [B, A, S, S], and
        `embedding_output` [B, S, H].

    Raises:
        AlbertError: `token_ids` is missing, a key is unknown, a rank is wrong
            or shapes differ, a row has more tokens than
            `max_position_embeddings`, or an id is out of range.

    Source: Paper 3.1; reference modeling.py L195-255.
    """

    takes_packed = True
    is_encoder = True

    def __init__(
        self,
        config: AlbertConfig,
        pooler: bool = True,
        loop: str = "unrolled",
        remat: bool = False,
        tokenizer: "Tokenizer | None" = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_config(config)
        check_flag("pooler", pooler)
        self.config = config
        self.tokenizer = tokenizer
        self._lora = None
        policy = self.dtype_policy
        self.embeddings = FactorizedEmbedding(
            config, dtype=policy, name="embeddings"
        )
        self.encoder = SharedEncoder(
            config, loop=loop, remat=remat, dtype=policy, name="encoder"
        )
        self.pooler = None
        if pooler:
            self.pooler = layers.Dense(
                config.hidden_size,
                activation="tanh",
                kernel_initializer=initializer(config),
                dtype=policy,
                name="pooler",
            )
        self.build()

    @property
    def tokenizer(self) -> "Tokenizer | None":
        """The vocabulary that turns texts into ids, or None."""
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: "Tokenizer | None"):
        if tokenizer is not None:
            feeding().check_tokenizer(tokenizer, self.config.vocab_size)
        self._tokenizer = tokenizer

    @property
    def input(self) -> dict[str, Any]:
        """Symbolic ids [B, S], for tasks of KerasHub around this encoder."""
        return {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("token_ids", "segment_ids", "padding_mask")
        }

    def build(self, input_shape: Any = None) -> None:
        self.embeddings.build()
        self.encoder.build()
        if self.pooler is not None:
            self.pooler.build((None, self.config.hidden_size))
        self.built = True

    def call(
        self,
        inputs: Mapping[str, Any],
        training: bool | None = None,
        return_hidden_states: bool = False,
        return_attention_scores: bool = False,
        pooled_only: bool = False,
        return_embedding_output: bool = False,
    ) -> dict[str, Any]:
        if pooled_only and self.pooler is None:
            raise AlbertError(
                "`pooled_only` needs a backbone with `pooler=True`. Received: "
                "pooler=False."
            )
        x = self.embeddings(
            inputs["token_ids"],
            inputs.get("segment_ids"),
            inputs.get("position_ids"),
            training=training,
        )
        sequence_output, hidden_states, *scores = self.encoder(
            x,
            padding_mask_of(inputs),
            inputs.get("example_ids"),
            training=training,
            return_hidden_states=True,
            return_attention_scores=return_attention_scores,
            first_only=pooled_only and "cls_positions" not in inputs,
        )
        outputs = {"sequence_output": sequence_output}
        if self.pooler is not None:
            first = sequence_output[:, 0]  # [B, H]
            if "cls_positions" in inputs:
                first = vectors_at(sequence_output, inputs["cls_positions"])
            outputs["pooled_output"] = self.pooler(first)
        if pooled_only:
            return {"pooled_output": outputs["pooled_output"]}
        if return_hidden_states:
            outputs["hidden_states"] = hidden_states
        if return_attention_scores:
            (outputs["attention_scores"],) = scores
        if return_embedding_output:
            outputs["embedding_output"] = x
        return outputs

    def enable_lora(
        self,
        rank: int,
        alpha: float | None = None,
        targets: tuple[str, ...] = LORA_TARGETS,
    ) -> None:
        """Freezes the encoder and trains low-rank adapters (LoRA) instead.

        Layers that share a kernel also share its adapter. As usual in Keras,
        a saved model holds the adapters merged into the kernels. Of a model
        that computes in bfloat16, `model.save` of Keras rounds these kernels to
        bfloat16; `save_to_preset` and `finetune` keep them in float32.

        Args:
            rank: the rank of each adapter.
            alpha: scales the adapter's output by alpha / rank; None for a
                scale of 1.
            targets: names of the projections that get an adapter: query, key,
                value, output (of both halves of a block), intermediate.

        Raises:
            AlbertError: a wrong rank or target, LoRA is already enabled, or
                `trainable` of the encoder is False.

        Source: Hu et al. 2021, arXiv:2106.09685.
        """
        check_positive("rank", rank)
        if alpha is not None:
            check_positive_number("alpha", alpha)
        leaves = self.leaves()
        inside = [
            leaves[path] for path in leaves if path.startswith("encoder/")
        ]
        known = {layer.name for layer in inside}
        is_list = isinstance(targets, list | tuple)
        if not is_list or not targets or not known.issuperset(targets):
            raise AlbertError(
                f"`targets` must be a list of some of {sorted(known)}. "
                f"Received: {list(targets) if is_list else targets!r}."
            )
        if not self.trainable:
            raise AlbertError(
                "LoRA trains adapters inside the encoder, and nothing in it is "
                "trained while its `trainable` is False. Set it to True before."
            )
        if self._lora is not None:
            raise AlbertError(
                "LoRA is enabled already. Load the model again for another "
                "rank."
            )
        for weight in self.weights:
            weight.trainable = False
        for layer in inside:
            if layer.name in targets:
                layer.enable_lora(rank, lora_alpha=alpha)
        track_parameters(self)
        self._lora = {"rank": rank, "alpha": alpha, "targets": list(targets)}

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "config": dataclasses.asdict(self.config),
            "pooler": self.pooler is not None,
            "loop": self.encoder.loop,
            "remat": self.encoder.remat,
            "lora": self._lora,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        config = {**config, "config": AlbertConfig(**config["config"])}
        lora = config.pop("lora", None)
        if not lora:
            return super().from_config(config)
        frozen = config.pop("frozen", None)
        trainable = config.pop("trainable", True)
        backbone = super().from_config(config)
        backbone.enable_lora(**lora)  # which freezes all other weights
        if frozen is not None:
            for path, weight in own_paths(backbone, backbone.weights).items():
                weight.trainable = path not in frozen
            freeze(backbone, frozen)
        if not trainable:
            backbone.trainable = False
        return backbone

    def save_assets(self, dir_path: str) -> None:
        """Writes the vocabulary into the `.keras` file; called by Keras."""
        if self.tokenizer is not None:
            self.tokenizer.save(dir_path)

    def load_assets(self, dir_path: str) -> None:
        """Reads the vocabulary of the `.keras` file; called by Keras."""
        saved = feeding().saved_tokenizer(dir_path)
        if saved is not None:
            self.tokenizer = saved


def padding_mask_of(inputs: Mapping[str, Any]) -> Any:
    """The padding mask of a model's inputs, [B, S]: 1 token, 0 padding."""
    mask = inputs.get("padding_mask")
    # Padding has the id 0 (`PAD_ID`), as in Keras's own `mask_zero`.
    return ops.not_equal(inputs["token_ids"], 0) if mask is None else mask


def vectors_at(x, positions):
    """Gathers vectors: float [B, S, H], int [B, P] -> float [B, P, H]."""
    return ops.take_along_axis(x, ops.expand_dims(positions, 2), axis=1)


def encoder_of(model: AlbertModel) -> AlbertBackbone:
    """Returns a model's backbone, or the model itself if it is one."""
    return model if isinstance(model, AlbertBackbone) else model.backbone


class HeadedModel(AlbertModel):
    """Abstract: a model that holds a backbone and is saved with it."""

    needs_pooler = False

    def __init__(self, backbone: AlbertBackbone, **kwargs: Any):
        if not isinstance(backbone, AlbertBackbone):
            raise AlbertError(
                "`backbone` must be an AlbertBackbone: "
                "AlbertBackbone(VARIANTS['base_v2']). "
                f"Received: {type(backbone).__name__}."
            )
        if self.needs_pooler and backbone.pooler is None:
            raise AlbertError(
                f"{type(self).__name__} reads the pooled output: the "
                "backbone needs `pooler=True`. Received: pooler=False."
            )
        kwargs.setdefault("dtype", backbone.dtype_policy)
        super().__init__(**kwargs)
        self.backbone = backbone
        self.config = backbone.config

    @property
    def tokenizer(self) -> "Tokenizer | None":
        """The vocabulary of the backbone."""
        return self.backbone.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: "Tokenizer | None"):
        self.backbone.tokenizer = tokenizer

    @property
    def reads_pooler(self) -> bool:
        """Whether the outputs depend on the pooler."""
        return self.needs_pooler

    # A pooler that no output depends on has no gradient, or zeros on JAX, where
    # weight decay would shrink it. The four properties below therefore list it
    # as not trainable. (Keras ignores them if this model is part of a
    # functional model; give the backbone `pooler=False` there.)

    def _read(self, weights: list) -> list:
        pooler = None if self.reads_pooler else self.backbone.pooler
        if pooler is None:
            return weights
        return _without(weights, pooler.variables)

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The trainable variables, without those of an unused pooler."""
        return self._read(super().trainable_variables)

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """All variables that are not in `trainable_variables`."""
        return _without(self.variables, self.trainable_variables)

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        """The trainable weights, without those of an unused pooler."""
        return self._read(super().trainable_weights)

    @property
    def non_trainable_weights(self) -> list[keras.Variable]:
        """All weights that are not in `trainable_weights`."""
        return _without(self.weights, self.trainable_weights)

    def pooled(self, inputs: Mapping[str, Any], training: bool | None) -> Any:
        """The pooled output, float [B, H], without the sequence output."""
        outputs = self.backbone(inputs, training=training, pooled_only=True)
        return outputs["pooled_output"]

    def _dense(self, units: int, name: str, **kwargs) -> layers.Dense:
        return layers.Dense(
            units,
            kernel_initializer=initializer(self.config),
            name=name,
            **{"dtype": self.dtype_policy, **kwargs},
        )

    def _logits(self, units: int, name: str, **kwargs) -> layers.Dense:
        """The last projection, which is float32 under mixed precision too."""
        return self._dense(units, name, dtype="float32", **kwargs)

    def _dropout(self, rate: float) -> layers.Dropout:
        check_probability("dropout", rate)
        return layers.Dropout(rate, dtype=self.dtype_policy)

    def get_config(self) -> dict[str, Any]:
        backbone = keras.saving.serialize_keras_object(self.backbone)
        # Two heads may share a backbone, which this key lets Keras load as one.
        backbone["shared_object_id"] = id(self.backbone)
        return {**super().get_config(), "backbone": backbone}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        backbone = keras.saving.deserialize_keras_object(config["backbone"])
        return super().from_config({**config, "backbone": backbone})


def _without(weights: list, left_out: list) -> list:
    ids = set(map(id, left_out))
    return [weight for weight in weights if id(weight) not in ids]
