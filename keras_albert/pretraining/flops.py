"""Counts the floating-point operations of a pretraining step."""

from keras_albert.modeling.config import AlbertConfig
from keras_albert.pretraining.config import ExampleConfig


def flops_per_example(config: AlbertConfig, examples: ExampleConfig) -> int:
    """Floating-point operations of a training step for one row.

    A row is one example, or several packed ones. The count is that of all
    matrix products of the encoder and of both heads, over all positions and
    predictions of the row, whether they are used or padding.
    """
    sequence, predictions = examples.sequence_length, examples.row_predictions
    hidden, inner = config.hidden_size, config.intermediate_size
    embedding, rank = config.embedding_size, config.relaxed_rank
    attention_kernels = 4 * hidden * hidden
    if rank and config.sharing in ("all", "attention"):
        attention_kernels += 4 * rank * 2 * hidden
    ffn_kernels = 2 * hidden * inner
    if rank and config.sharing in ("all", "ffn"):
        ffn_kernels += 2 * rank * (hidden + inner)
    scores_and_sum = 2 * sequence * hidden  # attention of one token to all
    block = sequence * (attention_kernels + ffn_kernels + scores_and_sum)
    blocks = config.num_hidden_layers * config.inner_group_num
    projection = sequence * embedding * hidden if config.has_projection else 0
    masked_lm = predictions * embedding * (hidden + config.vocab_size)
    sentence_order = examples.row_examples * (hidden * hidden + 2 * hidden)
    products = projection + blocks * block + masked_lm + sentence_order
    # A multiplication and an addition for each product; the backward pass
    # needs twice as many operations as the forward pass.
    return 3 * 2 * products
