"""Settings of architectures and runs, and what is said to wrong ones."""

import json

import numpy as np
import pytest

from keras_albert.errors import AlbertError
from keras_albert.exports.config import ExportRun
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.modeling.config import VARIANTS, AlbertConfig
from keras_albert.pretraining.config import ExampleConfig, PretrainRun
from keras_albert.tasks.config import EarlyExit
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    WindowConfig,
)
from keras_albert.training.config import OptimizerConfig

pytestmark = pytest.mark.any_backend

# albert_config.json of the released albert_base_v1 and xxlarge_v2.
RELEASED_BASE = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "embedding_size": 128,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "num_hidden_groups": 1,
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "inner_group_num": 1,
    "down_scale_factor": 1,
    "type_vocab_size": 2,
    "vocab_size": 30000,
}
RELEASED_XXLARGE = {
    **RELEASED_BASE,
    "attention_probs_dropout_prob": 0,
    "hidden_dropout_prob": 0,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_attention_heads": 64,
}


@pytest.mark.parametrize(
    ("released", "variant"),
    [(RELEASED_BASE, "base_v1"), (RELEASED_XXLARGE, "xxlarge_v2")],
)
def test_released_json(tmp_path, released, variant):
    path = tmp_path / "albert_config.json"
    path.write_text(json.dumps(released))
    config = AlbertConfig.from_json(path)
    assert config == VARIANTS[variant]
    config.to_json(path)
    assert AlbertConfig.from_json(path) == config


def test_numbers_of_numpy(tmp_path):
    """They become numbers of Python, which JSON can hold."""
    numpys = {
        name: np.array(value)[()] if name != "hidden_act" else value
        for name, value in RELEASED_BASE.items()
    }
    config = AlbertConfig.from_dict(numpys)
    config.to_json(tmp_path / "config.json")
    again = AlbertConfig.from_json(tmp_path / "config.json")
    assert again == VARIANTS["base_v1"]
    assert ExampleConfig(np.int64(64)) == ExampleConfig(64)
    stop = EarlyExit(confidence=np.float32(0.5))
    assert type(stop.confidence) is float


def test_variants():
    heads = {"base": 12, "large": 16, "xlarge": 16, "xxlarge": 64}
    for name, variant in VARIANTS.items():
        size, version = name.split("_")
        dropout = 0.1 if version == "v1" and size != "xxlarge" else 0
        assert variant.hidden_dropout_prob == dropout, name
        assert variant.attention_probs_dropout_prob == dropout, name
        assert variant.num_attention_heads == heads[size], name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_sise": 768}, "`hidden_sise`. Did you mean `hidden_size`"),
        ({"zzz": 1}, "`zzz`. Remove them"),
        ({"hidden_size": 770}, "hidden_size=770, num_attention_heads=12"),
        ({"embedding_size": 1}, "must be 2 or more.*embedding_size=1"),
        ({"hidden_size": 768.0}, "positive integer .*: hidden_size=76"),
        ({"vocab_size": True}, "vocab_size=True"),
        ({"hidden_act": "swish"}, "'swish'"),
        ({"hidden_dropout_prob": 10**400}, "`hidden_dropout_prob` must be"),
        ({"hidden_dropout_prob": 1}, r"in \[0, 1\). Received: .*=1"),
        ({"initializer_range": float("inf")}, "initializer_range=inf"),
        ({"num_hidden_groups": 13}, "num_hidden_groups=13"),
        ({"net_structure_type": 2}, "must be 0"),
        ({"sharing": "some"}, "sharing='some'"),
        ({"sharing": ["all"]}, r"'all', 'attention', 'ffn'.*\['all'\]"),
        ({"project_equal_sizes": 1}, "True or False.*project_equal_sizes=1"),
        ({"relaxed_rank": -1}, "integer, 0 .off. or more.*relaxed_rank=-1"),
        ({"relaxed_rank": 2, "sharing": "none"}, "relaxed_rank=0, or another"),
    ],
)
def test_bad_field(tmp_path, changes, message):
    path = tmp_path / "albert_config.json"
    path.write_text(json.dumps({**RELEASED_BASE, **changes}))
    with pytest.raises(AlbertError, match=message) as caught:
        AlbertConfig.from_json(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, "not a JSON file") for content in ("", "{", "\xff")),
        ("[1]", "a JSON object.. Received: list"),
        ("9" * 5000, "not a JSON file"),
        (None, "no such file"),
        ('{"hidden_size": 768}', "Missing: `vocab_size`, `embe"),
    ],
)
def test_bad_json(tmp_path, content, message):
    path = tmp_path / "albert_config.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(AlbertError, match=rf"albert_config\.json: .*{message}"):
        AlbertConfig.from_json(path)


@pytest.mark.parametrize(
    ("settings", "room"),
    [
        ({}, 20),  # 0.15 x 512 is 77: the limit
        ({"sequence_length": 128}, 19),  # of 19.2
        ({"sequence_length": 64}, 10),  # of 9.6
        ({"sequence_length": 8, "masked_lm_prob": 0.01}, 1),
        ({"sequence_length": 128, "max_predictions": 7}, 7),
    ],
)
def test_room_for_predictions(settings, room):
    assert ExampleConfig(**settings).num_predictions == room


PATHS = {
    PretrainRun: {"data": "x", "output": "x"},
    FinetuneRun: {"model": "x", "train": "x", "output": "x"},
    ExportRun: {"model": "x", "output": "x"},
}
SHORT = {"short_steps": 9}
ONNX, LITERT = {"format": "onnx"}, {"format": "litert"}


@pytest.mark.parametrize(
    ("run_class", "changes", "message"),
    [
        (PretrainRun, {"steps": 0}, "steps=0"),
        (PretrainRun, {"warmup_steps": 200_000}, "steps=125000"),
        (FinetuneRun, {"dropout": 1.0}, "dropout=1.0"),
        (FinetuneRun, {"warmup_share": 1.5}, "warmup_share=1.5"),
        (ExampleConfig, {"sequence_length": 5}, "at least 8"),
        (ExampleConfig, {"masked_lm_prob": 0.0}, "above 0"),
        (PretrainRun, {"steps": 2**31}, "2147483648"),
        (ExampleConfig, {"max_predictions": 513}, "=513"),
        (ExampleConfig, {"sequence_length": 70_000}, "at most 65536"),
        (ExampleConfig, {"sentence_task": "order"}, "'none'.*'order'"),
        (ExampleConfig, {"target_per": "chunk"}, "'example'.*'chunk'"),
        (ExampleConfig, {"single_sentence": ""}, "'skip_order'"),
        (ExampleConfig, {"cross_sep": 1}, "cross_sep=1"),
        (ExampleConfig, {"max_examples": 0}, "max_examples=0"),
        (ExampleConfig, {"pack": "yes"}, "pack='yes'"),
        (PretrainRun, {"accumulate": 3}, "batch_size=4096, accumul"),
        (PretrainRun, {"short_steps": 125_000}, "short_steps=125000"),
        (PretrainRun, SHORT | {"short_length": 512}, "short_length=512"),
        (PretrainRun, SHORT | {"short_length": 3}, "short_length=3"),
        (OptimizerConfig, {"ema_momentum": 1.0}, "ema_momentum=1.0"),
        (OptimizerConfig, {"weight_decay": -1}, "0 or more"),
        (OptimizerConfig, {"optimizer": "sgd"}, "'sgd'"),
        (OptimizerConfig, {"learning_rate": float("nan")}, "=nan"),
        (WindowConfig, {"sequence_length": 67}, r"above `query_length` \+ 3"),
        (WindowConfig, {"stride": 0}, "`stride` must be a positive integer"),
        (WindowConfig, {"query_length": -1}, "`query_length` must be a posit"),
        (AnswerConfig, {"n_best": 0}, "`n_best` must be a positive"),
        (AnswerConfig, {"answer_length": -1}, "`answer_length` must be a pos"),
        (ExportRun, ONNX | {"weights": "float16"}, "stores weights as float32"),
        (ExportRun, LITERT | {"version": 2}, "Leave --version out"),
        (ExportRun, ONNX | {"compute": "bfloat16"}, "Leave --compute out"),
        (ExportRun, LITERT | {"weights": "int8"}, "as --data"),
        (ExportRun, {"version": 0}, "version"),
    ],
)
def test_bad_run(run_class, changes, message):
    with pytest.raises(AlbertError, match=message):
        run_class(**PATHS.get(run_class, {}), **changes)


def test_short_examples_have_no_more_predictions_than_tokens():
    examples = ExampleConfig(sequence_length=64, max_predictions=40)
    run = PretrainRun("d", "o", examples=examples, **SHORT, short_length=32)
    found = [run.examples_of(step) for step in (9, 10)]
    assert [each.sequence_length for each in found] == [32, 64]
    assert [each.max_predictions for each in found] == [32, 40]
