"""Every head: shapes, values by hand, training, raw texts, its file."""

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops, tree
from small import TEXT_CONFIG as CONFIG

import keras_albert
from keras_albert.errors import AlbertError as Refused
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.modeling.question_answering import (
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.text.special_tokens import CLS_ID, MASK_ID, SEP_ID
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.training.losses import WeightedCrossEntropy
from keras_albert.training.optimizer import Lamb

B, S, C, V, H = 5, 17, 3, CONFIG.vocab_size, CONFIG.hidden_size
LONGEST = CONFIG.max_position_embeddings  # of a row of these texts
K = 5

sparse = keras.losses.SparseCategoricalCrossentropy
binary = keras.losses.BinaryCrossentropy


def sequence_logits(length):
    return {"start": (B, length), "end": (B, length)}


class Head(NamedTuple):
    """A row of the table of heads."""

    build: Callable
    shapes: Callable  # sequence length -> shapes of the outputs
    loss: Callable
    labels: Callable  # generator of random numbers, sequence length -> y
    needs_pooler: bool = True
    text: str = "texts"  # which of `texts_of` it takes


HEADS = {
    "sop": Head(
        AlbertForPretraining,
        lambda s: {"mlm": (B, s, V), "sop": (B, 2)},
        lambda: {"mlm": WeightedCrossEntropy(), "sop": WeightedCrossEntropy()},
        lambda rng, s: {
            "mlm": rng.integers(0, V, (B, s)),
            "sop": rng.integers(0, 2, B),
        },
        text="pairs",
    ),
    "nsp": Head(
        lambda backbone: AlbertForPretraining(backbone, sentence_task="nsp"),
        lambda s: {"mlm": (B, s, V), "nsp": (B, 2)},
        lambda: {"mlm": WeightedCrossEntropy(), "nsp": WeightedCrossEntropy()},
        lambda rng, s: {
            "mlm": rng.integers(0, V, (B, s)),
            "nsp": rng.integers(0, 2, B),
        },
        text="pairs",
    ),
    "no sentence task": Head(
        lambda backbone: AlbertForPretraining(backbone, sentence_task=None),
        lambda s: {"mlm": (B, s, V)},
        lambda: {"mlm": WeightedCrossEntropy()},
        lambda rng, s: {"mlm": rng.integers(0, V, (B, s))},
    ),
    "masked_lm": Head(
        AlbertForMaskedLM,
        lambda s: (B, s, V),
        WeightedCrossEntropy,
        lambda rng, s: rng.integers(0, V, (B, s)),
        needs_pooler=False,
    ),
    "single_label": Head(
        lambda backbone: AlbertForSequenceClassification(
            backbone, C, dropout=0.0, labels=("a", "b", "c")
        ),
        lambda s: (B, C),
        lambda: sparse(from_logits=True),
        lambda rng, s: rng.integers(0, C, B),
    ),
    "multi_label": Head(
        lambda backbone: AlbertForSequenceClassification(
            backbone, C, dropout=0.0, problem="multi_label"
        ),
        lambda s: (B, C),
        lambda: binary(from_logits=True),
        lambda rng, s: rng.integers(0, 2, (B, C)),
        text="pairs",
    ),
    "regression": Head(
        lambda backbone: AlbertForSequenceClassification(
            backbone, 1, dropout=0.0, problem="regression"
        ),
        lambda s: (B, 1),
        lambda: "mse",
        lambda rng, s: rng.normal(size=B).astype("float32"),
        text="pairs",
    ),
    "tokens": Head(
        lambda backbone: AlbertForTokenClassification(
            backbone, C, dropout=0.0, labels=["a", "b", "c"]
        ),
        lambda s: (B, s, C),
        lambda: sparse(from_logits=True),
        lambda rng, s: rng.integers(0, C, (B, s)),
        needs_pooler=False,
    ),
    "choice": Head(
        lambda backbone: AlbertForMultipleChoice(backbone, dropout=0.0),
        lambda s: (B, C),
        lambda: sparse(from_logits=True),
        lambda rng, s: rng.integers(0, C, B),
        text="choices",
    ),
    "qa": Head(
        AlbertForQuestionAnswering,
        sequence_logits,
        lambda: {
            "start": sparse(from_logits=True),
            "end": sparse(from_logits=True),
        },
        lambda rng, s: {
            "start": rng.integers(0, s, B),
            "end": rng.integers(0, s, B),
        },
        needs_pooler=False,
        text="questions",
    ),
    "qa_v2": Head(
        lambda backbone: AlbertForQuestionAnsweringV2(backbone, dropout=0.0),
        lambda s: {
            "start_top_log_probs": (B, K),
            "start_top_index": (B, K),
            "end_top_log_probs": (B, K, K),
            "end_top_index": (B, K, K),
            "answer_class": (B, 1),
        },
        lambda: {
            "start": sparse(from_logits=True),
            "end": sparse(from_logits=True),
            "answer_class": binary(from_logits=True),
        },
        None,
        needs_pooler=False,
        text="questions",
    ),
    "embedding": Head(
        AlbertForTextEmbedding,
        lambda s: (B, H),
        lambda: "mse",
        lambda rng, s: rng.normal(size=(B, H)).astype("float32"),
        needs_pooler=False,
    ),
}
every_head = pytest.mark.parametrize("name", HEADS)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """JAX compiles each of these small models anew: XLA need not try hard."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def tokenizer(tiny_vocab):
    return Tokenizer(tiny_vocab)


def new_model(name, tokenizer=None, config=CONFIG, **options):
    keras.utils.set_random_seed(3)
    head = HEADS[name]
    options = {"pooler": head.needs_pooler, **options}
    return head.build(AlbertBackbone(config, tokenizer=tokenizer, **options))


@pytest.fixture
def inputs():
    """Two texts a row, the second row shorter; [CLS] a [SEP] b [SEP]."""
    rng = np.random.default_rng(5)
    token_ids = rng.integers(5, V, (B, S)).astype("int32")
    token_ids[:, 0], token_ids[:, 6] = CLS_ID, SEP_ID
    segment_ids = np.zeros((B, S), "int32")
    segment_ids[:, 7:] = 1
    padding_mask = np.ones((B, S), "int32")
    padding_mask[1, 14:] = 0
    token_ids[1, 13] = token_ids[[0, 2, 3, 4], 16] = SEP_ID
    return {
        "token_ids": token_ids * padding_mask,
        "segment_ids": segment_ids * padding_mask,
        "padding_mask": padding_mask,
    }


def for_head(name, inputs):
    """[B, S], or for multiple choice [B, C, S] with other words each."""
    if name != "choice":
        return inputs
    rows = {k: np.stack([v] * C, axis=1) for k, v in inputs.items()}
    rows["token_ids"][:, 1, 9:12] = 7
    rows["token_ids"][:, 2, 9:12] = 11
    return rows


def quickest(compiled=False):
    """How to run a few steps: a graph of TensorFlow takes longer to make."""
    backend = keras.backend.backend()
    return {
        "run_eagerly": backend == "tensorflow" and not compiled,
        "jit_compile": backend == "jax",
    }


def texts_of(kind, lines):
    """B raw inputs, as long as rows can be."""
    first = [" ".join(lines[i : i + 2]) for i in range(B)]
    second = [" ".join(lines[i : i + 2]) for i in range(B, 2 * B)]
    return {
        "texts": first,
        "pairs": (first, second),
        "questions": {"question": lines[:B], "context": second},
        "choices": {
            "context": first,
            "question": lines[:B],
            "choices": [lines[i : i + C] for i in range(B)],
        },
    }[kind]


def numpy(outputs):
    return tree.map_structure(ops.convert_to_numpy, outputs)


def assert_close(found, expected, atol=1e-5, rtol=1e-5):
    tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=rtol),
        numpy(found),
        numpy(expected),
    )


# Shapes.


@every_head
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_shapes_and_dtypes(name, policy, inputs):
    model = new_model(name, dtype=policy)
    outputs = model(for_head(name, inputs))
    shapes = tree.map_structure(lambda x: tuple(x.shape), outputs)
    assert shapes == HEADS[name].shapes(S)
    for key, output in zip(
        outputs if isinstance(outputs, dict) else [""],
        tree.flatten(outputs),
        strict=True,
    ):
        expected = "int32" if key.endswith("index") else "float32"
        assert keras.backend.standardize_dtype(output.dtype) == expected
    assert keras.backend.standardize_dtype(model.compute_dtype) == (
        "bfloat16" if policy == "mixed_bfloat16" else "float32"
    )


@every_head
def test_padding_changes_nothing(name, inputs):
    model = new_model(name)
    plain = for_head(name, inputs)
    longer = tree.map_structure(
        lambda x: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, LONGEST - S)]),
        plain,
    )
    # Whatever stands behind the mask, in rows of any length.
    behind = longer["padding_mask"] == 0
    longer["token_ids"][behind] = 13
    longer["segment_ids"][behind] = 1

    def kept(x):
        return x[:, :S] if LONGEST in x.shape[1:2] else x

    short, long = numpy(model(plain)), numpy(model(longer))
    long = tree.map_structure(kept, long)
    # Positions behind the mask have outputs that nobody reads.
    real = inputs["padding_mask"].astype(bool)
    short, long = (
        tree.map_structure(
            lambda x: x[real] if x.shape[:2] == (B, S) else x, each
        )
        for each in (short, long)
    )
    assert_close(long, short)


@every_head
def test_poolers(name, inputs):
    head = HEADS[name]
    bare = AlbertBackbone(CONFIG, pooler=False)
    if head.needs_pooler:
        with pytest.raises(Refused, match="`pooler=True`"):
            head.build(bare)
    else:
        model = head.build(bare)
        assert not any("pooler" in weight.path for weight in model.weights)


@pytest.mark.parametrize("name", ["no sentence task", "masked_lm", "tokens"])
def test_a_pooler_that_is_not_read_stays(name, inputs):
    """Weight decay would shrink it, and JAX has gradients of zeros for it."""
    head = HEADS[name]
    model = scrambled(head.build(AlbertBackbone(CONFIG)))
    pooler = model.backbone.pooler
    weights = {id(weight): weight for weight in model.weights}
    trained = {id(weight) for weight in model.trainable_weights}
    rest = {id(weight) for weight in model.non_trainable_weights}
    assert trained | rest == set(weights) and not trained & rest
    assert all(id(weight) in rest for weight in pooler.weights)
    model.compile(
        Lamb(0.1), loss=head.loss(), **quickest(compiled=name == "masked_lm")
    )
    before = {key: numpy(weight) for key, weight in weights.items()}
    y = head.labels(np.random.default_rng(11), S)
    model.train_on_batch(inputs, y)
    for key, weight in weights.items():
        stays = np.array_equal(numpy(weight), before[key])
        assert stays == (key in rest), weight.path
    # As the encoder of another head it is trained again.
    whole = AlbertForSequenceClassification(model.backbone, C)
    assert {id(weight) for weight in pooler.weights} <= {
        id(weight) for weight in whole.trainable_weights
    }


# Values, in float64 from what the backbone gives.


def dense(layer, x):
    y = x @ numpy(layer.kernel).astype("float64")
    return y + numpy(layer.bias) if layer.use_bias else y


def normed(layer, x):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
    return x * numpy(layer.gamma) + numpy(layer.beta)


def gelu(x):
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def softmax(x):
    odds = np.exp(x - x.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def scrambled(model):
    """Biases and LayerNorms that are not the zeros and ones of the start."""
    rng = np.random.default_rng(7)
    for weight in model.weights:
        if "seed" not in weight.path:
            noise = rng.normal(size=weight.shape, scale=0.1)
            weight.assign(numpy(weight) + noise.astype("float32"))
    return model


def backbone_values(model, inputs):
    outputs = model.backbone(inputs)
    return {k: numpy(v).astype("float64") for k, v in outputs.items()}


def masked_lm_values(model, x):
    head = model.masked_lm
    x = normed(head.layer_norm, gelu(dense(head.dense, x)))
    table = numpy(model.backbone.embeddings.word.embeddings)
    return x @ table.T + numpy(head.output_bias)


@pytest.mark.parametrize("name", ["sop", "nsp", "masked_lm"])
def test_masked_lm_and_sentence_pair_values(name, inputs):
    model = scrambled(new_model(name))
    values = backbone_values(model, inputs)
    positions = np.array([[3, 1, 4, 15, 9, 2, 6]] * B)
    at = np.take_along_axis(
        values["sequence_output"], positions[..., None], axis=1
    )
    expected = masked_lm_values(model, at)
    if name != "masked_lm":
        pair = dense(model.sentence_pair, values["pooled_output"])
        expected = {"mlm": expected, name: pair}
    found = model({**inputs, "masked_positions": positions})
    assert_close(found, expected)


@pytest.mark.parametrize("name", ["single_label", "tokens", "qa"])
def test_dense_head_values(name, inputs):
    model = scrambled(new_model(name))
    values = backbone_values(model, inputs)
    if name == "single_label":
        expected = dense(model.classifier, values["pooled_output"])
    elif name == "tokens":
        expected = dense(model.classifier, values["sequence_output"])
    else:
        span = dense(model.span, values["sequence_output"])
        expected = {"start": span[..., 0], "end": span[..., 1]}
    assert_close(model(inputs), expected)


def test_multiple_choice_values(inputs):
    """Each choice is scored as if it stood alone."""
    model = scrambled(new_model("choice"))
    rows = for_head("choice", inputs)
    expected = np.stack(
        [
            dense(
                model.classifier,
                backbone_values(model, {k: v[:, c] for k, v in rows.items()})[
                    "pooled_output"
                ],
            )[:, 0]
            for c in range(C)
        ],
        axis=1,
    )
    assert_close(model(rows), expected)
    assert np.ptp(expected, axis=1).min() > 1e-3, "the choices differ"
    del rows["segment_ids"], rows["padding_mask"]
    assert model(rows).shape == (B, C)


def test_text_embedding_values(inputs):
    mean = scrambled(new_model("embedding"))
    first = AlbertForTextEmbedding(mean.backbone, pooling="cls")
    x = backbone_values(mean, inputs)["sequence_output"]
    assert_close(first(inputs), x[:, 0])
    expected = x.mean(axis=1)
    expected[1] = x[1, :14].mean(axis=0)
    assert_close(mean(inputs), expected)
    del inputs["padding_mask"]  # derived from the padding id
    assert_close(mean(inputs), expected)


def answerable(inputs):
    """p_mask of the reference, inverted: [CLS], and the context's words."""
    allowed = (inputs["segment_ids"] == 1) & (inputs["token_ids"] != SEP_ID)
    allowed &= inputs["padding_mask"] == 1
    allowed[:, 0] = True
    return allowed


def end_values(model, x, starts, allowed):
    """[B, S] for one start a row."""
    at_start = np.take_along_axis(x, starts[:, None, None], axis=1)
    both = np.concatenate([x, np.broadcast_to(at_start, x.shape)], axis=-1)
    hidden = np.tanh(dense(model.end_dense, both))
    end = dense(model.end, normed(model.end_layer_norm, hidden))[..., 0]
    return np.where(allowed, end, -1e30)


def answer_class_values(model, x, start):
    expected_start = np.einsum("bs,bsh->bh", softmax(start), x)
    both = np.concatenate([expected_start, x[:, 0]], axis=-1)
    return dense(model.answer, np.tanh(dense(model.answer_dense, both)))


def top(values):
    index = np.argsort(-values, axis=-1, kind="stable")[..., :K]
    return np.take_along_axis(values, index, axis=-1), index


def test_question_answering_v2_values(inputs):
    """All of FACTS: start, end of the true start, 5 x 5 beam, answer class."""
    model = scrambled(new_model("qa_v2"))
    x = backbone_values(model, inputs)["sequence_output"]
    allowed = answerable(inputs)
    start = np.where(allowed, dense(model.start, x)[..., 0], -1e30)
    answer_class = answer_class_values(model, x, start)
    positions = np.array([7, 8, 9, 0, 15], "int32")
    found = numpy(model({**inputs, "start_positions": positions}))
    expected = {
        "start": start,
        "end": end_values(model, x, positions, allowed),
        "answer_class": answer_class,
    }
    assert_close(found, expected)
    assert (found["start"][~allowed] == np.float32(-1e30)).all()
    assert (found["end"][~allowed] == np.float32(-1e30)).all()
    assert allowed.sum(axis=1).tolist() == [10, 7, 10, 10, 10]

    start_top, start_index = top(log_softmax(start))
    ends = np.stack(
        [end_values(model, x, start_index[:, k], allowed) for k in range(K)],
        axis=1,
    )
    end_top, end_index = top(log_softmax(ends))
    assert_close(
        model(inputs),
        {
            "start_top_log_probs": start_top,
            "start_top_index": start_index,
            "end_top_log_probs": end_top,
            "end_top_index": end_index,
            "answer_class": answer_class,
        },
    )


def test_question_answering_v2_equals_xlnet_poolers(inputs):
    """transformers keeps these heads, which are those of the reference."""
    torch = pytest.importorskip("torch", reason="transformers runs on PyTorch")
    xlnet = pytest.importorskip(
        "transformers.models.xlnet.modeling_xlnet",
        reason="transformers is not installed",
    )
    from transformers import XLNetConfig

    config = XLNetConfig(
        d_model=H, n_head=2, layer_norm_eps=1e-12, vocab_size=V
    )
    start = xlnet.XLNetPoolerStartLogits(config)
    end = xlnet.XLNetPoolerEndLogits(config)
    answer = xlnet.XLNetPoolerAnswerClass(config)
    model = scrambled(new_model("qa_v2"))

    def copy(theirs, ours):
        weights = [torch.tensor(numpy(w)) for w in ours.weights]
        theirs.weight.data = (
            weights[0].T if weights[0].ndim == 2 else weights[0]
        )
        if len(weights) == 2:
            theirs.bias.data = weights[1]

    copy(start.dense, model.start)
    copy(end.dense_0, model.end_dense)
    copy(end.LayerNorm, model.end_layer_norm)
    copy(end.dense_1, model.end)
    copy(answer.dense_0, model.answer_dense)
    copy(answer.dense_1, model.answer)
    x = torch.tensor(numpy(model.backbone(inputs)["sequence_output"]))
    p_mask = torch.tensor(~answerable(inputs)).float()
    positions = torch.tensor([7, 8, 9, 0, 15])
    with torch.no_grad():
        start_logits = start(x, p_mask=p_mask)
        expected = {
            "start": start_logits.numpy(),
            "end": end(x, start_positions=positions, p_mask=p_mask).numpy(),
            "answer_class": answer(
                x,
                start_states=torch.einsum(
                    "bs,bsh->bh", start_logits.softmax(-1), x
                ),
                cls_index=torch.zeros(B, dtype=torch.int64),
            ).numpy()[:, None],
        }
    given = {**inputs, "start_positions": positions.numpy()}
    assert_close(model(given), expected)


def test_question_answering_v2_of_a_short_text(inputs):
    """Fewer positions than the beam; no segments: only [CLS] may answer."""
    backbone = AlbertBackbone(CONFIG, pooler=False)
    model = AlbertForQuestionAnsweringV2(backbone, beam=S + 2)
    outputs = numpy(model({"token_ids": inputs["token_ids"]}))
    assert outputs["end_top_index"].shape == (B, S, S)
    assert not outputs["start_top_index"][:, 0].any()
    assert not outputs["end_top_index"][:, 0, 0].any()
    np.testing.assert_allclose(outputs["start_top_log_probs"][:, 0], 0.0)


def test_question_answering_v2_dropout_is_of_the_answer_alone(inputs):
    model = AlbertForQuestionAnsweringV2(AlbertBackbone(CONFIG), dropout=0.5)
    given = {**inputs, "start_positions": np.full(B, 7, "int32")}
    still, moved = (numpy(model(given, training=t)) for t in (False, True))
    assert_close(moved["start"], still["start"])
    assert_close(moved["end"], still["end"])
    assert np.abs(moved["answer_class"] - still["answer_class"]).max() > 1e-3


def test_question_answering_v2_weighs_its_rows(inputs):
    """The documented losses of a row of weight 0 count nothing."""
    model = scrambled(new_model("qa_v2"))
    positions = np.array([7, 8, 9, 0, 15], "int32")
    x = {**inputs, "start_positions": positions}
    impossible = np.array([0, 1, 0, 1, 0], "float32")
    logits = numpy(model(x))["answer_class"][:, 0]
    model.compile(
        "sgd",
        loss={
            "start": None,
            "end": None,
            "answer_class": binary(from_logits=True),
        },
    )
    weight = np.array([1, 0, 0, 0, 1], "float32")
    found = model.evaluate(
        x, {"answer_class": impossible}, sample_weight=weight, verbose=0
    )
    losses = np.logaddexp(0, logits) - impossible * logits
    assert found == pytest.approx((weight * losses).sum() / B, rel=1e-4)


def test_question_answering_v2_trains_on_starts_only(inputs):
    with pytest.raises(Refused, match=r"needs `start_positions`.*Received"):
        new_model("qa_v2")(inputs, training=True)


def test_two_heads_of_one_backbone_in_a_file(inputs, tmp_path):
    """A functional model keeps one encoder, not two."""
    config = CONFIG.replace(max_position_embeddings=128)
    backbone = AlbertBackbone(config)
    symbols = {
        name: keras.Input((None,), dtype="int32", name=name) for name in inputs
    }
    model = keras.Model(
        symbols,
        [
            AlbertForSequenceClassification(backbone, 3)(symbols),
            AlbertForTokenClassification(backbone, 2)(symbols),
        ],
    )
    expected = numpy(model(inputs))
    model.save(tmp_path / "two.keras")
    again = keras.models.load_model(tmp_path / "two.keras")
    assert len(again.weights) == len(model.weights) == len(backbone.weights) + 4
    assert_close(again(inputs), expected)


@every_head
def test_logits_are_not_rounded_to_half_precision(name, inputs):
    """The last projection computes in float32, not only its cast."""
    model = scrambled(new_model(name, dtype="mixed_bfloat16"))
    if name == "choice":
        inputs = {k: np.stack([v, v[::-1]], 1) for k, v in inputs.items()}
    for logits in tree.flatten(numpy(model(inputs))):
        if logits.dtype == np.float32 and name != "embedding":
            rounded = numpy(ops.cast(ops.cast(logits, "bfloat16"), "float32"))
            real = np.abs(logits) < 1e20
            assert (rounded != logits)[real].mean() > 0.3


# Raw texts.


@every_head
def test_texts_equal_ids(name, tokenizer, tiny_lines):
    """Called with texts, and with what `preprocess` makes of them."""
    model = new_model(name, tokenizer)
    raw = texts_of(HEADS[name].text, tiny_lines)
    ids = model.preprocess(raw)
    assert ids["token_ids"].shape[-1] == LONGEST
    assert_close(model(raw), model(ids))


def test_ids_of_texts_are_the_tokenizers(tokenizer, tiny_lines):
    classifier = new_model("single_label", tokenizer)
    for raw in (texts_of("texts", tiny_lines), ["a", "The fox."]):
        expected = tokenizer(raw, max_length=LONGEST)
        found = classifier.preprocess(raw)
        length = expected["token_ids"].shape[1]
        for key, value in found.items():
            assert value.shape[1] in (32, LONGEST)
            np.testing.assert_array_equal(value[:, :length], expected[key])
            assert not value[:, length:].any()
    pairs = texts_of("pairs", tiny_lines)
    expected = tokenizer(*pairs, max_length=LONGEST, pad_to=LONGEST)
    for model in (classifier, new_model("masked_lm", tokenizer)):
        found = model.preprocess(pairs)
        tree.map_structure(np.testing.assert_array_equal, found, expected)

    found = new_model("choice", tokenizer).preprocess(
        {"context": ["The fox."], "choices": [["a hen", "a dog"]]}
    )
    expected = tokenizer(["The fox."] * 2, ["a hen", "a dog"], pad_to=512)
    for key, value in found.items():
        assert value.shape == (1, 2, 32)
        np.testing.assert_array_equal(value[0], expected[key][:, :32])


def test_question_and_context(tokenizer):
    """What is too long is cut off the longer of the two."""
    model = new_model("qa", tokenizer)
    long, short = "London " * 40, "Who?"
    question, context = tokenizer.encode(short), tokenizer.encode(long)
    room = LONGEST - 3
    x = model.preprocess(
        {"question": [short, long, long], "context": [long, short, long]}
    )
    kept = context[: room - len(question)]
    half = context[: room // 2]
    for row, (a, b) in enumerate(
        [(question, kept), (kept, question), (half, half)]
    ):
        expected = [CLS_ID, *a, SEP_ID, *b, SEP_ID]
        assert x["token_ids"][row, : len(expected)].tolist() == expected
        assert x["segment_ids"][row].sum() == len(b) + 1
        assert x["padding_mask"][row].sum() == len(expected)


def test_choices_are_never_cut_off(tokenizer):
    """As the reference: the blank is filled, the end of a choice stays."""
    model = new_model("choice", tokenizer)
    choices = ["Prague", "two hens"]
    room = LONGEST - 3

    def rows(context, question):
        x = model.preprocess(
            {
                "context": [context],
                "question": [question],
                "choices": [choices],
            }
        )
        return [
            ids[mask == 1].tolist()
            for ids, mask in zip(
                x["token_ids"][0], x["padding_mask"][0], strict=True
            )
        ]

    def expected(a, b):
        return [CLS_ID, *a, SEP_ID, *b, SEP_ID]

    fox, long = tokenizer.encode("A fox."), "London " * 40
    for question, texts in (
        ("Is it _ ?", ["Is it Prague ?", "Is it two hens ?"]),
        ("Where?", ["Where? Prague", "Where? two hens"]),
        ("", choices),
    ):
        assert rows("A fox.", question) == [
            expected(fox, tokenizer.encode(text)) for text in texts
        ]
    context = tokenizer.encode(long)
    both = [tokenizer.encode(f"{long} {choice}") for choice in choices]
    assert rows(long, long) == [
        expected(context[: room // 2], ids[-(room // 2) :]) for ids in both
    ]
    assert rows("A fox.", long) == [
        expected(fox, ids[-(room - len(fox)) :]) for ids in both
    ]


def test_every_kind_of_string(tokenizer, tiny_lines):
    """One compiled `predict`, given lists, arrays, bytes and tensors."""
    model = new_model("single_label", tokenizer)
    texts, pairs = texts_of("pairs", tiny_lines)
    ids = tokenizer(texts, max_length=LONGEST)
    expected = model.predict(ids, verbose=0)
    as_bytes = [text.encode() for text in texts]
    kinds = [
        *(texts, tuple(texts), np.array(texts), np.array(texts, object)),
        *(as_bytes, np.array(as_bytes)),
    ]
    if importlib.util.find_spec("tensorflow") is not None:
        import tensorflow as tf

        kinds.append(tf.constant(texts))
    for kind in kinds:
        assert_close(model.predict(kind, verbose=0), expected)
    assert_close(model.predict_on_batch(texts), expected)
    assert_close(model(kinds[-1]), expected)

    both = model.predict(tokenizer(texts, pairs, max_length=LONGEST), verbose=0)
    assert np.abs(both - expected).max() > 1e-3
    for kind in (
        (texts, pairs),
        (np.array(texts), [text.encode() for text in pairs]),
    ):
        assert_close(model.predict(kind, verbose=0), both)


def test_dicts_of_arrays(tokenizer, tiny_lines):
    choice, qa = (new_model(name, tokenizer) for name in ("choice", "qa"))
    for model, raw in (
        (choice, texts_of("choices", tiny_lines)),
        (qa, texts_of("questions", tiny_lines)),
    ):
        expected = model.preprocess(raw)
        arrays = {key: np.array(value) for key, value in raw.items()}
        as_bytes = {k: np.char.encode(v, "utf-8") for k, v in arrays.items()}
        for kind in (arrays, as_bytes):
            found = model.preprocess(kind)
            tree.map_structure(np.testing.assert_array_equal, found, expected)


def test_tokenizer_given_later(tokenizer, tiny_lines):
    model = new_model("single_label")
    texts = texts_of("texts", tiny_lines)
    with pytest.raises(Refused, match=r"has none\. Set it: model"):
        model(texts)
    model.tokenizer = tokenizer
    assert model.backbone.tokenizer is tokenizer
    assert model(texts).shape == (B, C)


# Training.


# The others differ little; the masked LM is trained below.
TRAINED = [
    n for n in HEADS if n not in ("nsp", "no sentence task", "masked_lm")
]
# Through the whole loop: a list of texts, and a dict of them.
VALIDATED = ("single_label", "choice")
COMPILED = (*VALIDATED, "qa_v2")


@pytest.mark.parametrize("name", TRAINED)
def test_fits_texts_and_predicts(name, tokenizer, tiny_lines, inputs):
    """The documented losses, from raw texts to lower values."""
    head = HEADS[name]
    model = new_model(name, tokenizer)
    raw = texts_of(head.text, tiny_lines)
    weights, held_out = None, None
    if name == "qa_v2":  # needs the true start, which only ids have
        start = np.array([7, 8, 9, 10, 0], "int32")
        x = {**inputs, "start_positions": start}
        y = {
            "start": start,
            "end": np.array([8, 9, 9, 12, 0], "int32"),
            "answer_class": np.array([0, 0, 0, 0, 1], "float32"),
        }
        weights = {"start": 0.5, "end": 0.5, "answer_class": 0.5}
    else:
        x, y = raw, head.labels(np.random.default_rng(11), LONGEST)
        held_out = (x, y) if name in VALIDATED else None
    model.compile(
        optimizer=keras.optimizers.Adam(0.001),
        loss=head.loss(),
        loss_weights=weights,
        **quickest(compiled=name in COMPILED),
    )
    history = model.fit(
        x, y, batch_size=B, epochs=5, validation_data=held_out, verbose=0
    ).history
    assert history["loss"][-1] < history["loss"][0]
    if held_out:
        assert history["val_loss"][-1] < history["loss"][0]
        again = model.evaluate(raw, y, verbose=0, return_dict=True)["loss"]
        np.testing.assert_allclose(again, history["val_loss"][-1], rtol=1e-5)
    # What v2 predicts is another structure than what it is trained with.
    loop = bool(held_out) or name == "qa_v2"
    outputs = model.predict(raw, verbose=0) if loop else model(raw)
    shapes = tree.map_structure(lambda a: tuple(a.shape), outputs)
    assert shapes == head.shapes(LONGEST)
    assert_close(outputs, model(raw))


# Files.


@every_head
def test_saved_and_loaded(name, tokenizer, tiny_lines, tmp_path):
    model = scrambled(new_model(name, tokenizer, dtype="float32"))
    model.save(tmp_path / "model.keras")
    again = keras_albert.load_model(tmp_path / "model.keras")
    assert type(again) is type(model)
    assert again.config == CONFIG
    assert again.tokenizer.model_bytes == tokenizer.model_bytes
    assert again.tokenizer.lower_case == tokenizer.lower_case
    assert (again.backbone.pooler is None) == (model.backbone.pooler is None)
    raw = texts_of(HEADS[name].text, tiny_lines)
    assert_close(again(raw), model(raw), atol=0, rtol=0)
    ours, theirs = model.get_config(), again.get_config()
    for settings in (ours, theirs):  # says which objects are one and the same
        settings["backbone"].pop("shared_object_id", None)
    assert ours == theirs


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (
            lambda b: AlbertForPretraining(b, sentence_task="nsp"),
            {"sentence_task": "nsp"},
        ),
        (
            lambda b: AlbertForSequenceClassification(
                b, 2, dropout=0.3, problem="multi_label", labels=["no", "yes"]
            ),
            {
                "num_labels": 2,
                "problem": "multi_label",
                "labels": ("no", "yes"),
                "dropout": 0.3,
            },
        ),
        (
            lambda b: AlbertForTokenClassification(
                b, 2, dropout=0.3, labels=("no", "yes")
            ),
            {"num_labels": 2, "labels": ("no", "yes"), "dropout": 0.3},
        ),
        (lambda b: AlbertForMultipleChoice(b, dropout=0.3), {"dropout": 0.3}),
        (
            lambda b: AlbertForQuestionAnsweringV2(b, beam=3, dropout=0.3),
            {"beam": 3, "dropout": 0.3},
        ),
        (
            lambda b: AlbertForTextEmbedding(b, pooling="cls"),
            {"pooling": "cls"},
        ),
    ],
)
def test_settings_come_back(model, settings, tmp_path):
    model = model(AlbertBackbone(CONFIG, dtype="mixed_bfloat16"))
    model.save(tmp_path / "model.keras")
    again = keras_albert.load_model(tmp_path / "model.keras")
    for name, expected in settings.items():
        found = getattr(again, name)
        assert getattr(found, "rate", found) == expected
    assert again.dtype_policy.name == "mixed_bfloat16"
    assert again.backbone.embeddings.dtype_policy.name == "mixed_bfloat16"
    assert again.tokenizer is None


# Masks to fill.


def test_fill_mask(tokenizer):
    """Fitted to one sentence with two masks, it says what was there."""
    text = "The fox [MASK] two hens in [MASK]."
    model = new_model("masked_lm", tokenizer)
    x = model.preprocess([text])
    positions = np.flatnonzero(x["token_ids"][0] == MASK_ID)[None]
    answers = [tokenizer.encode("sold")[0], tokenizer.encode("Prague")[0]]
    assert answers[0] != answers[1]
    model.compile(
        keras.optimizers.Adam(0.02),
        WeightedCrossEntropy(),
        **quickest(),
    )
    model.fit(
        {**x, "masked_positions": positions},
        np.array([answers]),
        epochs=20,
        verbose=0,
    )
    (found,) = model.fill_mask([text], top_k=7)
    assert [len(fills) for fills in found] == [7, 7]
    sold, prague = (tokenizer.id_to_piece(each) for each in answers)
    assert found[0][0].piece == sold and found[1][0].piece == prague
    words = [piece.replace("▁", "") for piece in (sold, prague)]
    assert found[0][0].text == f"The fox {words[0]} two hens in [MASK]."
    assert found[1][0].text == f"The fox [MASK] two hens in {words[1]}."
    logits = numpy(model(x))[0]
    for fills, position in zip(found, positions[0], strict=True):
        shown = [fill.probability for fill in fills]
        assert shown == sorted(shown, reverse=True) and sum(shown) <= 1 + 1e-6
        expected = np.sort(softmax(logits[position])[: tokenizer.vocab_size])
        expected = expected[::-1][:7]
        np.testing.assert_allclose(shown, expected, atol=1e-5)


def test_fill_mask_of_several_texts(tokenizer):
    """Each text has its own number of masks, and bytes are texts."""
    model = new_model("masked_lm", tokenizer)
    bias = np.zeros(V, "float32")
    # Ids that the model knows and the vocabulary does not: never shown.
    bias[tokenizer.vocab_size :] = 9.0
    bias[31] = 8.0
    model.masked_lm.output_bias.assign(bias)
    texts = [b"[MASK]", "[MASK][MASK] and [MASK]", "a [MASK]"]
    found = model.fill_mask(np.array(texts, object), top_k=1000)
    assert [len(fills) for fills in found] == [1, 3, 1]
    for fills in (fills for text in found for fills in text):
        assert len(fills) == tokenizer.vocab_size
        assert fills[0].piece == tokenizer.id_to_piece(31)
        assert sum(fill.probability for fill in fills) < 0.5
    again = model.fill_mask(texts, top_k=3)
    assert again[1][2] == found[1][2][:3]


def test_masks_inside_texts(tokenizer):
    model = new_model("masked_lm", tokenizer)

    def ids(*texts):
        x = model.preprocess(texts if len(texts) == 2 else list(texts))
        return x["token_ids"][0][x["padding_mask"][0] == 1].tolist()

    two = tokenizer.encode("two")
    assert ids("[MASK] two") == [CLS_ID, MASK_ID, *two, SEP_ID]
    assert ids("two[MASK]") == [CLS_ID, *two, MASK_ID, SEP_ID]
    # No word mark before the stop that touches the mask.
    assert tokenizer.tokenize(".")[0] == "▁"
    stop = tokenizer.piece_to_id(".")
    assert ids("two [MASK].") == [CLS_ID, *two, MASK_ID, stop, SEP_ID]
    blank = tokenizer.piece_to_id("▁")
    assert ids("[MASK] .") == [CLS_ID, MASK_ID, blank, stop, SEP_ID]
    assert ids(["[MASK]"], ["two [MASK]"]) == [
        *(CLS_ID, MASK_ID, SEP_ID, *two, MASK_ID, SEP_ID)
    ]
    assert ids("[mask]") == [CLS_ID, *tokenizer.encode("[mask]"), SEP_ID]


# Embeddings of texts.


def test_encode_and_similarity(tokenizer, tiny_lines):
    model = new_model("embedding", tokenizer)
    texts = texts_of("texts", tiny_lines)
    vectors = model.encode(texts, batch_size=B)
    assert vectors.shape == (B, H) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    plain = model.encode(texts, normalize=False)
    assert_close(plain, model(texts))
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors * lengths, plain, atol=1e-5)
    same = model.similarity(texts, texts)
    np.testing.assert_allclose(np.diag(same), 1, atol=1e-5)
    np.testing.assert_allclose(same, same.T, atol=1e-5)
    turned = model.similarity(texts, texts[::-1])
    np.testing.assert_allclose(turned, same[:, ::-1], atol=1e-5)
    assert same.min() < 0.999, "texts differ"


# Labels of words.


def test_word_examples(tokenizer):
    model = new_model("tokens", tokenizer)
    words = [["The", "fox", "sold"], ["London"]]
    sizes = [len(tokenizer.encode(word)) for word in words[0]]
    x, y, weights = model.word_examples(words, [[2, 0, 1], [1]])
    assert x["token_ids"].shape == y.shape == weights.shape == (2, 32)
    assert y.dtype == np.int32 and weights.dtype == np.float32
    first = tokenizer.encode("The") + tokenizer.encode("fox")
    first += tokenizer.encode("sold")
    row = [CLS_ID, *first, SEP_ID]
    assert x["token_ids"][0, : len(row)].tolist() == row
    starts = [1, 1 + sizes[0], 1 + sizes[0] + sizes[1]]
    assert np.flatnonzero(weights[0]).tolist() == starts
    assert y[0, starts].tolist() == [2, 0, 1] and y[0].sum() == 3
    assert np.flatnonzero(weights[1]).tolist() == [1]
    assert y[1, 1] == 1 and y[1].sum() == 1
    again, none, same = model.word_examples(words)
    assert not none.any() and (same == weights).all()
    assert (again["token_ids"] == x["token_ids"]).all()


def test_word_examples_are_cut(tokenizer):
    """The words that fit whole are read."""
    model = new_model("tokens", tokenizer)
    words = ["London"] * LONGEST
    size = len(tokenizer.encode("London"))
    x, y, weights = model.word_examples([words], [[2] * LONGEST])
    assert x["token_ids"].shape == (1, LONGEST)
    fit = (LONGEST - 2) // size
    assert fit > 0 and (LONGEST - 2) % size, "the next one would be cut"
    assert x["token_ids"][0, 1 + fit * size] == SEP_ID
    starts = list(range(1, 1 + fit * size, size))
    assert np.flatnonzero(weights[0]).tolist() == starts
    assert np.flatnonzero(y[0]).tolist() == starts
