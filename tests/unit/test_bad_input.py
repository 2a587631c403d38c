"""What a public class or function says to a mistake: one table.

Each message names what was received and what to do. Rows that stand with
their own subject (fields of a config file, vocabularies, ids out of range in
each loop, the command line) are in the tests beside it.
"""

import collections
import types

import keras
import numpy as np
import pyarrow
import pytest
from small import EXCHANGED, TEXT_CONFIG as CONFIG

import keras_albert as ka

Classifier = ka.AlbertForSequenceClassification
Words = ka.AlbertForTokenClassification
Choice = ka.AlbertForMultipleChoice
Questions = ka.AlbertForQuestionAnsweringV2
IDS = np.full((2, 7), 5)


@pytest.fixture(scope="module")
def here(tokenizer):
    """A vocabulary, and a model of each kind."""
    backbone = ka.AlbertBackbone(CONFIG, tokenizer=tokenizer)
    classifier = Classifier(backbone, 3)
    classifier.compile("sgd", "mse", run_eagerly=True, jit_compile=False)
    adapted = ka.AlbertBackbone(CONFIG)
    adapted.enable_lora(2)
    return types.SimpleNamespace(
        tokenizer=tokenizer,
        backbone=backbone,
        bare=ka.AlbertBackbone(CONFIG),
        adapted=adapted,
        pretraining=ka.AlbertForPretraining(backbone),
        masked_lm=ka.AlbertForMaskedLM(backbone),
        classifier=classifier,
        tokens=Words(backbone, 3),
        choice=Choice(backbone),
        qa=ka.AlbertForQuestionAnswering(backbone),
        qa_v2=Questions(backbone),
        embedding=ka.AlbertForTextEmbedding(backbone),
        served=ka.Predictor(classifier, labels=("a", "b", "c")),
    )


@pytest.fixture(scope="module")
def files(here, tmp_path_factory):
    """The same with a folder of damaged files."""
    folder = tmp_path_factory.mktemp("bad")
    here.classifier.save(folder / "good.keras")
    good = (folder / "good.keras").read_bytes()
    (folder / "cut.keras").write_bytes(good[: len(good) // 2])
    (folder / "empty.keras").write_bytes(b"")
    (folder / "text.keras").write_text("not a model")
    (folder / "config.json").write_bytes(b'{"hidden_act": "\xff"}')
    (folder / "task.json").write_text("{")
    (folder / "run").mkdir()
    (folder / "run" / "task.json").write_text("{")
    ka.AlbertForMaskedLM(here.bare).save(folder / "no_vocabulary.keras")
    foreign = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    foreign.save(folder / "foreign.keras")
    return types.SimpleNamespace(**vars(here), folder=folder)


def row(message, call):
    return pytest.param(call, message, id=message)


def backbone(**options):
    return lambda h: ka.AlbertBackbone(CONFIG, **options)


def lora(*arguments, **options):
    return lambda h: h.bare.enable_lora(*arguments, **options)


BACKBONES = [
    row("dict of fields.*list", lambda h: ka.AlbertConfig.from_dict([1])),
    row("`pooler` must be True or False.*'no'", backbone(pooler="no")),
    row("from_json.*: str", lambda h: ka.AlbertBackbone("base_v2")),
    row("'unrolled', 'scan'.*loop='while'", backbone(loop="while")),
    row("`remat` must be True or False.*'yes'", backbone(remat="yes")),
    row("Tokenizer.'spiece.model'.*: str", backbone(tokenizer="v.model")),
    row("nizer. must.*: int", lambda h: setattr(h.backbone, "tokenizer", 3)),
    row(
        "160 pieces.*vocab_size=61.*trained with",
        lambda h: ka.AlbertBackbone(EXCHANGED, tokenizer=h.tokenizer),
    ),
    row(
        "Inputs must be a dict .*Received: UserDict",
        lambda h: h.bare(collections.UserDict(token_ids=np.ones((1, 4)))),
    ),
    row("end in .keras.*'model.h5'", lambda h: h.bare.save("model.h5")),
    row("alpha=0", lora(2, alpha=0)),
    row("`rank` must be a positive integer.*rank=0", lora(0)),
    row("`targets` must be a list.*: 3", lora(2, targets=3)),
    row("some of .*'query'.*: .'querry'.", lora(2, targets=("querry",))),
    row(r"`targets` must be.*Received: \[\]", lora(2, targets=())),
    row("enabled already. Load the m", lambda h: h.adapted.enable_lora(3)),
]


def head(kind, *arguments, **options):
    return lambda h: kind(h.backbone, *arguments, **options)


HEADS = [
    *(
        row(
            f"AlbertBackbone.VARIANTS.*Received: {type(value).__name__}",
            lambda h, value=value, build=build: build(value),
        )
        for build, value in (
            (ka.AlbertForMaskedLM, None),
            (ka.AlbertForPretraining, CONFIG),
            (lambda value: Classifier(value, 3), "base_v2"),
            (lambda value: Words(value, 3), 3),
            (Choice, {}),
            (ka.AlbertForQuestionAnswering, []),
            (Questions, ()),
            (ka.AlbertForTextEmbedding, 2.5),
        )
    ),
    row(
        "'sop', 'nsp', None.*sentence_task='order'",
        head(ka.AlbertForPretraining, sentence_task="order"),
    ),
    row("integer of 2 or more.*=1.0", head(Classifier, 1.0)),
    row("integer of 2 or more.*=True", head(Classifier, True)),
    row(r"labels=\[\.\.\.\].*num_labels=None", head(Words)),
    row(
        "integer of 1 or.*num_labels=0",
        head(Classifier, 0, problem="regression"),
    ),
    row("'multi_label'.*'ranking'", head(Classifier, 3, problem="ranking")),
    row("`dropout` must be in.*dropout=1", head(Classifier, 2, 1)),
    row("2 different names .*'b', 'c'", head(Classifier, 2, labels=[*"abc"])),
    row("2 different names.*'ab'", head(Classifier, 2, labels="ab")),
    # A number in `y` would be a place, and in a table a name.
    row(r"have its place.*\(1, 0\)", head(Classifier, 2, labels=(1, 0))),
    row("have its place.*True", head(Classifier, 2, labels=[True, False])),
    row("have its place.*5", head(Words, 2, labels=np.array([4, 5]))),
    row("2 different names.*Received: 2", head(Classifier, 2, labels=2)),
    row(r"integer of 2 or more.*=1\.$", head(Words, 1)),
    row("2 different names.*'a'", head(Words, 2, labels=("a", "a"))),
    row("dropout=-0.1", head(Words, 2, dropout=-0.1)),
    row("dropout='x'", head(Choice, dropout="x")),
    row("`beam` must be a positive.*beam=0", head(Questions, beam=0)),
    row(
        "'mean', 'cls', 'max'.*pooling='last'",
        head(ka.AlbertForTextEmbedding, pooling="last"),
    ),
]


def called(name="classifier", **changes):
    """A model called with good ids but for `changes`."""
    return lambda h: getattr(h, name)({"token_ids": IDS, **changes})


def masked(positions, name="masked_lm"):
    return called(name, masked_positions=positions)


def started(positions):
    return called("qa_v2", start_positions=positions)


def given(method, x, *arguments):
    return lambda h: getattr(h.classifier, method)(x, *arguments)


def zeros(*shape):
    return np.zeros(shape, int)


# Arrays and tensors of the backend.
INPUTS = [
    row("a dict with `token_ids`.*: ndarray", lambda h: h.classifier(IDS)),
    row("dict with `token_ids`.*: NoneType", lambda h: h.classifier(None)),
    row("Received: .'ids'.", lambda h: h.classifier({"ids": IDS})),
    row("also: .'labels'.", called("bare", labels=IDS)),
    row("array.*: list. Make it one .numpy.array", called(token_ids=[[5, 7]])),
    row("NoneType.*leave an optional", called(segment_ids=None)),
    row("`token_ids` must be int.*bool", called("bare", token_ids=IDS > 3)),
    row("`padding_mask` must be integers.*float", called(padding_mask=IDS / 5)),
    row("integers.*float32", called(token_ids=keras.ops.ones((2, 7)))),
    row("`padding_mask` must be from 0 to 1.*: 5", called(padding_mask=IDS)),
    row("`segment_ids` must be from 0 to 1.*: -1", called(segment_ids=IDS - 6)),
    row("to 162.*: 163.*vocabulary", called("bare", token_ids=IDS + 158)),
    row("`token_ids` must be from 0.*: -1", called("bare", token_ids=IDS - 6)),
    row(r".batch, sequence.*\(2, 7, 1\)", called(token_ids=IDS[..., None])),
    row(r"\[batch, choice, sequence\].*\(2, 7\)", called("choice")),
    row(r"at least one token.*\(2, 0\)", called(token_ids=zeros(2, 0))),
    row("=61 tokens.*62 tok.*max_length=61", called(token_ids=zeros(2, 62))),
    row(r"shape of `token_ids`.*\(2, 6\)", called(segment_ids=IDS[:, :6])),
    row(r"`masked_pos.* shape \(2, None\).*\(3, 4\)", masked(zeros(3, 4))),
    row("`masked_pos.* from 0 to 6.*: 7", masked(np.full((2, 3), 7))),
    row(r"`masked_pos.*: \(2,\)", masked(zeros(2), "pretraining")),
    row(r"`start_pos.* the shape \(2,\).*\(2, 1\)", started(zeros(2, 1))),
    row("`start_pos.* from 0 to 6.*: 7", started(np.full(2, 7))),
    # The loops say the same, before Keras has compiled anything.
    row("dict with.*NoneType", given("predict", None)),
    row("integers.*float64", given("evaluate", {"token_ids": IDS / 1}, IDS)),
    row(
        r"\(2, 6\)",
        given("fit", {"token_ids": IDS, "segment_ids": IDS[:, 1:]}, IDS),
    ),
    row(
        "also.*'x'", given("train_on_batch", {"token_ids": IDS, "x": IDS}, IDS)
    ),
    row("Received: 163", given("test_on_batch", {"token_ids": IDS + 158}, IDS)),
    row(": 163", given("predict_on_batch", {"token_ids": IDS + 158})),
    row(
        "Received: 163",
        lambda h: h.classifier.fit(
            {"token_ids": IDS},
            np.zeros((2, 3)),
            validation_data=({"token_ids": IDS + 158}, np.zeros((2, 3))),
        ),
    ),
    # Losses.
    row(
        r"`sample_weight` must.*\(3, 3\).*\(3,\)",
        lambda h: ka.WeightedCrossEntropy()(
            zeros(3, 3), np.zeros((3, 3, 5)), np.ones(3)
        ),
    ),
    row(
        r"`y_true` must have.*\(2,\).*\(2, 3\)",
        lambda h: ka.WeightedCrossEntropy()(zeros(2, 3), np.zeros((2, 5))),
    ),
]


def texts(x, name="classifier"):
    return lambda h: getattr(h, name).preprocess(x)


def predicted(x, name="classifier"):
    return lambda h: getattr(h, name).predict(x)


def fill(x, *arguments):
    return lambda h: h.masked_lm.fill_mask(x, *arguments)


def asked(**changes):
    return texts({"question": ["a"], "context": ["b"], **changes}, "qa")


def chosen(**changes):
    return texts(
        {"context": ["a"], "choices": [["b", "c"]]} | changes, "choice"
    )


def labelled(*arguments):
    return lambda h: h.tokens.word_examples(*arguments)


TEXTS = [
    row(r"list of texts.*'bare'.*\[text\]", predicted("bare")),
    row("Received: an empty list", predicted([])),
    row("one or more texts.*empty list", predicted(np.array([], object))),
    row(r"must have the key `text`.*\['texts'\]", predicted({"texts": ["a"]})),
    row(".'label', 'text'.", predicted({"text": ["a"], "label": ["b"]})),
    row("str or UTF-8 bytes.*None", predicted(["a", None])),
    row("str or UTF-8 bytes.*nan", predicted([float("nan"), "a"])),
    row("str or UTF-8 bytes.*None", predicted(pyarrow.array([None, "a"]))),
    row("Inputs must be a dict.*Arr", predicted(pyarrow.array([None, 1]))),
    row("str or UTF-8 bytes.*tuple", predicted([("a", "b")])),
    row("`pairs` must be a list.*'b'", predicted((["a"], "b"))),
    row("2 texts, 1 pairs", predicted((["a", "c"], ["b"]))),
    row("model.tokenizer = T", lambda h: ka.AlbertForMaskedLM(h.bare)(["a"])),
    row(
        "list of texts.*'bare'",
        lambda h: h.classifier.fit(
            ["a"], np.zeros((1, 3)), validation_data=("bare", np.zeros((1, 3)))
        ),
    ),
    # Masked words.
    row(r"list of texts.*a \[MASK\].*\[text\]", fill("a [MASK]")),
    row("needs .*MASK.*'no mask' .0 masks", fill(["a [MASK]", "no mask"])),
    row("1 masks, 0 of them in reach", fill(["London " * 60 + "[MASK]"])),
    row("`top_k` must be a positive integer.*top_k=0", fill(["[MASK]"], 0)),
    row("str or UTF-8 bytes.*list", fill((["[MASK]"], ["b"]))),
    # Embeddings.
    row(r"'bare'.*\[text\]", lambda h: h.embedding.encode("bare")),
    row("empty list", lambda h: h.embedding.similarity(["a"], [])),
    # Questions.
    row("dict of `question` and `context`.*: list", texts(["a"], "qa")),
    row(r"Received: \['question'\]", texts({"question": ["a"]}, "qa_v2")),
    row("'answer', 'context', 'question'", asked(answer=["a"])),
    row(r"`question` must be a list.*'a'.*\[text\]", asked(question="a")),
    row("equally many.*1 question, 2 context", asked(context=["b", "c"])),
    row("list of one or more.*empty", asked(question=[], context=[])),
    # Choices.
    row("dict of `context`, `choices`.*: list", texts(["a"], "choice")),
    row(r"Received: \['context'\]", texts({"context": ["a"]}, "choice")),
    row(r"'label'\]", chosen(label=[1])),
    row("`context` must be a list.*'a'", chosen(context="a")),
    row("`choices` must be a list.*'b'", chosen(choices=["b"])),
    row("`choices` must be a list.*empty", chosen(choices=[[]])),
    row("a text must be a str.*None", chosen(choices=[["a", None]])),
    row("a text must be a str.*None", chosen(question=[None])),
    row("`choices` must be a list of lists.*None", chosen(choices=None)),
    row("1 context, 2 choices, 1 question", chosen(choices=[["a"], ["b"]])),
    row("1 context, 1 choices, 2 question", chosen(question=["a", "b"])),
    row(
        r"same number of choices.*\[1, 2\]",
        chosen(context=["a", "b"], choices=[["c"], ["d", "e"]]),
    ),
    # Labels of words.
    row("each of them a list of words.*'a text'", labelled(["a text"])),
    row("each of them a list of words.*'bare'", labelled("bare")),
    row("`words` must be a list of one or more.*empty", labelled([[]])),
    row(r"each of them a list of words.*\[\]", labelled([])),
    row(r"a word is empty.*\['a', ' '\]", labelled([["a", " "]])),
    row("2 texts, 1 labels", labelled([["a"], ["b"]], [[0]])),
    row(r"needs a label.*\[0\] for 2 words", labelled([["a", "b"]], [[0]])),
    row("needs a label.*Received: 0", labelled([["a"]], [0])),
    row("from 0 to 2. Received: 3 for 'a'", labelled([["a"]], [[3]])),
    row(r"from 0 to 2. Received: \[1\] for 'a'", labelled([["a"]], [[[1]]])),
    row(
        "from 0 to 1, or one of 'O', 'LOC'. Received: 'PER' for 'a'",
        lambda h: Words(h.backbone, labels=("O", "LOC")).word_examples(
            [["a"]], [["PER"]]
        ),
    ),
    # A predictor.
    row(r"'bare'.*\[text\]", lambda h: h.served.predict("bare")),
    row("give a list of texts.*None", lambda h: h.served.predict(None)),
    row("a set. Give sorted", lambda h: h.served.predict({"a", "b"})),
    row("dict. Give one of", lambda h: h.served.predict({"text": ["a"]})),
    row("batch_size=0", lambda h: h.served.probabilities(["a"], batch_size=0)),
    row("single texts. .*: pairs", lambda h: h.served.predict(["a"], ["b"])),
]


def padded(length):
    return lambda h: h.tokenizer.pad([([2, 7, 3], [0, 0, 0])], length)


TOKENIZERS = [
    row("`length` must be.*longest row, 3.*length=2.*pack", padded(2)),
    row("`length` must be an integer.*length=4.0", padded(4.0)),
    row("max_length='x'", lambda h: h.tokenizer(["a"], max_length="x")),
    row("pad_to='x'", lambda h: h.tokenizer(["a"], max_length=5, pad_to="x")),
    row("str or UTF-8 bytes.*3", lambda h: h.tokenizer.encode(3)),
    row("`path` must be a path.*None", lambda h: ka.Tokenizer(None)),
    row(
        "True or False.*lower_case='no'",
        lambda h: ka.Tokenizer.from_bytes(h.tokenizer.model_bytes, "no"),
    ),
    row("bytes of a .model.*str", lambda h: ka.Tokenizer.from_bytes("x")),
    row("list of texts.*None", lambda h: h.tokenizer(None)),
    row(r"integer in \[0, 160\).*'a'", lambda h: h.tokenizer.decode(["a"])),
    row("integer in .*1.5", lambda h: h.tokenizer.id_to_piece(1.5)),
]


def decay(*arguments):
    return lambda h: ka.WarmupPolynomialDecay(*arguments)


def lamb(**options):
    return lambda h: ka.Lamb(**options)


def fit(labels, **options):
    return lambda h: h.classifier.fit(["a text", "b"], labels, **options)


TRAINING = [
    row("steps=10.5", decay(0.1, 10.5)),
    row("power=-1", decay(0.1, 10, 2, -1)),
    row("`learning_rate` must be a positive number.*=0", decay(0, 10)),
    row("learning_rate=-1", lamb(learning_rate=-1)),
    row("learning_rate=nan", lamb(learning_rate=float("nan"))),
    row("learning_rate='x'", lamb(learning_rate="x")),
    row("beta_1=1.5", lamb(beta_1=1.5)),
    row("epsilon=-1", lamb(epsilon=-1)),
    row("0 or more.*weight_decay=-1", lamb(weight_decay=-1)),
    row("global_clipnorm=-1", lamb(global_clipnorm=-1)),
    row(
        "list of regular expressions .a single string.*'bias'",
        lamb(exclude_from_weight_decay="bias"),
    ),
    row(
        r"list of regular expressions .*\('\(',\)",
        lamb(exclude_from_layer_adaptation=("(",)),
    ),
    row("epsilon=-1", lambda h: ka.WeightedCrossEntropy(epsilon=-1)),
    row(
        r"needs labels. Received: none.*fit\(x, y\)",
        lambda h: h.classifier.fit(["a text"]),
    ),
    row(
        "every label must be a finite number. Received: nan in row 1",
        fit([[0, 1, 0], [1, np.nan, 0]]),
    ),
    row(
        "every sample weight must be a finite number. Received: inf in row 0",
        fit([[0, 1, 0]] * 2, sample_weight=[np.inf, 1.0]),
    ),
]


def file(name, read=ka.load_model):
    return lambda h: read(h.folder / name)


FILES = [
    row(r"none\.keras: no such file", file("none.keras")),
    row(r"cut\.keras: damaged.*another copy", file("cut.keras")),
    row(r"empty\.keras: damaged", file("empty.keras")),
    row("a model of this.*Sequential", file("foreign.keras", ka.load)),
    row("none: no model here.*Expected", file("none", ka.load_pretrained)),
    row(r"\.: no model here", lambda h: ka.load(".")),
    row("no vocabulary", file("no_vocabulary.keras", ka.load_pretrained)),
    row("fig.json: not a JSON", file("config.json", ka.AlbertConfig.from_json)),
    row(r"config\.json: not a JSON file", file("", ka.Predictor.load)),
    row(r"task\.json: not a JSON file", file("run", ka.Predictor.load)),
    row("none: no model here, no such file", file("none", ka.Predictor.load)),
    row("none.index: no", lambda h: ka.load_tf1(h.bare, h.folder / "none")),
    row("path of a .keras file.*3", lambda h: ka.load_model(3)),
    row(
        "keras_albert.load gives. Received: str",
        lambda h: ka.save_huggingface("x", h.folder / "new"),
    ),
    row(
        "keras_albert.load gives. Received: Sequential",
        lambda h: ka.save_keras_hub(keras.Sequential(), h.folder / "new"),
    ),
    row(
        r"text\.keras: .* folder to write to",
        lambda h: h.tokenizer.save(h.folder / "text.keras"),
    ),
]


def check_refused(call, message, given):
    with pytest.raises(ka.AlbertError, match=message) as caught:
        call(given)
    assert "\n" not in str(caught.value), "one line"


@pytest.mark.parametrize(("call", "message"), INPUTS)
def test_inputs_refused(call, message, here):
    check_refused(call, message, here)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("call", "message"), BACKBONES + HEADS + TEXTS + TOKENIZERS + TRAINING
)
def test_refused(call, message, here):
    check_refused(call, message, here)


@pytest.mark.any_backend
@pytest.mark.parametrize(("call", "message"), FILES)
def test_files_refused(call, message, files):
    check_refused(call, message, files)


def test_a_model_works_after_a_mistake(here):
    """Nothing that was refused has left a loop half made."""
    for x in (IDS, [], {"token_ids": [[5]]}, {"token_ids": IDS / 2}):
        with pytest.raises(ka.AlbertError):
            here.classifier.predict(x)
    found = here.classifier.predict({"token_ids": IDS}, verbose=0)
    assert found.shape == (2, 3)


@pytest.mark.any_backend
def test_a_loss_in_a_list(here):
    """It is checked like the loss alone, which Keras takes it for."""
    model = Classifier(here.backbone, 2, labels=("no", "yes"))
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=-1
    )
    model.compile("sgd", [loss], run_eagerly=True, jit_compile=False)
    for labels, weights, message in (
        ([0, 2], None, "whole numbers from 0 to 1 .*Received: 2 in row 1"),
        ([0.5, 1], None, r"whole numbers.*Received: 0\.5 in row 0"),
        ([0, 1], {3: 2.0}, "weight for 3"),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            model.fit(["a text", "b"], labels, class_weight=weights)
    weights = {-1: 0.0, "yes": 2.0}
    model.fit(["a text", "b"], [0, -1], class_weight=weights, verbose=0)


@pytest.mark.any_backend
def test_labels_in_lists(here):
    x, y = ["a text", "another"], [[0, 1, 0], [1, 0, 0]]
    here.classifier.fit(x, y, validation_data=[x, y], verbose=0)
    found = here.classifier.evaluate(x, y, verbose=0)
    assert found == here.classifier.evaluate(x, np.array(y), verbose=0) > 0
