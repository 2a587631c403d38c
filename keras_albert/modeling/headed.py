"""What every model with a head has in common."""

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
                f"{type(self).__name__} stands on the pooled output: the "
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

    # A pooler that is not read has no gradient, or one of zeros (JAX), with
    # which weight decay would shrink it from step to step. (A functional model
    # around this one does not ask it: there `pooler=False` helps.)

    def _read(self, weights: list) -> list:
        pooler = None if self.reads_pooler else self.backbone.pooler
        return weights if pooler is None else _but(weights, pooler.variables)

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """Those of Keras, without a pooler that is not read."""
        return self._read(super().trainable_variables)

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """All others."""
        return _but(self.variables, self.trainable_variables)

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        """Those of Keras, without a pooler that is not read."""
        return self._read(super().trainable_weights)

    @property
    def non_trainable_weights(self) -> list[keras.Variable]:
        """All others."""
        return _but(self.weights, self.trainable_weights)

    def pooled(self, inputs: Mapping[str, Any], training: bool | None) -> Any:
        """The pooled output [B, H], where a head reads nothing else."""
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
        """The last projection: in float32, whatever comes before."""
        return self._dense(units, name, dtype="float32", **kwargs)

    def _dropout(self, rate: float) -> layers.Dropout:
        check_probability("dropout", rate)
        return layers.Dropout(rate, dtype=self.dtype_policy)

    def get_config(self) -> dict[str, Any]:
        """Serializable arguments of the constructor."""
        backbone = keras.saving.serialize_keras_object(self.backbone)
        # Two heads of one functional model may stand on one backbone: one
        # again when they are loaded.
        backbone["shared_object_id"] = id(self.backbone)
        return {**super().get_config(), "backbone": backbone}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The inverse of `get_config`."""
        backbone = keras.saving.deserialize_keras_object(config["backbone"])
        return super().from_config({**config, "backbone": backbone})


def _but(weights: list, left_out: list) -> list:
    ids = set(map(id, left_out))
    return [weight for weight in weights if id(weight) not in ids]
