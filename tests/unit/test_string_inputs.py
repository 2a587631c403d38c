"""Texts and labels in every form that `fit` takes: the ids are the same."""

import types
from unittest.mock import Mock

import keras
import numpy as np
import pyarrow
import pytest
from scipy.special import log_softmax
from small import QUICK, TEXT_CONFIG as CONFIG, marked, same_weights

import keras_albert as ka
from keras_albert.errors import AlbertError
from keras_albert.modeling import streams
from keras_albert.modeling.labels import checked_labels
from keras_albert.modeling.streams import (
    _as_named_texts,
    _by_rows,
    batch_of_ids,
    check_read_once,
)

torch = pytest.importorskip("torch")
pytest.importorskip("tensorflow_text")
import tensorflow as tf  # noqa: E402

# 9 texts in batches of 4, 4 and 1; a batch is as long as its longest row: the
# first two make 32 tokens, the last one 61.
TEXTS = ["The fox", "two hens", "", "Élodie £9", "A dog", "near Prague"] + [
    "a letter",
    "nothing in 1923,",
    "My uncle sold the old barn in 1923, near London. " * 3,
]
PAIRS = [*TEXTS[::-1]]
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2]
NAMES = ("neg", "none", "pos")
WEIGHTS = [1.0, 0.0, 2.0, 1.0, 1.0, 0.5, 1.0, 1.0, 3.0]
BATCH = 4
sparse = keras.losses.SparseCategoricalCrossentropy


def quick(model, loss=None):
    rate = keras.optimizers.SGD(1e-6)
    model.compile(rate, loss or sparse(from_logits=True), **QUICK)
    return model


@pytest.fixture(scope="module")
def backbone(tokenizer):
    keras.utils.set_random_seed(3)
    return ka.AlbertBackbone(CONFIG, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def classifier(backbone):
    return quick(
        ka.AlbertForSequenceClassification(
            backbone, 3, labels=NAMES, dropout=0.0
        )
    )


@pytest.fixture(scope="module")
def chooser(backbone):
    return quick(ka.AlbertForMultipleChoice(backbone, dropout=0.0))


class Column:
    """A column of a Hugging Face dataset: a length and items, no more."""

    def __init__(self, values):
        self.values = list(values)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        return self.values[i]


class Series:
    """A column of pandas, whose index need not start at 0."""

    def __init__(self, values, dtype=object):
        self.values = np.array(values, dtype)

    def __getattr__(self, name):  # dtype, shape, tolist
        return getattr(self.values, name)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        raise KeyError(i)

    def __array__(self, dtype=None, copy=None):
        return self.values.astype(dtype or self.values.dtype)


def loader(*columns, **options):
    samples = list(zip(*columns, strict=True))
    return torch.utils.data.DataLoader(samples, BATCH, **options)


def dataset(*columns):
    return tf.data.Dataset.from_tensor_slices(columns).batch(BATCH)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


# The preprocessor.

QUESTIONS = {"question": TEXTS, "context": PAIRS}
CHOICES = {
    "context": TEXTS,
    "question": ["what _ is", "why", "_ or _", ""] + ["who"] * 5,
    "choices": [[a, "b c", b] for a, b in zip(PAIRS, TEXTS, strict=True)],
}


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("classifier", TEXTS),
        ("classifier", (TEXTS, PAIRS)),
        ("chooser", CHOICES),
        ("reader", QUESTIONS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ids_are_those_of_preprocess(name, texts, request, backbone):
    if name == "reader":
        model = ka.AlbertForQuestionAnswering(backbone)
    else:
        model = request.getfixturevalue(name)
    expected = model.preprocess(texts)
    # In one batch, in the graph of a dataset and outside of it.
    (found,) = (
        tf.data.Dataset.from_tensors((texts,))
        .map(model.preprocessor, num_parallel_calls=2)
        .as_numpy_iterator()
    )
    same(found, expected)
    preprocessor = model.preprocessor
    same(preprocessor(texts), expected)
    # A seed clears TensorFlow's cache of kernels, and with it resources.
    keras.utils.set_random_seed(3)
    same(preprocessor(texts), expected)
    # In several batches, of which the last is the longest.
    lengths, start = [], 0
    batches = dataset(texts, LABELS).map(model.preprocessor)
    for ids, labels in batches.as_numpy_iterator():
        rows = slice(start, start + BATCH)
        assert labels.tolist() == LABELS[rows]
        length = ids["token_ids"].shape[-1]
        same(ids, {k: v[rows, ..., :length] for k, v in expected.items()})
        assert not expected["padding_mask"][rows, ..., length:].any()
        lengths.append(length)
        start += BATCH
    assert lengths[-1] == CONFIG.max_position_embeddings == 61
    if texts is TEXTS:
        assert lengths == [32, 32, 61]


@pytest.mark.on_torch
def test_one_length(tokenizer):
    """Cut at 7 tokens, padded to 7; single examples, too."""
    preprocessor = ka.Preprocessor(tokenizer, sequence_length=7)
    expected = tokenizer(TEXTS, max_length=7, pad_to=7)
    mapped = dataset(TEXTS, LABELS, WEIGHTS).map(preprocessor)
    ids, *_ = mapped.element_spec
    assert {tuple(spec.shape) for spec in ids.values()} == {(None, 7)}
    parts = list(mapped.as_numpy_iterator())
    for name, value in expected.items():
        whole = np.concatenate([ids[name] for ids, _, _ in parts])
        np.testing.assert_array_equal(whole, value)
    assert np.concatenate([y for _, y, _ in parts]).tolist() == LABELS
    assert np.concatenate([w for *_, w in parts]).tolist() == WEIGHTS
    single = tf.data.Dataset.from_tensor_slices((TEXTS,)).map(preprocessor)
    (batch,) = single.batch(len(TEXTS)).as_numpy_iterator()
    same(batch, expected)
    for broken in (["a barn\ud800"], np.array(["a barn\ud800"])):
        same(preprocessor(broken), tokenizer(broken, max_length=7, pad_to=7))
    choices = ka.Preprocessor(tokenizer, 7)(CHOICES)
    assert choices["token_ids"].shape == (9, 3, 7)
    config = keras.saving.serialize_keras_object(preprocessor)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == preprocessor.get_config()


@pytest.mark.on_torch
def test_a_saved_model_holds_no_preprocessor(classifier, tmp_path):
    assert classifier.preprocessor is classifier.preprocessor
    classifier.save(tmp_path / "model.keras")
    assert same_weights(ka.load_model(tmp_path / "model.keras"), classifier)
    assert "preprocessor" not in dir(classifier)


# Every form of the same texts gives the same losses and predictions.


def generator():
    for start in range(0, len(TEXTS), BATCH):
        part = slice(start, start + BATCH)
        yield tuple(column[part] for column in (TEXTS, LABELS, WEIGHTS))


def named(labels):
    return [NAMES[label] for label in labels]


FORMS = {
    "tf.data": lambda model: dataset(TEXTS, LABELS, WEIGHTS),
    "tf.data, mapped": lambda model: dataset(TEXTS, LABELS, WEIGHTS).map(
        model.preprocessor, num_parallel_calls=tf.data.AUTOTUNE
    ),
    "tf.data of dicts, named labels": lambda model: dataset(
        {"text": TEXTS}, named(LABELS), WEIGHTS
    ),
    "loader": lambda model: loader(TEXTS, LABELS, WEIGHTS),
    "loader of dicts, named labels": lambda model: loader(
        [{"text": text} for text in TEXTS], named(LABELS), WEIGHTS
    ),
    "generator": lambda model: generator(),
}


@pytest.fixture(scope="module")
def logits(classifier):
    return classifier.predict(TEXTS, verbose=0)


@pytest.fixture(scope="module")
def losses(logits):
    """By hand: each text's weighted cross-entropy."""
    return -log_softmax(logits, axis=-1)[np.arange(9), LABELS] * WEIGHTS


@pytest.mark.parametrize(
    "form",
    [
        *("tf.data, mapped", "loader", "generator"),
        *marked("on_torch", "tf.data", "tf.data of dicts, named labels"),
        *marked("on_torch", "loader of dicts, named labels"),
    ],
)
def test_batches(form, classifier, logits, losses):
    """The mean loss of each batch, and of those the mean by their sizes."""
    found = classifier.evaluate(FORMS[form](classifier), verbose=0)
    assert found == pytest.approx(losses.mean(), rel=1e-4)
    found = classifier.predict(FORMS[form](classifier), verbose=0)
    np.testing.assert_allclose(found, logits, atol=1e-5)


@pytest.mark.parametrize("form", ["tf.data", "loader"])
def test_training(form, classifier, losses):
    """The rate is so low that the loss stays: epochs see every batch."""
    before = classifier.get_weights()
    history = classifier.fit(
        FORMS[form](classifier),
        validation_data=FORMS[form](classifier),
        epochs=2,
        verbose=0,
    ).history
    for found in history["loss"] + history["val_loss"]:
        assert found == pytest.approx(losses.mean(), rel=1e-3)
    pairs = zip(before, classifier.get_weights(), strict=True)
    assert not all(np.array_equal(a, b) for a, b in pairs)
    classifier.set_weights(before)


@pytest.mark.any_backend
@pytest.mark.parametrize("name", ["x", "validation_data"])
def test_a_generator_is_read_once(name, classifier):
    """Keras would go on with its first batches alone."""
    given = {"x": TEXTS, "y": np.zeros(len(TEXTS)), name: generator()}
    if name == "x":
        del given["y"]
    before = classifier.get_weights()
    with pytest.raises(AlbertError, match="can be read once"):
        classifier.fit(**given, epochs=2, verbose=0)
    for a, b in zip(before, classifier.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b, "nothing was trained")


@pytest.mark.any_backend
def test_a_frame_is_no_list_of_texts(tokenizer):
    """Its items are the names of its columns."""
    frame = pytest.importorskip("pandas").DataFrame({"text": TEXTS})
    with pytest.raises(AlbertError, match=r"DataFrame\. Give one of its c"):
        tokenizer(frame)
    assert tokenizer(frame["text"])["token_ids"].shape[0] == len(TEXTS)


@pytest.mark.any_backend
def test_a_stream_of_single_examples(classifier):
    """Otherwise the label would be read as a text."""
    with pytest.raises(AlbertError, match="a stream must give batches"):
        classifier.predict((each for each in [("a fox", "neg")]), verbose=0)


@pytest.mark.any_backend
def test_the_first_text_is_missing(classifier):
    with pytest.raises(AlbertError, match=r"a text must be a str.*None"):
        classifier.predict([None, "a dog"], verbose=0)


@pytest.mark.any_backend
def test_a_tuple_of_two_texts_is_no_pair(classifier):
    expected = classifier.preprocess(list(TEXTS[:2]))
    found = classifier.preprocess(tuple(TEXTS[:2]))
    np.testing.assert_array_equal(found["token_ids"], expected["token_ids"])


@pytest.mark.any_backend
def test_what_reads_a_generator_once():
    """One epoch or validation alone, or parts of it that are counted."""
    once = {"x": generator(), "epochs": 3, "initial_epoch": 2}
    check_read_once(once, None)
    check_read_once({"epochs": 2, "validation_freq": 2}, generator())
    check_read_once({"epochs": 2, "validation_freq": [2]}, generator())
    check_read_once({"epochs": 10**12, "validation_freq": 1}, [])  # at once
    later = {"initial_epoch": 1, "epochs": 2, "validation_freq": [1, 2]}
    check_read_once(later, generator())
    for given, held_out in (
        ({**once, "initial_epoch": 1}, None),
        ({"epochs": 4, "validation_freq": 2}, generator()),
        ({"epochs": 2, "validation_freq": [1, 2]}, generator()),
        # After the second and the fourth epoch.
        ({"initial_epoch": 1, "epochs": 4, "validation_freq": 2}, generator()),
    ):
        with pytest.raises(AlbertError, match="can be read once"):
            check_read_once(given, held_out)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a pipeline of tf.data"
)
def test_several_epochs_of_a_generator(classifier):
    before = classifier.get_weights()
    given = {"validation_data": generator(), "validation_steps": 1}
    with pytest.raises(AlbertError, match="can be read once"):
        classifier.fit(
            generator(), steps_per_epoch=9, epochs=2, **given, verbose=0
        )
    # But two epochs, and two validations, may share one.
    steps = {"steps_per_epoch": 1, "validation_steps": 1}
    given = {"validation_data": generator(), "epochs": 2, "verbose": 0}
    history = classifier.fit(generator(), **steps, **given).history
    assert len(history["val_loss"]) == 2
    assert history["val_loss"][0] != history["val_loss"][1], "other batches"
    classifier.set_weights(before)


def test_weights_after_an_interrupted_batch(classifier, monkeypatch):
    """JAX keeps those of an interrupted step, which are not the new ones."""
    before = classifier.get_weights()
    x = {"token_ids": np.full((2, 4), 7)}
    classifier.predict_on_batch(x)
    with monkeypatch.context() as patch:
        interrupted = Mock(side_effect=KeyboardInterrupt)
        patch.setattr(classifier, "predict_function", interrupted)
        with pytest.raises(KeyboardInterrupt):
            classifier.predict_on_batch(x)
    changed = [weight + 1 for weight in before]
    classifier.set_weights(changed)
    with pytest.raises(AlbertError, match="7"):
        classifier.fit(x, np.array([0, 7]), verbose=0)
    for found, expected in zip(classifier.get_weights(), changed, strict=True):
        np.testing.assert_array_equal(found, expected)
    classifier.set_weights(before)


def test_lists_of_labels_of_a_loader(classifier):
    """As many rows as labels: a transposed batch would have the same shape."""
    backbone = classifier.backbone
    model = ka.AlbertForSequenceClassification(
        backbone, 3, problem="multi_label"
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("sgd", loss, **QUICK)
    labels = [[0, 1, 1], [0, 0, 1], [1, 0, 1]]
    samples = list(zip(TEXTS[:3], labels, strict=True))
    loader = torch.utils.data.DataLoader(samples, 3)
    expected = model.evaluate(TEXTS[:3], np.array(labels), verbose=0)
    assert model.evaluate(loader, verbose=0) == pytest.approx(expected)
    assert _by_rows([("a", "c"), ("b", "d")], ["a", "b"]) == [
        ["a", "b"],
        ["c", "d"],
    ]


def test_two_texts_are_no_pair():
    """Where they are a list, whose elements are not lists of characters."""
    for texts in (["ab", "cd"], ("ab", "cd")):
        assert _as_named_texts(texts) == ["ab", "cd"]
    assert _as_named_texts((("ab",), ("cd",))) == (["ab"], ["cd"])


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (tf.constant(TEXTS), tf.constant(LABELS)),
        (Series(TEXTS), Series(LABELS, "int64")),
        (Column(TEXTS), Series(named(LABELS))),
        (np.array(TEXTS), Column(LABELS)),
        (pyarrow.array(TEXTS), pyarrow.array(named(LABELS))),
        (pyarrow.chunked_array([TEXTS[:1], TEXTS[1:]]), pyarrow.array(LABELS)),
        (np.char.encode(TEXTS, "utf-8"), LABELS),
        ([text.encode() for text in TEXTS], np.array(LABELS)),
        ({"text": Column(TEXTS)}, np.array(named(LABELS))),
        (tuple(TEXTS), torch.tensor(LABELS)),
    ],
    ids=["tensors", "series", "series of names", "columns", "arrow", "chunks"]
    + ["array of bytes", "list of bytes", "dict", "torch"],
)
def test_columns(texts, labels, classifier, losses):
    found = classifier.evaluate(
        texts, labels, sample_weight=Column(WEIGHTS), batch_size=9, verbose=0
    )
    assert found == pytest.approx(losses.mean(), rel=1e-4)


@pytest.mark.on_torch
def test_pairs_and_choices(classifier, chooser):
    pairs = list(zip(TEXTS, PAIRS, strict=True))
    choices = [
        dict(zip(CHOICES, row, strict=True))
        for row in zip(*CHOICES.values(), strict=True)
    ]
    alone = classifier.predict(TEXTS, verbose=0)
    of_pairs = classifier.predict((TEXTS, PAIRS), verbose=0)
    assert not np.allclose(of_pairs, alone, atol=1e-5)
    of_choices = chooser.predict(CHOICES, verbose=0)
    named_pairs = [{"text": a, "pair": b} for a, b in pairs]
    as_bytes = {k: np.char.encode(v, "utf-8") for k, v in CHOICES.items()}
    for model, same, expected in (
        (classifier, (Column(TEXTS), Series(PAIRS)), of_pairs),
        (classifier, dataset((TEXTS, PAIRS), LABELS), of_pairs),
        (classifier, loader(pairs, LABELS), of_pairs),
        (classifier, loader(named_pairs, LABELS), of_pairs),
        (chooser, dataset(CHOICES, LABELS), of_choices),
        (chooser, loader(choices, LABELS), of_choices),
        (chooser, {k: Column(v) for k, v in CHOICES.items()}, of_choices),
        (chooser, as_bytes, of_choices),
    ):
        found = model.predict(same, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.on_torch
def test_a_loader_is_left_as_it_is(classifier, logits):
    """Its own samples come as before; workers tokenize."""
    texts = loader(TEXTS, LABELS, num_workers=1, persistent_workers=True)
    before = next(iter(texts))[0]
    found = classifier.predict(texts, verbose=0)
    assert next(iter(texts))[0] == before
    np.testing.assert_allclose(found, logits, atol=1e-5)


# Labels.

RANGE = r"from 0 to 2 \(num_labels=3\)\. Received: "
BAD = [7, 1, 2, 0, 1, 2, 0, 1, 2]


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (BAD, RANGE + "7 in row 0"),
        ([0.5] + LABELS[1:], RANGE + "0.5 in row 0"),
        (Column(BAD), RANGE + "7"),
        (torch.tensor(BAD), RANGE + "7"),
        (["maybe"] * 9, "one of 'neg', 'none', 'pos'. Received: 'maybe'"),
        (np.array([["pos"]] * 8 + [["po"]]), "Received: 'po'"),
    ],
)
def test_values_that_are_no_label_are_refused(labels, message, classifier):
    for call in (
        lambda: classifier.fit(TEXTS, labels, verbose=0),
        lambda: classifier.evaluate(TEXTS, labels, verbose=0),
        lambda: classifier.train_on_batch(TEXTS, labels),
        lambda: classifier.test_on_batch(TEXTS, labels),
        lambda: classifier.fit(
            TEXTS, LABELS, validation_data=(TEXTS, labels), verbose=0
        ),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            call()


OUT = LABELS[:-1] + [7]
NEGATIVE = [-1] + LABELS[1:]  # in the first batch
UNNAMED = named(LABELS)[:-1] + ["maybe"]


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (
            lambda m: m.fit(dataset(TEXTS, UNNAMED)),
            "one of 'neg'.*Received: maybe",
        ),
        (lambda m: m.fit(batch for batch in [(TEXTS, OUT)]), RANGE + "7"),
        *marked(
            "on_torch",
            (lambda m: m.fit(dataset(m.preprocess(TEXTS), OUT)), RANGE + "7"),
            (
                lambda m: m.fit(loader(TEXTS, UNNAMED, num_workers=1)),
                "one of 'neg'.*Received: 'maybe'",
            ),
            (
                lambda m: m.fit(
                    TEXTS, LABELS, validation_data=dataset(TEXTS, NEGATIVE)
                ),
                RANGE + "-1",
            ),
        ),
    ],
)
def test_bad_labels_in_batches(fit, message, classifier):
    with pytest.raises(ka.AlbertError, match=message) as caught:
        fit(classifier)
    assert "\n" not in str(caught.value)
    # Its weights are still there.
    assert np.isfinite(classifier.predict(TEXTS[:1], verbose=0)).all()


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="graphs of TensorFlow"
)
def test_bad_labels_in_a_compiled_step(backbone):
    model = ka.AlbertForSequenceClassification(backbone, 3)
    model.compile("sgd", sparse(from_logits=True), jit_compile=False)
    for labels, message in (
        (BAD, RANGE + "7"),
        (named(LABELS), r"names for them.*labels="),
    ):
        with pytest.raises(ka.AlbertError, match=message) as caught:
            model.fit(dataset(TEXTS, labels), verbose=0)
        assert "\n" not in str(caught.value)


@pytest.mark.on_torch
def test_labels_of_other_losses(backbone):
    """Only what counts classes is checked; ignored classes are none."""
    classes = ka.AlbertForSequenceClassification(backbone, 3).classes(())
    bad, one_hot = np.array(BAD), np.eye(3)[LABELS]
    for labels, loss in (
        (bad, "mse"),
        (one_hot, keras.losses.CategoricalCrossentropy()),
        (np.array([7, 1]), sparse(ignore_class=7)),
        (np.array([-100, 1]), sparse(ignore_class=-100)),
    ):
        assert checked_labels(labels, classes, loss) is labels
    for loss in (
        "sparse_categorical_crossentropy",
        keras.losses.sparse_categorical_crossentropy,
        sparse(ignore_class=-100),
    ):
        with pytest.raises(ka.AlbertError, match=RANGE + "7 in row 0"):
            checked_labels(bad, classes, loss)


@pytest.mark.on_torch
def test_labels_that_are_named_by_other_numbers(backbone):
    """The text "1" is a name; the number 1 could be a name or a place."""
    model = quick(ka.AlbertForSequenceClassification(backbone, labels=[*"120"]))
    model.evaluate(TEXTS, ["1", "2", "0"] * 3, verbose=0)
    for data in ((TEXTS, LABELS), (dataset(TEXTS, LABELS),)):
        with pytest.raises(ka.AlbertError, match="named '1' has the number 0"):
            model.fit(*data, verbose=0)
    # Of words the names have become places already.
    tokens = quick(ka.AlbertForTokenClassification(backbone, labels=[*"120"]))
    x, y, weights = tokens.word_examples([["a", "b"]], [["2", "1"]])
    assert sorted({*y.ravel()}) == [0, 1]
    tokens.evaluate(x, y, sample_weight=weights, verbose=0)
    tokens.evaluate(dataset(x, y, weights), verbose=0)


@pytest.mark.on_torch
def test_labels_without_names(backbone, chooser):
    several = {"problem": "multi_label", "labels": NAMES}
    for count, options, message in (
        (2, {}, r"'neg'. Number them from 0.*labels=.*num_labels=2"),
        (3, several, "must be numbers. Received: 'neg'"),
    ):
        model = ka.AlbertForSequenceClassification(backbone, count, **options)
        with pytest.raises(ka.AlbertError, match=message):
            quick(model).fit(TEXTS, named(LABELS))
    several = [["neg"], ["none", "pos"]] * 4 + [[]]
    with pytest.raises(ka.AlbertError, match=r"a list with 'neg'\. Make an ar"):
        model.fit(TEXTS, several)
    model = ka.AlbertForSequenceClassification(backbone, 3, labels=NAMES)
    model.compile("sgd", keras.losses.CategoricalCrossentropy())
    for data in ((TEXTS, named(LABELS)), (dataset(TEXTS, named(LABELS)),)):
        with pytest.raises(ka.AlbertError, match="need the loss SparseCat"):
            model.fit(*data, verbose=0)
    message = r"from 0 to 2 \(as many as there are choices\). Received: 7"
    for x, y in ((CHOICES, BAD), (dataset(CHOICES, BAD), None)):
        with pytest.raises(ka.AlbertError, match=message):
            chooser.fit(x, y, verbose=0)


def test_positions_of_answers(backbone):
    model = ka.AlbertForQuestionAnswering(backbone)
    quick(model, {name: sparse(from_logits=True) for name in ("start", "end")})
    x = {name: values[:2] for name, values in QUESTIONS.items()}
    y = {"start": np.array([1, 2]), "end": np.array([1, 99])}
    message = r"to 60 \(the tokens of a row\). Received: 99"
    for batches in (x, tf.data.Dataset.from_tensors((x, y))):
        with pytest.raises(ka.AlbertError, match=message):
            model.fit(batches, y if batches is x else None, verbose=0)


# Mistakes.

BATCHES = dataset(TEXTS, LABELS)


class PyTexts(keras.utils.PyDataset):
    """A loader of Keras of one batch of texts."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return TEXTS, np.array(LABELS)


class EndlessIds(keras.utils.PyDataset):
    """It has no length, as Keras's documentation allows."""

    num_batches = None

    def __getitem__(self, index):
        return {"token_ids": np.full((2, 4), 7)}, np.array([0, 1])


@pytest.mark.on_torch
def test_a_loader_without_an_end(classifier):
    history = classifier.fit(EndlessIds(), steps_per_epoch=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda h: h.model.predict(dataset({"texts": TEXTS}, LABELS)),
            r"key `text`.*Received: \['texts'\]",
        ),
        (
            lambda h: h.model.fit(BATCHES.unbatch()),
            r"batches of texts.*dataset\.batch\(32\)",
        ),
        (
            lambda h: h.model.fit(
                dataset(np.ones((4, 8), "int32"), LABELS[:4])
            ),
            "must be a dict with `token_ids`.*Received: TensorSpec",
        ),
        (lambda h: h.chooser.fit(BATCHES), "multiple choice takes a dict"),
        (lambda h: h.model.fit(PyTexts()), "PyDataset must give ids.*texts"),
        (
            lambda h: h.model({"token_ids": tf.ragged.constant([[2, 3], [2]])}),
            r"rows of one length.*Pad its rows: ids.to_tensor",
        ),
        (lambda h: h.masked.fit(BATCHES), "no preprocessor.*preprocess.texts"),
        (lambda h: h.bare.fit(BATCHES), "Texts need a vocabulary"),
        (
            lambda h: h.embedder.predict(dataset(TEXTS, PAIRS)),
            "must be numbers.*`text` and `pair`",
        ),
        (lambda h: h.model.fit(x for x in ()), "one batch or|least one batch"),
        (lambda h: ka.Preprocessor("spiece.model"), "must be a Tokenizer"),
        (lambda h: ka.Preprocessor(h.tokenizer, 2), "`sequence_length` must"),
        (
            lambda h: ka.Preprocessor(h.tokenizer, fixed_length="no"),
            "`fixed_length` must be True or False",
        ),
        (
            lambda h: ka.Preprocessor(h.tokenizer)({"a": TEXTS}),
            r"texts may be named.*Received: \['a'\]",
        ),
        (
            lambda h: ka.Preprocessor(h.tokenizer)(np.arange(3)),
            "`text` must be strings. Received: int64",
        ),
        (lambda h: h.model.preprocessor("bare"), "single examples.*Make batch"),
        (
            lambda h: h.model.preprocessor(keras.Input((), dtype="string")),
            "cannot take texts.*a KerasTensor",
        ),
    ],
)
def test_refused(call, message, classifier, chooser, backbone, tokenizer):
    here = types.SimpleNamespace(
        model=classifier,
        chooser=chooser,
        tokenizer=tokenizer,
        masked=quick(ka.AlbertForMaskedLM(backbone)),
        bare=quick(
            ka.AlbertForSequenceClassification(ka.AlbertBackbone(CONFIG), 3)
        ),
        embedder=ka.AlbertForTextEmbedding(backbone),
    )
    with pytest.raises(ValueError, match=message) as caught:
        call(here)
    if "at least one batch" not in message:  # of Keras
        assert "\n" not in str(caught.value)


class Ids(keras.utils.PyDataset):
    """Two batches of ids; the second one has the labels and ids to check."""

    def __init__(self, labels=(0, 1), lowest=7):
        super().__init__()
        self.labels, self.lowest = labels, lowest

    def __len__(self):
        return 2

    def __getitem__(self, index):
        lowest, labels = (self.lowest, self.labels) if index else (7, [0, 1])
        return {"token_ids": np.full((2, 4), lowest)}, np.array(labels)


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": [0, 7]}, r"from 0 to 2 .*Received: 7 in row 1"),
        ({"labels": ["neg", "x"]}, "one of 'neg'.*Received: '?x"),
        ({"lowest": -50}, "`token_ids` must be .*from 0 to"),
        ({"lowest": 10_000}, "`token_ids` must be .*from 0 to"),
    ],
)
def test_every_batch_is_checked(classifier, given, message):
    """A compiled step would compute something of them."""
    batches = (each for each in Ids(**given))
    for data in (Ids(**given), batches):
        with pytest.raises(AlbertError, match=message):
            classifier.evaluate(data, verbose=0)


@pytest.mark.on_torch
def test_names_of_labels_of_a_loader_of_keras(classifier):
    named, numbered = Ids(labels=["neg", "pos"]), Ids(labels=[0, 2])
    found = [classifier.evaluate(each, verbose=0) for each in (named, numbered)]
    np.testing.assert_array_equal(*found)
    history = classifier.fit(named, validation_data=named, verbose=0).history
    assert np.isfinite([history["loss"], history["val_loss"]]).all()


@pytest.mark.on_torch
def test_short_texts_of_a_data_loader(classifier):
    """The second text of a batch is no label of the first one."""
    for texts in (["a", "bc"], ["", "bc"]):
        found = classifier.predict(torch.utils.data.DataLoader(texts, 2))
        expected = classifier.predict(texts)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    # A sample that is a batch: of ids, by name.
    ids = classifier.preprocess(texts)
    batches = torch.utils.data.DataLoader([ids], batch_size=None)
    np.testing.assert_allclose(classifier.predict(batches), found, atol=1e-5)


@pytest.mark.on_torch
def test_arguments_by_position(classifier):
    """As in Keras: those of `fit` behind `verbose` are checked, too."""
    x, names = TEXTS[:4], ["neg", "pos"] * 2
    weights = {"neg": 0.0, "none": 1.0, "pos": 1.0}
    held_out = x, names
    given = x, names, 4, 1, 0, None, 0.0, held_out, False, weights
    by_position = classifier.fit(*given).history
    by_name = classifier.fit(
        x, names, verbose=0, validation_data=held_out, class_weight=weights
    ).history
    for name, values in by_name.items():  # a step of SGD is between them
        np.testing.assert_allclose(by_position[name], values, atol=1e-3)
    with pytest.raises(TypeError, match="multiple values"):
        classifier.fit(*given, validation_data=held_out)
    with pytest.raises(AlbertError, match="Received: 4 parts"):
        classifier.fit(x, names, validation_data=(*held_out, None, None))
    loss = classifier.evaluate(x, names, 4, 0, [0, 1.0, 0, 0.0])
    again = classifier.evaluate(x, names, verbose=0, sample_weight=[0, 1, 0, 0])
    np.testing.assert_allclose(loss, again, atol=1e-6)


@pytest.mark.on_torch
def test_any_iterator_is_a_generator(classifier):
    batches = [(TEXTS[:2], [0, 1]), (TEXTS[2:5], [1, 2, 0])]
    found = [
        classifier.evaluate(each, verbose=0)
        for each in (iter(batches), map(tuple, batches), (b for b in batches))
    ]
    np.testing.assert_allclose(found, [found[0]] * 3, atol=1e-6)
    with pytest.raises(AlbertError, match="can be read once"):
        classifier.fit(iter(batches), epochs=2, verbose=0)


@pytest.mark.on_torch
def test_nothing_and_no_label(classifier):
    ids = classifier.preprocess(TEXTS[:2])
    none = {name: each[:0] for name, each in ids.items()}
    for call in (classifier.evaluate, classifier.fit):
        with pytest.raises(AlbertError, match=r"one example or more"):
            call(none, np.zeros(0, "int32"), verbose=0)
        with pytest.raises(AlbertError, match=r"None in row 1\."):
            call(ids, [0, None], verbose=0)


class InProcesses(Ids):
    """Keras sends it to processes, to which the model cannot be sent."""

    use_multiprocessing = True


class WrongInProcesses(InProcesses):
    """Its first label is no class."""

    def __getitem__(self, index):
        return {"token_ids": np.full((1, 4), 7)}, np.array([7])


def test_of_a_dataset_for_processes_the_first_batch_is_checked(classifier):
    data = InProcesses()
    assert streams.checked_py_dataset(data, classifier) is data
    with pytest.raises(AlbertError, match="Received: 7 in row 0"):
        streams.checked_py_dataset(WrongInProcesses(), classifier)


def test_a_checked_dataset_ends_its_epochs(classifier):
    data, ended = Ids(), []
    data.on_epoch_begin = lambda: ended.append("begin")
    data.on_epoch_end = lambda: ended.append("end")
    checked = streams.checked_py_dataset(data, classifier)
    assert streams.checked_py_dataset(checked, classifier) is checked
    checked.on_epoch_begin()
    checked.on_epoch_end()
    assert ended == ["begin", "end"] and checked.num_batches == 2


@pytest.mark.any_backend
def test_vectors_of_fewer_numbers_have_length_1_too(tokenizer):
    backbone = ka.AlbertBackbone(CONFIG, tokenizer=tokenizer)
    for normalize in (True, False):
        model = ka.AlbertForTextEmbedding(backbone, normalize=normalize)
        found = model.encode(["a text", "b"], normalize=False, dimensions=4)
        lengths = np.linalg.norm(found, axis=1)
        assert np.allclose(lengths, 1) == normalize, lengths


@pytest.mark.any_backend
def test_weights_of_a_stream_are_checked(classifier):
    batch = list(TEXTS[:2]), [0, 1], [1.0, np.nan]
    with pytest.raises(AlbertError, match=r"sample weight .*nan in row 1"):
        batch_of_ids(classifier, batch)
