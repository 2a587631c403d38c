import json

import pytest

from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.modeling.config import VARIANTS, AlbertConfig
from keras_albert.pretraining.config import ExampleConfig, PretrainRun
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
    assert AlbertConfig.from_json(path) == VARIANTS[variant]


def test_json_round_trip(tmp_path):
    original = AlbertConfig(
        vocab_size=101, hidden_size=26, num_attention_heads=13
    )
    original.to_json(tmp_path / "c.json")
    assert AlbertConfig.from_json(tmp_path / "c.json") == original


def test_variants():
    assert sorted(VARIANTS) == sorted(
        f"{size}_{version}"
        for size in ("base", "large", "xlarge", "xxlarge")
        for version in ("v1", "v2")
    )
    for name, variant in VARIANTS.items():
        dropout = 0.1 if "v1" in name and "xxlarge" not in name else 0.0
        assert variant.hidden_dropout_prob == dropout
        assert variant.attention_probs_dropout_prob == dropout
    heads = {n: v.num_attention_heads for n, v in VARIANTS.items()}
    assert heads["xlarge_v2"] == 16 and heads["xxlarge_v2"] == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_sise": 768}, "`hidden_sise`. Did you mean `hidden_size`"),
        ({"zzz": 1}, "`zzz`. Remove them"),
        ({"hidden_size": 770}, "hidden_size=770, num_attention_heads=12"),
        ({"hidden_size": 768.0}, "positive integer .*: hidden_size=76"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"vocab_size": True}, "vocab_size=True"),
        ({"hidden_act": "swish"}, "'swish'"),
        ({"hidden_dropout_prob": 1}, r"in \[0, 1\). Received: .*=1"),
        ({"initializer_range": -0.1}, "initializer_range=-0.1"),
        ({"num_hidden_groups": 13}, "num_hidden_groups=13"),
        ({"net_structure_type": 2}, "must be 0"),
    ],
)
def test_bad_field(tmp_path, changes, message):
    path = tmp_path / "albert_config.json"
    path.write_text(json.dumps({**RELEASED_BASE, **changes}))
    with pytest.raises(AlbertError, match=message) as caught:
        AlbertConfig.from_json(path)
    assert str(path) in str(caught.value)


def test_all_unknown_and_missing_fields_at_once(tmp_path):
    path = tmp_path / "albert_config.json"
    path.write_text(json.dumps({**RELEASED_BASE, "a": 1, "b": 2}))
    with pytest.raises(AlbertError, match="`a`, `b`"):
        AlbertConfig.from_json(path)
    path.write_text('{"hidden_size": 768}')
    with pytest.raises(AlbertError, match=r"Missing: `vocab_size`, `embe"):
        AlbertConfig.from_json(path)


@pytest.mark.parametrize(
    ("settings", "room"),
    [
        ({}, 20),  # 0.15 x 512 is 77: the limit
        ({"sequence_length": 128}, 19),
        ({"sequence_length": 64}, 10),
        ({"sequence_length": 8, "masked_lm_prob": 0.01}, 1),
        ({"sequence_length": 128, "max_predictions": 7}, 7),
    ],
)
def test_room_for_predictions(settings, room):
    """0.15 x 128 = 19.2; 0.15 x 64 = 9.6; never less than one."""
    assert ExampleConfig(**settings).num_predictions == room


@pytest.mark.parametrize("content", ["", "{", "[1]", "\xff", "9" * 5000])
def test_bad_json(tmp_path, content):
    path = tmp_path / "albert_config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(AlbertError, match=r"albert_config\.json: "):
        AlbertConfig.from_json(path)
    with pytest.raises(AlbertError, match="no such file"):
        AlbertConfig.from_json(tmp_path / "absent.json")


def run_arguments(run_class, **changes):
    paths = dict.fromkeys(("data", "output", "model", "train"), "x")
    names = run_class.__dataclass_fields__
    return {k: v for k, v in paths.items() if k in names} | changes


@pytest.mark.parametrize(
    ("run_class", "changes", "message"),
    [
        (PretrainRun, {"steps": 0}, "steps=0"),
        (PretrainRun, {"warmup_steps": 200_000}, "steps=125000"),
        (PretrainRun, {"batch_size": -1}, "batch_size=-1"),
        (PretrainRun, {"validation_steps": 0}, "validation_steps=0"),
        (FinetuneRun, {"epochs": 0}, "epochs=0"),
        (FinetuneRun, {"learning_rate": 0}, "learning_rate=0"),
        (FinetuneRun, {"dropout": 1.0}, "dropout=1.0"),
        (FinetuneRun, {"warmup_share": 1.5}, "warmup_share=1.5"),
        (ExampleConfig, {"sequence_length": 5}, "at least 8"),
        (ExampleConfig, {"masked_lm_prob": 0.0}, "above 0"),
        (PretrainRun, {"seed": -1}, "seed=-1"),
        (PretrainRun, {"steps": 2**31}, "2147483648"),
        (ExampleConfig, {"max_predictions": 513}, "=513"),
        (ExampleConfig, {"sequence_length": 70_000}, "at most 65536"),
        (ExampleConfig, {"sentence_task": "order"}, "'none'.*'order'"),
        (ExampleConfig, {"target_per": "chunk"}, "'example'.*'chunk'"),
        (ExampleConfig, {"single_sentence": ""}, "'skip_order'"),
        (ExampleConfig, {"cross_sep": 1}, "cross_sep=1"),
        (PretrainRun, {"accumulate": 3}, "batch_size=4096, accumul"),
        (PretrainRun, {"checkpoint_every": 0}, "checkpoint_every=0"),
        (PretrainRun, {"keep_checkpoints": 0}, "keep_checkpoints=0"),
        (PretrainRun, {"short_steps": 125_000}, "short_steps=125000"),
        (
            PretrainRun,
            {"short_steps": 9, "short_length": 512},
            "short_length=512",
        ),
        (PretrainRun, {"short_steps": 9, "short_length": 3}, "least 8"),
        (OptimizerConfig, {"ema_momentum": 1.0}, "ema_momentum=1.0"),
        (OptimizerConfig, {"weight_decay": -1}, "0 or more"),
        (OptimizerConfig, {"optimizer": "sgd"}, "'sgd'"),
        (OptimizerConfig, {"learning_rate": float("nan")}, "=nan"),
    ],
)
def test_bad_run(run_class, changes, message):
    with pytest.raises(AlbertError, match=message):
        run_class(**run_arguments(run_class, **changes))
