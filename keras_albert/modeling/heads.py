"""What stands on the encoder: pretraining and sequence classification.

Letters: B batch, S sequence length, P predicted positions, E embedding size,
H hidden size, V vocabulary, C labels.
"""

import keras
from keras import layers, ops

from keras_albert.config import CLASSIFIER_DROPOUT, AlbertError
from keras_albert.modeling.backbone import AlbertBackbone, AlbertModel
from keras_albert.modeling.block import ACTIVATIONS
from keras_albert.modeling.embeddings import initializer, layer_norm


class MaskedLMHead(layers.Layer):
    """H -> E -> activation -> LayerNorm -> logits through the word table.

    Source: reference run_pretraining.py, get_masked_lm_output.
    """

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.dense = layers.Dense(
            config.embedding_size,
            activation=ACTIVATIONS[config.hidden_act],
            kernel_initializer=initializer(config),
            name="dense",
        )
        self.layer_norm = layer_norm("layer_norm")

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.dense.build((None, None, self.config.hidden_size))
        self.layer_norm.build((None, None, self.config.embedding_size))
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(self.config.vocab_size,),
            initializer="zeros",
        )

    def call(self, x, word_embeddings):
        """float [B, P, H], float [V, E] -> float32 logits [B, P, V]."""
        x = self.layer_norm(self.dense(x))  # [B, P, E]
        table = ops.cast(word_embeddings, x.dtype)
        logits = ops.matmul(x, ops.transpose(table))  # [B, P, V]
        return ops.cast(logits, "float32") + ops.cast(
            self.output_bias, "float32"
        )


class _HeadedModel(AlbertModel):
    """Abstract: a model that holds a backbone and is saved with it."""

    def __init__(self, backbone: AlbertBackbone, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(backbone, AlbertBackbone):
            raise AlbertError(
                "`backbone` must be an AlbertBackbone: "
                "AlbertBackbone(VARIANTS['base_v2']). "
                f"Received: {type(backbone).__name__}."
            )
        self.backbone = backbone
        self.config = backbone.config

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {
            **super().get_config(),
            "backbone": keras.saving.serialize_keras_object(self.backbone),
        }

    @classmethod
    def from_config(cls, config):
        """The inverse of `get_config`."""
        backbone = keras.saving.deserialize_keras_object(config["backbone"])
        return cls(**{**config, "backbone": backbone})


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForPretraining(_HeadedModel):
    """Masked-LM and sentence-order prediction (Paper 3.1).

    Args:
        backbone: the encoder; its word embeddings are the decoder's weights.

    Call arguments:
        inputs: those of AlbertBackbone and `masked_positions`, int [B, P],
            the positions to predict; every position when absent.

    Returns:
        dict of float32 logits: `mlm` [B, P, V] and `sop` [B, 2], where class
        1 means that the two segments were swapped.
    """

    def __init__(self, backbone: AlbertBackbone, **kwargs):
        super().__init__(backbone, **kwargs)
        self.masked_lm = MaskedLMHead(self.config, name="masked_lm")
        self.sentence_order = layers.Dense(
            2,
            kernel_initializer=initializer(self.config),
            name="sentence_order",
        )
        self.build()

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.masked_lm.build()
        self.sentence_order.build((None, self.config.hidden_size))
        self.built = True

    def call(self, inputs, training=None):
        """See the class."""
        outputs = self.backbone(inputs, training=training)
        x = outputs["sequence_output"]  # [B, S, H]
        positions = inputs.get("masked_positions")
        if positions is not None:
            x = ops.take_along_axis(
                x, ops.expand_dims(positions, 2), axis=1
            )  # [B, P, H]
        sop = self.sentence_order(outputs["pooled_output"])  # [B, 2]
        return {
            "mlm": self.masked_lm(x, self.backbone.embeddings.word.embeddings),
            "sop": ops.cast(sop, "float32"),
        }


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForSequenceClassification(_HeadedModel):
    """One label for a text or a pair of texts.

    Args:
        backbone: the encoder, usually pretrained.
        num_labels: C, number of labels.
        dropout: before the classifier (Paper Table 14).

    Call arguments:
        inputs: those of AlbertBackbone.

    Returns:
        float32 logits [B, C].

    Source: reference classifier_utils.py L768-812.
    """

    def __init__(
        self,
        backbone: AlbertBackbone,
        num_labels: int,
        dropout: float = CLASSIFIER_DROPOUT,
        **kwargs,
    ):
        super().__init__(backbone, **kwargs)
        if type(num_labels) is not int or num_labels < 2:
            raise AlbertError(
                "`num_labels` must be an integer of 2 or more. "
                f"Received: {num_labels!r}."
            )
        self.num_labels = num_labels
        self.dropout = layers.Dropout(dropout)
        self.classifier = layers.Dense(
            num_labels,
            kernel_initializer=initializer(self.config),
            name="classifier",
        )
        self.build()

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.classifier.build((None, self.config.hidden_size))
        self.built = True

    def call(self, inputs, training=None):
        """See the class."""
        pooled = self.backbone(inputs, training=training)["pooled_output"]
        logits = self.classifier(self.dropout(pooled, training=training))
        return ops.cast(logits, "float32")  # [B, C]

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {
            **super().get_config(),
            "num_labels": self.num_labels,
            "dropout": self.dropout.rate,
        }
