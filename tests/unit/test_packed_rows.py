"""Rows of several examples: each as if it stood alone, on every path."""

from functools import partial
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import small
from keras import ops
from small import QUICK, add_noise, changes, numpy

import keras_albert as ka
from keras_albert.pretraining.model import compile_for_pretraining

CONFIG = small.CONFIG.replace(num_hidden_layers=2, initializer_range=0.05)
LENGTH, SLOTS = 17, 3  # tokens of a row, examples of a row
ROWS = [[5, 7, 3], [11, 6], [13]]  # tokens of each example; 4 are padding
EXAMPLES = [length for row in ROWS for length in row]
ALONE = 2  # predictions of an example
# (row, first token, tokens, place in the row) of each example.
PLACES = [
    (number, sum(row[:slot]), length, slot)
    for number, row in enumerate(ROWS)
    for slot, length in enumerate(row)
]


@pytest.fixture
def alone():
    """(x, y, sample_weight) of every example in a row of its own."""
    rng = np.random.default_rng(3)
    count = len(EXAMPLES)
    mask = np.arange(LENGTH) < np.array(EXAMPLES)[:, None]
    ids = rng.integers(5, CONFIG.vocab_size, (count, LENGTH))
    positions = [np.sort(rng.permutation(n)[:ALONE]) for n in EXAMPLES]
    x = {
        "token_ids": ids * mask,
        "segment_ids": rng.integers(0, 2, (count, LENGTH)) * mask,
        "padding_mask": mask,
        "masked_positions": np.array(positions),
    }
    y = {
        "mlm": rng.integers(5, CONFIG.vocab_size, (count, ALONE)),
        "sop": rng.integers(0, 2, count),
    }
    # One prediction and one order do not count.
    weight = {"mlm": np.ones((count, ALONE)), "sop": np.ones(count)}
    weight["mlm"][2, 1] = weight["sop"][4] = 0
    kinds = "int32", "int32", "float32"
    return tuple(
        {name: value.astype(kind) for name, value in part.items()}
        for part, kind in zip((x, y, weight), kinds, strict=True)
    )


def packed(alone):
    """The same examples, in `ROWS`."""
    x, y, weight = alone
    names = ("token_ids", "segment_ids", "padding_mask")

    def zeros(width, kind="int32"):
        return np.zeros((len(ROWS), width), kind)

    rows = {
        name: zeros(LENGTH) for name in (*names, "example_ids", "position_ids")
    }
    rows["cls_positions"] = zeros(SLOTS)
    rows["masked_positions"] = zeros(SLOTS * ALONE)
    labels, weights = (
        {"mlm": zeros(SLOTS * ALONE, kind), "sop": zeros(SLOTS, kind)}
        for kind in ("int32", "float32")
    )
    for example, (row, first, length, slot) in enumerate(PLACES):
        place = row, slice(first, first + length)
        for name in names:
            rows[name][place] = x[name][example, :length]
        rows["example_ids"][place] = slot + 1
        rows["position_ids"][place] = np.arange(length)
        rows["cls_positions"][row, slot] = first
        mine = row, slice(slot * ALONE, (slot + 1) * ALONE)
        rows["masked_positions"][mine] = x["masked_positions"][example] + first
        for part, source in ((labels, y), (weights, weight)):
            part["mlm"][mine] = source["mlm"][example]
            part["sop"][row, slot] = source["sop"][example]
    return rows, labels, weights


def of_encoder(batch):
    """What the encoder takes of a batch."""
    return {k: v for k, v in batch[0].items() if k != "masked_positions"}


@pytest.mark.parametrize(
    ("loop", "scores"), [("unrolled", True), ("scan", False)]
)
def test_encoder_outputs(alone, loop, scores):
    """By the fused kernel, and with scores without it."""
    backbone = add_noise(ka.AlbertBackbone(CONFIG, loop=loop))
    x, expected = (
        backbone(
            of_encoder(batch),
            return_hidden_states=True,
            return_attention_scores=scores,
        )
        for batch in (packed(alone), alone)
    )
    states = x["hidden_states"], expected["hidden_states"]
    for together, apart in zip(*states, strict=True):
        for example, (row, first, length, _) in enumerate(PLACES):
            np.testing.assert_allclose(
                numpy(together)[row, first : first + length],
                numpy(apart)[example, :length],
                atol=1e-6,
            )
    pooled = numpy(x["pooled_output"])
    assert pooled.shape == (len(ROWS), SLOTS, CONFIG.hidden_size)
    found = [pooled[row, slot] for row, _, _, slot in PLACES]
    np.testing.assert_allclose(
        found, numpy(expected["pooled_output"]), atol=1e-6
    )


def test_pretraining_logits(alone):
    """Of the model, and of a functional model around it."""
    model = add_noise(ka.AlbertForPretraining(ka.AlbertBackbone(CONFIG)))
    x, expected = packed(alone)[0], model(alone[0])
    inputs = {
        name: keras.Input(x[name].shape[1:], dtype="int32", name=name)
        for name in x
    }
    whole = keras.Model(inputs, model(inputs))
    assert whole.output["sop"].shape == (None, SLOTS, 2)
    for outputs in (model(x), whole(x)):
        mlm, sop = numpy(outputs["mlm"]), numpy(outputs["sop"])
        mlm = mlm.reshape(len(ROWS), SLOTS, ALONE, CONFIG.vocab_size)
        for name, values in (("mlm", mlm), ("sop", sop)):
            found = [values[row, slot] for row, _, _, slot in PLACES]
            wanted = numpy(expected[name])
            np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(
    "form",
    [{"loop": "scan"}, pytest.param({"remat": True}, marks=pytest.mark.proof)],
)
def test_losses_accuracies_and_gradients(alone, form):
    """Of a step: what is not used counts nowhere."""
    results = []
    for batch in (packed(alone), alone):
        keras.utils.set_random_seed(1)
        model = add_noise(
            ka.AlbertForPretraining(ka.AlbertBackbone(CONFIG, **form))
        )
        compile_for_pretraining(model, keras.optimizers.SGD(1.0))
        model.run_eagerly = QUICK["run_eagerly"]
        model.jit_compile = QUICK["jit_compile"]
        step = partial(model.train_on_batch, *batch, return_dict=True)
        results.append(changes(model, step))
    (logs, steps), (expected_logs, expected_steps) = results
    assert logs == pytest.approx(expected_logs, abs=1e-6)
    for step, expected in zip(steps, expected_steps, strict=True):
        np.testing.assert_allclose(step, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("dropout", "dtype"), [(0.0, "float32"), (0.4, "mixed_bfloat16")]
)
def test_no_influence_at_all(alone, dropout, dtype):
    """Other tokens in one example: not a bit changes in the others.

    With dropout of attention there is no fused kernel.
    """
    config = CONFIG.replace(attention_probs_dropout_prob=dropout)
    backbone = ka.AlbertBackbone(config, dtype=dtype)
    x = of_encoder(packed(alone))
    changed = {**x, "token_ids": x["token_ids"].copy()}
    mine = (0, slice(5, 12))  # the second example of the first row
    changed["token_ids"][mine] = changed["token_ids"][mine] % 90 + 6
    outputs = []
    for inputs in (x, changed):
        backbone.encoder.seed_generator.state.assign([7, 7])  # one mask
        output = backbone(inputs, training=True)["sequence_output"]
        outputs.append(numpy(ops.cast(output, "float32")))
    differs = (outputs[0] != outputs[1]).any(-1)
    assert differs[mine].all()
    differs[mine] = False
    assert not differs[x["padding_mask"] == 1].any()


def test_scores_are_zero_across_examples(alone):
    config = CONFIG.replace(attention_probs_dropout_prob=0.4)
    x = of_encoder(packed(alone))
    outputs = add_noise(ka.AlbertBackbone(config))(
        x, training=True, return_attention_scores=True
    )
    ids = x["example_ids"]
    together = (ids[:, :, None] == ids[:, None]) & (ids > 0)[:, None]
    real = x["padding_mask"] == 1
    for scores in outputs["attention_scores"]:
        scores = np.moveaxis(numpy(scores), 1, -1)[real]  # [tokens, S, A]
        assert (scores[~together[real]] == 0).all()
        assert (scores[together[real]] > 0).all()
        np.testing.assert_allclose(scores.sum(1), 1, atol=1e-5)


def test_flash_attention_is_not_left_to_chance(alone, monkeypatch):
    """Keras's for JAX on TPU computes without the bias."""
    attention = Mock(wraps=ops.dot_product_attention)
    monkeypatch.setattr(ops, "dot_product_attention", attention)
    ka.AlbertBackbone(CONFIG)({"token_ids": alone[0]["token_ids"]})
    calls = attention.call_args_list
    assert [call.kwargs["flash_attention"] for call in calls] == [
        False
    ] * CONFIG.num_hidden_layers


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("example_ids", np.ones((3, 16), int), r"`example_ids`.*\(3, 16\)"),
        ("cls_positions", np.ones((2, 3), int), r"`cls_positions`.*\(2, 3\)"),
        ("example_ids", np.full((3, 17), -1), "Received: -1"),
        ("position_ids", np.full((3, 17), 23), r"embeddings=23\).*: 23"),
        ("cls_positions", np.full((3, 3), 17), r"length=17\).*: 17"),
    ],
)
def test_bad_inputs(alone, name, value, message):
    model = ka.AlbertForPretraining(ka.AlbertBackbone(CONFIG))
    with pytest.raises(ka.AlbertError, match=message):
        model({**packed(alone)[0], name: value})


@pytest.mark.any_backend
def test_other_heads_read_one_example_a_row(alone):
    """They would answer for the whole row without a word."""
    x, *_ = packed(alone)
    backbone = ka.AlbertBackbone(CONFIG)
    for head in (
        ka.AlbertForSequenceClassification(backbone, 3),
        ka.AlbertForTokenClassification(backbone, 3),
        ka.AlbertForMultipleChoice(backbone),
        ka.AlbertForQuestionAnswering(backbone),
        ka.AlbertForTextEmbedding(backbone),
    ):
        with pytest.raises(ka.AlbertError, match=r"also:.*'example_ids'"):
            head(x)
