"""HeadedModel: the base class of all models with a head."""

from collections.abc import Mapping
from typing import Any, Self

import keras
from keras import layers

from keras_albert.errors import AlbertError, check_probability
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.embeddings import initializer


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
    def reads_pooler(self) -> bool:
        """Whether the outputs depend on the pooler."""
        return self.needs_pooler

    # A pooler that no output depends on has no gradient, or a gradient of
    # zeros on JAX. Weight decay would then shrink it at each step. The four
    # properties below therefore list such a pooler as not trainable. (Keras
    # ignores them if this model is part of a functional model; give the
    # backbone `pooler=False` there.)

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
        # Two heads of a functional model may share a backbone. This key makes
        # Keras load it as one object again.
        backbone["shared_object_id"] = id(self.backbone)
        return {**super().get_config(), "backbone": backbone}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        backbone = keras.saving.deserialize_keras_object(config["backbone"])
        return super().from_config({**config, "backbone": backbone})


def _without(weights: list, left_out: list) -> list:
    ids = set(map(id, left_out))
    return [weight for weight in weights if id(weight) not in ids]
