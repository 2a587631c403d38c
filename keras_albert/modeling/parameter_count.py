"""Counts parameters from a config, without a model."""

from keras_albert.modeling.config import AlbertConfig


def of_embedding(config: AlbertConfig) -> int:
    """Tables of words, positions and segments, LayerNorm, projection to H."""
    rows = (
        config.vocab_size
        + config.max_position_embeddings
        + config.type_vocab_size
    )
    count = rows * config.embedding_size + of_layer_norm(config.embedding_size)
    if config.has_projection:
        count += of_dense(config.embedding_size, config.hidden_size)
    return count


def of_blocks(config: AlbertConfig) -> int:
    """The number of parameters of all blocks; shared ones count once.

    Low-rank differences count, and the pooler does not.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    rank = config.relaxed_rank
    layers = config.num_hidden_layers * config.inner_group_num
    groups = config.num_hidden_groups * config.inner_group_num
    halves = {  # parameters, and those of each layer's low-rank differences
        "attention": (
            4 * of_dense(hidden, hidden) + of_layer_norm(hidden),
            4 * rank * (hidden + hidden),
        ),
        "feed_forward": (
            of_dense(hidden, inner)
            + of_dense(inner, hidden)
            + of_layer_norm(hidden),
            2 * rank * (hidden + inner),
        ),
    }
    return sum(
        groups * half + layers * difference
        if name in config.shared_halves
        else layers * half
        for name, (half, difference) in halves.items()
    )


def of_dense(inputs: int, outputs: int) -> int:
    """A kernel and a bias."""
    return (inputs + 1) * outputs


def of_layer_norm(size: int) -> int:
    """Scale and offset of a LayerNorm."""
    return 2 * size
