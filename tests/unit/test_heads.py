"""Every head: shapes, training, raw texts, its file.

The values of vectors and of the answers of SQuAD 2.0 are computed by hand;
`parity/` compares those of the other heads with transformers.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops, tree
from scipy.special import log_softmax, softmax
from small import (
    QUICK,
    TEXT_CONFIG as CONFIG,
    add_noise,
    assert_close,
    marked,
    numpy,
    with_dropout,
)

import keras_albert as ka
from keras_albert.modeling.backbone import padding_mask_of
from keras_albert.text.special_tokens import CLS_ID, MASK_ID, SEP_ID

B, S, C, V, H = 5, 17, 3, CONFIG.vocab_size, CONFIG.hidden_size
LONGEST = CONFIG.max_position_embeddings  # of a row of these texts
K = 5


class Head(NamedTuple):
    """A row of the table of heads."""

    build: Callable
    shapes: Callable  # sequence length -> shapes of the outputs
    needs_pooler: bool = True
    text: str = "texts"  # which of `texts_of` it takes


HEADS = {
    "sop": Head(
        ka.AlbertForPretraining,
        lambda s: {"mlm": (B, s, V), "sop": (B, 2)},
        text="pairs",
    ),
    "masked_lm": Head(
        ka.AlbertForMaskedLM, lambda s: (B, s, V), needs_pooler=False
    ),
    "single_label": Head(
        lambda backbone: ka.AlbertForSequenceClassification(
            backbone, C, dropout=0.0, labels=("a", "b", "c")
        ),
        lambda s: (B, C),
    ),
    "tokens": Head(
        lambda backbone: ka.AlbertForTokenClassification(
            backbone, C, dropout=0.0, labels=["a", "b", "c"]
        ),
        lambda s: (B, s, C),
        needs_pooler=False,
    ),
    "choice": Head(
        lambda backbone: ka.AlbertForMultipleChoice(backbone, dropout=0.0),
        lambda s: (B, C),
        text="choices",
    ),
    "qa": Head(
        ka.AlbertForQuestionAnswering,
        lambda s: {"start": (B, s), "end": (B, s)},
        needs_pooler=False,
        text="questions",
    ),
    "qa_v2": Head(
        lambda backbone: ka.AlbertForQuestionAnsweringV2(backbone, dropout=0.0),
        lambda s: {
            "start_top_log_probs": (B, K),
            "start_top_index": (B, K),
            "end_top_log_probs": (B, K, K),
            "end_top_index": (B, K, K),
            "answer_class": (B, 1),
        },
        needs_pooler=False,
        text="questions",
    ),
    "embedding": Head(
        ka.AlbertForTextEmbedding, lambda s: (B, H), needs_pooler=False
    ),
}


def new_model(name, tokenizer=None, config=CONFIG, **options):
    keras.utils.set_random_seed(3)
    head = HEADS[name]
    options = {"pooler": head.needs_pooler, **options}
    return head.build(ka.AlbertBackbone(config, tokenizer=tokenizer, **options))


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


def test_a_pooler_that_is_not_read_stays(inputs):
    """Weight decay would shrink it, and JAX has gradients of zeros for it."""
    model = add_noise(ka.AlbertForMaskedLM(ka.AlbertBackbone(CONFIG)))
    pooler = model.backbone.pooler
    rest = {id(weight) for weight in model.non_trainable_weights}
    assert len(model.trainable_weights) + len(rest) == len(model.weights)
    assert all(id(weight) in rest for weight in pooler.weights)
    model.compile(ka.Lamb(0.1), loss=ka.WeightedCrossEntropy(), **QUICK)
    before = model.get_weights()
    labels = np.random.default_rng(11).integers(0, V, (B, S))
    model.train_on_batch(inputs, labels)
    for weight, old in zip(model.weights, before, strict=True):
        stays = np.array_equal(numpy(weight), old)
        assert stays == (id(weight) in rest), weight.path
    # As the encoder of another head it is trained again.
    whole = ka.AlbertForSequenceClassification(model.backbone, C)
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


def backbone_values(model, inputs):
    return numpy(model.backbone(inputs)["sequence_output"]).astype("float64")


def test_text_embedding_values(inputs):
    mean = add_noise(new_model("embedding"))
    first = ka.AlbertForTextEmbedding(mean.backbone, pooling="cls")
    x = backbone_values(mean, inputs)
    assert_close(first(inputs), x[:, 0])
    lengths = inputs["padding_mask"].sum(axis=1)
    assert lengths.tolist() == [S, 14, S, S, S]

    def of_words(states, pool):
        rows = zip(states, lengths, strict=True)
        return np.stack([pool(row[:n], axis=0) for row, n in rows])

    expected = of_words(x, np.mean)
    assert_close(mean(inputs), expected)
    largest = ka.AlbertForTextEmbedding(mean.backbone, pooling="max")
    assert_close(largest(inputs), of_words(x, np.max))
    projected = ka.AlbertForTextEmbedding(mean.backbone, projection=3)
    add_noise(projected.projection)
    assert_close(projected(inputs), dense(projected.projection, expected))
    weighted = ka.AlbertForTextEmbedding(mean.backbone, "weighted_layers")
    layers = weighted.backbone(inputs, return_hidden_states=True)
    states = [numpy(each).astype("float64") for each in layers["hidden_states"]]
    weights = np.arange(len(states), dtype="float32")
    weighted.layer_weights.assign(weights)
    blended = np.tensordot(softmax(weights), states, axes=1)
    assert_close(weighted(inputs), of_words(blended, np.mean))
    rare_first = ka.AlbertForTextEmbedding(mean.backbone, "idf")
    assert_close(rare_first(inputs), expected)  # all weigh the same at first
    rarity = np.random.default_rng(3).uniform(
        1, 9, rare_first.config.vocab_size
    )
    rare_first.token_weights.assign(rarity)
    shares = rarity[inputs["token_ids"]] * inputs["padding_mask"]
    shares /= shares.sum(axis=1, keepdims=True)
    rare = np.einsum("bs,bsh->bh", shares, x)
    assert_close(rare_first(inputs), rare)
    both = ka.AlbertForTextEmbedding(mean.backbone, "idf_first_last")
    both.token_weights.assign(rarity)
    read = mean.backbone.embeddings(inputs["token_ids"], inputs["segment_ids"])
    rare_words = np.einsum("bs,bsh->bh", shares, numpy(read))
    assert_close(both(inputs), np.concatenate([rare_words, rare], axis=1))
    # Examples of several texts, here of one.
    several = {name: value[:, None] for name, value in inputs.items()}
    assert_close(mean(several), expected[:, None])
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
    expected_start = np.einsum("bs,bsh->bh", softmax(start, axis=-1), x)
    both = np.concatenate([expected_start, x[:, 0]], axis=-1)
    return dense(model.answer, np.tanh(dense(model.answer_dense, both)))


def top(values):
    index = np.argsort(-values, axis=-1, kind="stable")[..., :K]
    return np.take_along_axis(values, index, axis=-1), index


def test_question_answering_v2_values(inputs):
    """Start, end of the true start, beam of 5 x 5, answer class: by hand."""
    model = add_noise(new_model("qa_v2"))
    x = backbone_values(model, inputs)
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

    start_top, start_index = top(log_softmax(start, axis=-1))
    ends = np.stack(
        [end_values(model, x, start_index[:, k], allowed) for k in range(K)],
        axis=1,
    )
    end_top, end_index = top(log_softmax(ends, axis=-1))
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


def test_question_answering_v2_of_a_short_text(inputs):
    """Fewer positions than the beam; no segments: only [CLS] may answer."""
    backbone = ka.AlbertBackbone(CONFIG, pooler=False)
    model = ka.AlbertForQuestionAnsweringV2(backbone, beam=S + 2)
    outputs = numpy(model({"token_ids": inputs["token_ids"]}))
    assert outputs["end_top_index"].shape == (B, S, S)
    assert not outputs["start_top_index"][:, 0].any()
    assert not outputs["end_top_index"][:, 0, 0].any()
    np.testing.assert_allclose(outputs["start_top_log_probs"][:, 0], 0.0)


def test_question_answering_v2_dropout_is_of_the_answer_alone(inputs):
    model = ka.AlbertForQuestionAnsweringV2(
        ka.AlbertBackbone(CONFIG), dropout=0.5
    )
    given = {**inputs, "start_positions": np.full(B, 7, "int32")}
    still, moved = (numpy(model(given, training=t)) for t in (False, True))
    assert_close(moved["start"], still["start"])
    assert_close(moved["end"], still["end"])
    assert np.abs(moved["answer_class"] - still["answer_class"]).max() > 1e-3


@pytest.mark.any_backend
@pytest.mark.parametrize("name", HEADS)
def test_the_encoder_of_every_head_drops_out_in_training(name, inputs):
    model = new_model(name, config=with_dropout(0.5, CONFIG))
    if name == "choice":
        inputs = {k: np.stack([v] * C, axis=1) for k, v in inputs.items()}
    if name == "qa_v2":
        inputs = {**inputs, "start_positions": np.full(B, 7, "int32")}
    still, moved = (numpy(model(inputs, training=t)) for t in (False, True))
    if not isinstance(still, dict):
        still, moved = {"": still}, {"": moved}
    for output, value in moved.items():
        assert np.abs(value - still[output]).max() > 1e-3, output


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "head",
    [
        functools.partial(ka.AlbertForTokenClassification, num_labels=C),
        ka.AlbertForMultipleChoice,
    ],
)
def test_the_head_drops_out_in_training(head, inputs):
    """Classifiers of texts: test_modeling.py; of questions: above."""
    model = head(ka.AlbertBackbone(CONFIG), dropout=0.5)
    if head is ka.AlbertForMultipleChoice:
        inputs = {k: np.stack([v] * C, axis=1) for k, v in inputs.items()}
    still, moved = (numpy(model(inputs, training=t)) for t in (False, True))
    assert np.abs(moved - still).max() > 1e-3


def test_question_answering_v2_trains_on_starts_only(inputs):
    with pytest.raises(ka.AlbertError, match=r"needs `start_.*Received"):
        new_model("qa_v2")(inputs, training=True)


def test_two_heads_of_one_backbone_in_a_file(inputs, tmp_path):
    """A functional model keeps one encoder, not two."""
    config = CONFIG.replace(max_position_embeddings=128)
    backbone = ka.AlbertBackbone(config)
    symbols = {
        name: keras.Input((None,), dtype="int32", name=name) for name in inputs
    }
    model = keras.Model(
        symbols,
        [
            ka.AlbertForSequenceClassification(backbone, 3)(symbols),
            ka.AlbertForTokenClassification(backbone, 2)(symbols),
        ],
    )
    expected = numpy(model(inputs))
    model.save(tmp_path / "two.keras")
    again = keras.models.load_model(tmp_path / "two.keras")
    assert len(again.weights) == len(model.weights) == len(backbone.weights) + 4
    assert_close(again(inputs), expected)


@pytest.mark.parametrize(
    "dtype", ["mixed_bfloat16", *marked("any_backend", "bfloat16")]
)
@pytest.mark.parametrize("pooling", ["weighted_layers", "idf"])
def test_weighted_means_in_half_precision(inputs, pooling, dtype):
    """The weights stay float32, as the vectors that they are for."""
    backbone = ka.AlbertBackbone(CONFIG, dtype=dtype)
    model = ka.AlbertForTextEmbedding(backbone, pooling, dtype=dtype)
    vectors = model(inputs)
    assert keras.backend.standardize_dtype(vectors.dtype) == "float32"
    states = backbone(inputs, return_hidden_states=True)["hidden_states"]
    states = states[-1:] if pooling == "idf" else states
    mean = sum(numpy(ops.cast(x, "float32")) for x in states) / len(states)
    mask = numpy(padding_mask_of(inputs))[..., None]
    expected = (mean * mask).sum(axis=1) / mask.sum(axis=1)
    np.testing.assert_allclose(numpy(vectors), expected, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        *(several := ["sop", "choice", "qa_v2"]),
        *marked(
            "any_backend", *(name for name in HEADS if name not in several)
        ),
    ],
)
def test_outputs_in_half_precision(name, inputs):
    """The last projection computes in float32, not only its cast."""
    model = add_noise(new_model(name, dtype="mixed_bfloat16"))
    assert keras.backend.standardize_dtype(model.compute_dtype) == "bfloat16"
    if name == "choice":  # [B, C, S] with other words each
        inputs = {k: np.stack([v] * C, axis=1) for k, v in inputs.items()}
        inputs["token_ids"][:, 1:, 9:12] = [[7], [11]]
    outputs = model(inputs)
    shapes = tree.map_structure(lambda x: tuple(x.shape), outputs)
    assert shapes == HEADS[name].shapes(S)
    if not isinstance(outputs, dict):
        outputs = {"": outputs}
    for key, output in outputs.items():
        is_index = key.endswith("index")
        assert keras.backend.standardize_dtype(output.dtype) == (
            "int32" if is_index else "float32"
        )
        if not is_index and name != "embedding":
            rounded = numpy(ops.cast(ops.cast(output, "bfloat16"), "float32"))
            real = np.abs(numpy(output)) < 1e20
            assert (rounded != numpy(output))[real].mean() > 0.3


def test_heads_that_read_the_pooler_ask_for_one():
    bare = ka.AlbertBackbone(CONFIG, pooler=False)
    for name, head in HEADS.items():
        if head.needs_pooler:
            with pytest.raises(ka.AlbertError, match="`pooler=True`"):
                head.build(bare)
        else:
            weights = head.build(bare).weights
            assert not any("pooler" in each.path for each in weights), name


# Raw texts.


@pytest.mark.any_backend
def test_ids_of_texts_are_the_tokenizers(tokenizer, tiny_lines):
    for raw in (texts_of("texts", tiny_lines), ["a", "The fox."]):
        expected = tokenizer(raw, max_length=LONGEST)
        found = new_model("single_label", tokenizer).preprocess(raw)
        length = expected["token_ids"].shape[1]
        for key, value in found.items():
            assert value.shape[1] in (32, LONGEST)
            np.testing.assert_array_equal(value[:, :length], expected[key])
            assert not value[:, length:].any()
    pairs = texts_of("pairs", tiny_lines)
    expected = tokenizer(*pairs, max_length=LONGEST, pad_to=LONGEST)
    questions = dict(zip(("question", "context"), pairs, strict=True))
    for name, raw in (
        ("single_label", pairs),
        ("masked_lm", pairs),
        ("qa", questions),
    ):
        found = new_model(name, tokenizer).preprocess(raw)
        np.testing.assert_equal(found, expected)
    found = new_model("choice", tokenizer).preprocess(
        {"context": ["The fox."], "choices": [["a hen", "a dog"]]}
    )
    expected = tokenizer(["The fox."] * 2, ["a hen", "a dog"], pad_to=512)
    for key, value in found.items():
        assert value.shape == (1, 2, 32)
        np.testing.assert_array_equal(value[0], expected[key][:, :32])


@pytest.mark.any_backend
def test_choices_are_never_cut_off(tokenizer):
    """As in the reference, its end stays; test_race.py fills blanks."""
    model = new_model("choice", tokenizer)
    choices = ["Prague", "two hens"]
    room = LONGEST - 3

    def rows(context, question):
        raw = {"context": [context], "question": [question]}
        x = model.preprocess({**raw, "choices": [choices]})
        pairs = zip(x["token_ids"][0], x["padding_mask"][0], strict=True)
        return [ids[mask == 1].tolist() for ids, mask in pairs]

    def expected(a, b):
        return [CLS_ID, *a, SEP_ID, *b, SEP_ID]

    fox, long = tokenizer.encode("A fox."), "London " * 40
    alone = [expected(fox, tokenizer.encode(choice)) for choice in choices]
    assert rows("A fox.", "") == alone
    context = tokenizer.encode(long)
    both = [tokenizer.encode(f"{long} {choice}") for choice in choices]
    assert rows(long, long) == [
        expected(context[: room // 2], ids[-(room // 2) :]) for ids in both
    ]
    assert rows("A fox.", long) == [
        expected(fox, ids[-(room - len(fox)) :]) for ids in both
    ]


# A list of texts, a dict of texts, outputs of another structure than in
# training. tests/e2e/test_finetune.py trains every task.
@pytest.mark.parametrize(
    "name", ["qa_v2", *marked("any_backend", "single_label", "choice")]
)
def test_fits_texts_and_predicts(name, tokenizer, tiny_lines, inputs):
    """The documented losses, from raw texts to lower values."""
    model = new_model(name)
    model.tokenizer = tokenizer
    from_classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    raw = texts_of(HEADS[name].text, tiny_lines)
    if name == "qa_v2":  # needs the true start, which only ids have
        start = np.array([7, 8, 9, 10, 0], "int32")
        x = {**inputs, "start_positions": start}
        y = {
            "start": start,
            "end": np.array([8, 9, 9, 12, 0], "int32"),
            "answer_class": np.array([0, 0, 0, 0, 1], "float32"),
        }
        answerable = keras.losses.BinaryCrossentropy(from_logits=True)
        loss = {"start": from_classes, "end": from_classes}
        loss["answer_class"] = answerable
        held_out = None
    else:
        x, y = raw, np.random.default_rng(11).integers(0, C, B)
        held_out, loss = (x, y), from_classes
    model.compile(keras.optimizers.Adam(0.001), loss, **QUICK)
    history = model.fit(
        x, y, batch_size=B, epochs=3, validation_data=held_out, verbose=0
    ).history
    assert history["loss"][-1] < history["loss"][0]
    if held_out:
        again = model.evaluate(raw, y, verbose=0, return_dict=True)["loss"]
        np.testing.assert_allclose(again, history["val_loss"][-1], rtol=1e-5)
    outputs = model.predict(raw, verbose=0)
    shapes = tree.map_structure(lambda a: tuple(a.shape), outputs)
    assert shapes == HEADS[name].shapes(LONGEST)
    for same in (raw, model.preprocess(raw)):
        assert_close(outputs, model(same))


LABELLED = {"num_labels": 2, "labels": ("no", "yes"), "dropout": 0.3}


@pytest.mark.parametrize(
    ("head", "settings", "text"),
    [
        (ka.AlbertForPretraining, {"sentence_task": "nsp"}, "pairs"),
        (ka.AlbertForQuestionAnsweringV2, {"beam": 3}, "questions"),
        *marked(
            "any_backend",
            (
                ka.AlbertForSequenceClassification,
                {"problem": "multi_label", **LABELLED},
                "pairs",
            ),
            (ka.AlbertForTokenClassification, LABELLED, "texts"),
            (ka.AlbertForMultipleChoice, {"dropout": 0.3}, "choices"),
            (ka.AlbertForQuestionAnswering, {}, "questions"),
            (ka.AlbertForTextEmbedding, {"pooling": "cls"}, "texts"),
        ),
    ],
)
def test_saved_and_loaded(
    head, settings, text, tokenizer, tiny_lines, tmp_path
):
    pooler = head not in (
        ka.AlbertForQuestionAnswering,
        ka.AlbertForTextEmbedding,
    )
    backbone = ka.AlbertBackbone(
        CONFIG, pooler=pooler, tokenizer=tokenizer, dtype="mixed_bfloat16"
    )
    model = add_noise(head(backbone, **settings))
    model.save(tmp_path / "model.keras")
    again = ka.load_model(tmp_path / "model.keras")
    assert type(again) is head
    for name, expected in settings.items():
        found = getattr(again, name)
        assert getattr(found, "rate", found) == expected
    assert again.config == CONFIG
    assert again.dtype_policy.name == "mixed_bfloat16"
    assert again.backbone.embeddings.dtype_policy.name == "mixed_bfloat16"
    assert again.tokenizer.model_bytes == tokenizer.model_bytes
    assert again.tokenizer.lower_case == tokenizer.lower_case
    assert (again.backbone.pooler is not None) == pooler
    raw = texts_of(text, tiny_lines)
    assert_close(again(raw), model(raw), atol=0, rtol=0)


@pytest.mark.any_backend
def test_fill_mask(tokenizer):
    """The most probable pieces of each mask, and the text with each of them."""
    text = "The fox [MASK] two hens in [MASK]."
    model = add_noise(new_model("masked_lm", tokenizer))
    x = model.preprocess([text])
    logits = numpy(model(x))[0][x["token_ids"][0] == MASK_ID]
    (found,) = model.fill_mask([text], top_k=7)
    assert len(found) == len(logits) == 2
    for fills, row, before, after in (
        (found[0], logits[0], "The fox ", " two hens in [MASK]."),
        (found[1], logits[1], "The fox [MASK] two hens in ", "."),
    ):
        probabilities = softmax(row.astype("float64"))[: tokenizer.vocab_size]
        best = np.argsort(-probabilities)[:7]
        pieces = [tokenizer.id_to_piece(int(i)) for i in best]
        assert [fill.piece for fill in fills] == pieces
        assert_close(
            [fill.probability for fill in fills], list(probabilities[best])
        )
        assert fills[0].text == before + pieces[0].replace("▁", "") + after


def test_fill_mask_of_several_texts(tokenizer, monkeypatch):
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

    def best(filled):
        return [
            [[(fill.piece, fill.text) for fill in fills[:3]] for fills in text]
            for text in filled
        ]

    monkeypatch.setattr("keras_albert.modeling.masked_texts.BATCH_SIZE", 2)
    assert best(model.fill_mask(texts, top_k=3)) == best(found)


@pytest.mark.any_backend
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


def test_encode_and_similarity(tokenizer, tiny_lines):
    model = new_model("embedding", tokenizer)
    texts = texts_of("texts", tiny_lines)
    vectors = model.encode(texts, batch_size=B)
    assert vectors.shape == (B, H) and vectors.dtype == np.float32
    plain = model.encode(texts, normalize=False)
    assert_close(plain, model(texts))
    assert_close(vectors, plain / np.linalg.norm(plain, axis=1, keepdims=True))
    turned = model.similarity(texts, texts[::-1])
    assert_close(turned, vectors @ vectors[::-1].T)
    assert turned.min() < 0.999, "texts differ"


@pytest.mark.any_backend
def test_how_many_labels():
    """As many as there are names; or a number, of NumPy too."""
    backbone = ka.AlbertBackbone(CONFIG)
    count = np.int64(3)
    for head in (
        ka.AlbertForSequenceClassification,
        ka.AlbertForTokenClassification,
    ):
        for settings in ({"labels": np.array([*"abc"])}, {"num_labels": count}):
            model = head(backbone, **settings)
            assert model.num_labels == model.classifier.units == 3
            assert type(model.num_labels) is int


@pytest.mark.any_backend
def test_word_examples(tokenizer):
    model = new_model("tokens", tokenizer)
    words = [["The", "fox", "sold"], ["London"]]
    the, fox, sold = map(tokenizer.encode, words[0])
    x, y, weights = model.word_examples(words, [[2, 0, 1], [1]])
    assert x["token_ids"].shape == y.shape == weights.shape == (2, 32)
    assert y.dtype == np.int32 and weights.dtype == np.float32
    row = [CLS_ID, *the, *fox, *sold, SEP_ID]
    assert x["token_ids"][0, : len(row)].tolist() == row
    starts = [1, 1 + len(the), 1 + len(the) + len(fox)]
    assert np.flatnonzero(weights[0]).tolist() == starts
    assert y[0, starts].tolist() == [2, 0, 1] and y[0].sum() == 3
    assert np.flatnonzero(weights[1]).tolist() == [1]
    assert y[1, 1] == 1 and y[1].sum() == 1
    model.labels = ("O", "B", "I")
    named = model.word_examples(words, [["I", "O", "B"], ["B"]])
    np.testing.assert_array_equal(named[1], y)
    again = model.word_examples(words)
    np.testing.assert_equal(again, (x, 0 * y, weights))


@pytest.mark.any_backend
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


def test_rarity_is_counted_in_what_a_model_reads(tokenizer, tiny_lines):
    """Not in the end of a text, which is cut off."""
    line = next(line for line in tiny_lines if line)
    ids = tokenizer.encode(line)
    model = ka.AlbertForTextEmbedding(
        ka.AlbertBackbone(CONFIG, tokenizer=tokenizer), "idf", max_tokens=4
    )
    model.adapt([line, line])
    weights = numpy(model.token_weights)
    unread = [piece for piece in ids[2:] if piece not in ids[:2]]
    assert unread
    np.testing.assert_allclose(weights[ids[:2]], 1)
    np.testing.assert_allclose(weights[unread], 1 + np.log(3), rtol=1e-6)
