"""How blocks repeat: L layers share the blocks of their group (Paper 3.1).

Letters: B batch, S sequence length, H hidden size, L layers.
"""

from keras import layers, ops

from keras_albert.config import AlbertConfig
from keras_albert.modeling.block import Block

# Added to the scores of padded keys (reference modeling.py L818-828).
MASKED_SCORE = -10000.0


class Encoder(layers.Layer):
    """Applies `inner_group_num` blocks of the layer's group, L times."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.groups = [
            [
                Block(config, name=f"group_{group}_block_{inner}")
                for inner in range(config.inner_group_num)
            ]
            for group in range(config.num_hidden_groups)
        ]

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        for group in self.groups:
            for block in group:
                block.build()

    def call(self, x, padding_mask, training=None):
        """float [B, S, H], int [B, S] -> L tensors, float [B, S, H] each."""
        attention_bias = (1.0 - ops.cast(padding_mask, x.dtype)) * MASKED_SCORE
        attention_bias = ops.expand_dims(attention_bias, (1, 2))  # [B, 1, 1, S]
        outputs = []
        for layer in range(self.config.num_hidden_layers):
            # Integers: the reference's float arithmetic errs for some L.
            group = (
                layer
                * self.config.num_hidden_groups
                // self.config.num_hidden_layers
            )
            for block in self.groups[group]:
                x = block(x, attention_bias, training=training)
            outputs.append(x)
        return outputs
