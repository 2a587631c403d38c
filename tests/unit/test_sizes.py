"""Sizes counted from a config, against models and published numbers."""

import pytest
from small import CONFIG

import keras_albert as ka
from keras_albert.pretraining.sizes import (
    SizesRun,
    activation_bytes,
    count_parameters,
    known_configs,
    print_sizes,
)

pytestmark = pytest.mark.on_torch


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sharing": "none"},
        {"sharing": "attention", "num_hidden_groups": 2, "inner_group_num": 3},
        {"sharing": "ffn", "relaxed_rank": 3},
        {"relaxed_rank": 2, "num_hidden_groups": 2, "inner_group_num": 2},
        {"embedding_size": 26},
        {"embedding_size": 26, "project_equal_sizes": True},
    ],
    ids=str,
)
def test_counts_are_those_of_the_model(changes):
    config = CONFIG.replace(**changes)
    model = ka.AlbertForPretraining(ka.AlbertBackbone(config))
    count = count_parameters(config)
    assert count.model == model.backbone.count_params()
    assert count.model + count.heads == model.count_params()


def test_sizes_of_bert():
    """Encoders with pooler, as in the transformers library."""
    known = known_configs()
    assert count_parameters(known["bert-base"]).model == 109_482_240
    assert count_parameters(known["bert-large"]).model == 335_141_888
    sizes = ("base", "large", "xlarge", "xxlarge")
    assert {*known} - {"bert-base", "bert-large"} == {
        f"albert-{size}" for size in sizes
    }
    for size in sizes:
        assert known[f"albert-{size}"] == ka.VARIANTS[f"{size}_v2"]


def test_activations_by_hand():
    # 8 vectors of 26 and 2 of 37 in each of 5 blocks, 13 heads of 16 keys; 2
    # vectors of 11 in the embedding. Sharing changes nothing.
    token = 2 * 11 + 5 * (8 * 26 + 13 * 16 + 2 * 37)
    assert activation_bytes(CONFIG, 3, 16) == 4 * 3 * 16 * token
    unshared = CONFIG.replace(sharing="none")
    assert activation_bytes(unshared, 3, 16) == 4 * 3 * 16 * token


def test_a_model_is_measured(tmp_path, capsys):
    CONFIG.to_json(tmp_path / "albert_config.json")
    run = SizesRun((str(tmp_path),), 2, sequence_length=16, measure=True)
    (row,) = print_sizes(run)
    assert row["parameters"] == count_parameters(CONFIG).model
    assert row["training step, ms"] > 0 and row["forward, ms"] > 0
    assert f"| {row['parameters']:,} |" in capsys.readouterr().out


def test_rows_are_as_long_as_a_model_reads(tmp_path):
    """Unless a length is given: a small model may have few positions."""
    CONFIG.to_json(tmp_path / "small.json")
    names = str(tmp_path / "small.json"), "base_v2"
    small, base = print_sizes(SizesRun(names))
    assert base == {**print_sizes(SizesRun(("albert-base",), 8, 128))[0]} | {
        "architecture": "base_v2"
    }
    longest = CONFIG.max_position_embeddings
    assert small == print_sizes(SizesRun(names[:1], 8, longest))[0]
    with pytest.raises(ka.AlbertError, match=f"--sequence-length {longest}"):
        print_sizes(SizesRun(names[:1], 8, longest + 1))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"config": ("albert-bse",)}, "albert-bse.*mean albert-base"),
        ({"config": ("no/such.json",)}, "no/such.json"),
        ({"config": ("hf://albert/albert-base-v2",)}, "mean albert-base"),
        ({"config": (".",)}, "albert_config.json: no such file"),
        ({"sequence_length": 513}, "at most 512 tokens.*513"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
    ids=str,
)
def test_refused(run, message):
    with pytest.raises(ka.AlbertError, match=message):
        print_sizes(SizesRun(**run))
