"""Counts the floating-point operations of a model, from its config alone.

Only matrix products are counted, with two operations for a multiply-add; the
backward pass has twice as many as the forward pass. Lookups, normalization, the
optimizer and recomputation are not counted.
"""

from keras_albert.modeling.config import AlbertConfig
from keras_albert.pretraining.config import ExampleConfig

FLOPS_PER_PRODUCT = 2  # a multiplication and an addition
# The backward pass needs twice as many operations as the forward pass.
TRAINING = 3


def flops_per_example(config: AlbertConfig, examples: ExampleConfig) -> int:
    """Floating-point operations of a training step for one row.

    A row is one example, or several packed ones. The count is that of all
    matrix products of the encoder and of both heads, over all positions and
    predictions of the row, whether they are used or padding.
    """
    sequence, predictions = examples.sequence_length, examples.row_predictions
    hidden, embedding = config.hidden_size, config.embedding_size
    masked_lm = predictions * embedding * (hidden + config.vocab_size)
    sentence_order = examples.row_examples * (hidden * hidden + 2 * hidden)
    products = sequence * encoder_products(config, sequence)
    products += masked_lm + sentence_order
    return TRAINING * FLOPS_PER_PRODUCT * products


def encoder_flops(config: AlbertConfig, sequence_length: int) -> int:
    """Floating-point operations of a training step of the encoder for a row."""
    products = sequence_length * encoder_products(config, sequence_length)
    return TRAINING * FLOPS_PER_PRODUCT * products


def encoder_products(config: AlbertConfig, sequence_length: int) -> int:
    """Multiply-adds for a token, from its embedding to the last layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    rank = config.relaxed_rank
    attention_kernels = 4 * hidden * hidden
    if "attention" in config.shared_halves:
        attention_kernels += 4 * rank * 2 * hidden
    ffn_kernels = 2 * hidden * inner
    if "feed_forward" in config.shared_halves:
        ffn_kernels += 2 * rank * (hidden + inner)
    scores_and_sum = 2 * sequence_length * hidden  # attention to all tokens
    block = attention_kernels + ffn_kernels + scores_and_sum
    blocks = config.num_hidden_layers * config.inner_group_num
    projection = config.embedding_size * hidden if config.has_projection else 0
    return projection + blocks * block
