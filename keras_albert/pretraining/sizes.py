"""Counts what an architecture costs, from its config alone."""

import dataclasses
import difflib
import os
import statistics
import time

from keras_albert.errors import (
    AlbertError,
    UnknownName,
    check_fields,
    check_flag,
    check_positive,
)
from keras_albert.modeling.config import CONFIG_FILE, VARIANTS, AlbertConfig
from keras_albert.modeling.parameter_count import (
    of_blocks,
    of_dense,
    of_embedding,
    of_layer_norm,
)
from keras_albert.pretraining.flops import FLOPS_PER_PRODUCT, encoder_products
from keras_albert.storage import local_path

# BERT (Devlin et al. 2019) in terms of ALBERT's config: nothing is shared, and
# the embedding is as wide as the encoder. Vocabulary of the English models.
# By name: width, layers, heads.
BERT_SIZES = {"bert-base": (768, 12, 12), "bert-large": (1024, 24, 16)}
BERT_VOCABULARY = 30522

BYTES = {"float32": 4, "float16": 2, "int8": 1}
PREDICTED_SHARE = 0.15  # of the tokens, in the measured training step
USUAL_LENGTH = 128  # tokens of a row, if no other number is given
CALLS = 5  # of which the median is the measured time


@dataclasses.dataclass(frozen=True)
class SizesRun:
    """Print parameters, bytes, operations and memory of architectures.

    The counts follow from the config; no model is built, unless its time is
    measured.
    """

    config: tuple[str, ...] = ()
    """names of released sizes (albert-base, bert-large and so on), config files
    or folders of models; by default all released sizes"""
    batch_size: int = 8
    """rows of the batch, for activations and times"""
    sequence_length: int | None = None
    """tokens of a row; by default 128, or as many as an architecture reads if
    these are fewer"""
    measure: bool = False
    """also measure a forward pass and a training step on this machine, in
    milliseconds"""

    def __post_init__(self):
        check_positive("batch_size", self.batch_size)
        check_fields(check_positive, self, "sequence_length")
        check_flag("measure", self.measure)


def print_sizes(run: SizesRun) -> list[dict]:
    """Prints a Markdown table; returns its rows, by the titles of columns.

    Raises AlbertError if a name is unknown, a file is no config, or rows are
    longer than `max_position_embeddings`.
    """
    configs = {name: _config(name) for name in run.config} or known_configs()
    for name, config in configs.items():
        if _length(config, run) > config.max_position_embeddings:
            raise AlbertError(
                f"{name} reads at most {config.max_position_embeddings} "
                f"tokens. Received: sequence_length={run.sequence_length}. "
                f"Give --sequence-length {config.max_position_embeddings}."
            )
    rows = [_row(name, config, run) for name, config in configs.items()]
    titles = list(rows[0])
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(map(_shown, row.values()))} |")
    return rows


def _config(name: str) -> AlbertConfig:
    known = known_configs()
    if name in known:
        return known[name]
    if name in VARIANTS:
        return VARIANTS[name]
    path = local_path(name)
    if path.is_dir():
        return AlbertConfig.from_json(path / CONFIG_FILE)
    is_address = "://" in name  # nothing is downloaded
    if path.exists() or (os.sep in name and not is_address):
        return AlbertConfig.from_json(path)
    close = difflib.get_close_matches(name.split("/")[-1], known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise UnknownName(
        f"`config` must be one of {', '.join(known)}, a config file or a "
        f"folder with {CONFIG_FILE}. Received: {name!r}.{hint}"
    )


def _length(config: AlbertConfig, run: SizesRun) -> int:
    """Tokens of a row of an architecture."""
    usual = min(USUAL_LENGTH, config.max_position_embeddings)
    return run.sequence_length or usual


def _row(name: str, config: AlbertConfig, run: SizesRun) -> dict:
    count = count_parameters(config)
    batch = run.batch_size, _length(config, run)
    products = encoder_products(config, batch[1])
    row = {
        "architecture": name,
        "parameters": count.model,
        "embedding": count.embedding,
        "encoder": count.encoder,
        "pretraining heads": count.heads,
        **{f"{k}, MB": n * count.model / 1e6 for k, n in BYTES.items()},
        "GFLOP a token": FLOPS_PER_PRODUCT * products / 1e9,
        "activations, MB": activation_bytes(config, *batch) / 1e6,
    }
    if run.measure:
        row |= _measured(config, *batch)
    return row


def _shown(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
    return value if isinstance(value, str) else f"{value:,}"


def bert_config(name: str) -> AlbertConfig:
    """BERT-base or BERT-large; raises KeyError for another name."""
    hidden, layers, heads = BERT_SIZES[name]
    return AlbertConfig(
        vocab_size=BERT_VOCABULARY,
        embedding_size=hidden,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        sharing="none",
        hidden_act="gelu_erf",
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )


def known_configs() -> dict[str, AlbertConfig]:
    """The released sizes of ALBERT (version 2) and BERT, by name."""
    names = (name for name in VARIANTS if name.endswith("_v2"))
    albert = {f"albert-{n.removesuffix('_v2')}": VARIANTS[n] for n in names}
    return albert | {name: bert_config(name) for name in BERT_SIZES}


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Number of parameters of each part of a pretraining model."""

    embedding: int
    """tables of words, positions and segments, LayerNorm, projection to H"""
    encoder: int
    """all different blocks, and the pooler"""
    heads: int
    """masked LM and sentence order, which fine-tuning replaces"""

    @property
    def model(self) -> int:
        """Parameters of the embedding and the encoder."""
        return self.embedding + self.encoder


def count_parameters(config: AlbertConfig) -> Parameters:
    """Counts the parameters of `AlbertForPretraining`."""
    width, hidden = config.embedding_size, config.hidden_size
    masked_lm = (
        of_dense(hidden, width) + of_layer_norm(width) + config.vocab_size
    )
    sentence_order = of_dense(hidden, 2)
    return Parameters(
        embedding=of_embedding(config),
        encoder=of_blocks(config) + of_dense(hidden, hidden),
        heads=masked_lm + sentence_order,
    )


def activation_bytes(
    config: AlbertConfig, batch_size: int, sequence_length: int
) -> int:
    """Bytes that a training step keeps between forward and backward pass.

    They are the float32 inputs of all matrix products, LayerNorms, the softmax
    and the activation function, without `remat`, dropout masks and heads. A
    library may keep a little more or recompute some. They do not depend on
    sharing: a shared block is applied as often as blocks of its own.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    block = (
        7 * hidden  # block input, query, key, value, context, two residual sums
        + config.num_attention_heads * sequence_length  # probabilities
        + hidden  # input of the feed-forward network
        + 2 * inner  # input and output of the activation function
    )
    blocks = config.num_hidden_layers * config.inner_group_num
    token = 2 * config.embedding_size + blocks * block
    return BYTES["float32"] * batch_size * sequence_length * token


def _measured(
    config: AlbertConfig, batch_size: int, sequence_length: int
) -> dict[str, float]:
    """Median times of a forward pass and of a training step with Adam."""
    import numpy as np

    from keras_albert.modeling.backbone import AlbertBackbone
    from keras_albert.modeling.pretraining import AlbertForPretraining
    from keras_albert.pretraining.model import compile_for_pretraining

    rng = np.random.default_rng(0)
    shape = batch_size, sequence_length
    chosen = batch_size, max(1, round(PREDICTED_SHARE * sequence_length))
    x = {"token_ids": rng.integers(5, config.vocab_size, shape, "int32")}
    masked = rng.integers(0, sequence_length, chosen, "int32")
    y = {
        "mlm": rng.integers(5, config.vocab_size, chosen, "int32"),
        "sop": rng.integers(0, 2, batch_size, "int32"),
    }
    backbone = AlbertBackbone(config)
    model = AlbertForPretraining(backbone)
    compile_for_pretraining(model, "adam")
    batch = {**x, "masked_positions": masked}
    return {
        "forward, ms": _milliseconds(lambda: backbone.predict_on_batch(x)),
        "training step, ms": _milliseconds(
            lambda: model.train_on_batch(batch, y)
        ),
    }


def _milliseconds(call) -> float:
    times = []
    for _ in range(CALLS + 2):  # the first two compile and allocate
        started = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[2:])
