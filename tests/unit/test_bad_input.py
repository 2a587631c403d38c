"""What a public class or function says to a mistake: one table.

Each message names what was received and what to do. Rows that stand with
their own subject (fields of a config file, vocabularies, ids out of range in
each loop, the command line) are in the tests beside it.
"""

import json
import types

import keras
import numpy as np
import pytest
from small import TEXT_CONFIG as CONFIG

import keras_albert as ka
from keras_albert.data.config import TableColumns
from keras_albert.errors import AlbertError
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.modeling.question_answering import (
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.text.tokenizer import Tokenizer

IDS = np.full((2, 7), 5)


@pytest.fixture(scope="module")
def here(tiny_vocab, tmp_path_factory):
    """A vocabulary, a model of each kind, and damaged files."""
    folder = tmp_path_factory.mktemp("bad")
    tokenizer = Tokenizer(tiny_vocab)
    backbone = ka.AlbertBackbone(CONFIG, tokenizer=tokenizer)
    models = {
        "pretraining": AlbertForPretraining(backbone),
        "masked_lm": AlbertForMaskedLM(backbone),
        "classifier": AlbertForSequenceClassification(backbone, 3),
        "tokens": AlbertForTokenClassification(backbone, 3),
        "choice": AlbertForMultipleChoice(backbone),
        "qa": AlbertForQuestionAnswering(backbone),
        "qa_v2": AlbertForQuestionAnsweringV2(backbone),
        "embedding": AlbertForTextEmbedding(backbone),
    }
    models["classifier"].compile("sgd", "mse")
    models["classifier"].save(folder / "good.keras")
    good = (folder / "good.keras").read_bytes()
    (folder / "cut.keras").write_bytes(good[: len(good) // 2])
    (folder / "empty.keras").write_bytes(b"")
    (folder / "text.keras").write_text("not a model")
    (folder / "config.json").write_bytes(b'{"hidden_act": "\xff"}')
    (folder / "task.json").write_text("{")
    (folder / "run").mkdir()
    (folder / "run" / "task.json").write_text("{")
    (folder / "other").mkdir()
    (folder / "other" / "notes.txt").write_text("not a model")
    bare = AlbertForMaskedLM(ka.AlbertBackbone(CONFIG))
    bare.save(folder / "no_vocabulary.keras")
    foreign = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    foreign.save(folder / "foreign.keras")
    return types.SimpleNamespace(
        folder=folder,
        tokenizer=tokenizer,
        backbone=backbone,
        served=ka.Predictor(
            models["classifier"],
            "classification",
            ("a", "b", "c"),
            tokenizer,
            (32, 61),
            TableColumns(),
        ),
        **models,
    )


def row(message, call):
    return pytest.param(call, message, id=message)


def config(**changes):
    return lambda h: CONFIG.replace(**changes)


CONFIGS = [
    row("sharing='some'", config(sharing="some")),
    row(
        r"'all', 'attention', 'ffn', 'none'.*\['all'\]",
        config(sharing=["all"]),
    ),
    row("integer, 0 .off. or more.*relaxed_rank=-1", config(relaxed_rank=-1)),
    row("relaxed_rank=True", config(relaxed_rank=True)),
    row("relaxed_rank=2.0", config(relaxed_rank=2.0)),
    row(
        "Set relaxed_rank=0, or share a half",
        config(relaxed_rank=2, sharing="none"),
    ),
    row("True or False.*project_equal_sizes=1", config(project_equal_sizes=1)),
    row("hidden_act=None", config(hidden_act=None)),
    row("vocab_size='x'", config(vocab_size="x")),
    row("hidden_dropout_prob='x'", config(hidden_dropout_prob="x")),
    row("initializer_range=inf", config(initializer_range=float("inf"))),
    row("`hiden_size`. Did you mean `hidden_size`", config(hiden_size=3)),
    row("dict of fields.*list", lambda h: AlbertConfig.from_dict([1])),
    row(
        r"config\.json: not a JSON file",
        lambda h: AlbertConfig.from_json(h.folder / "config.json"),
    ),
]


def backbone(**options):
    return lambda h: ka.AlbertBackbone(CONFIG, **options)


def lora(*arguments, **options):
    return lambda h: ka.AlbertBackbone(CONFIG).enable_lora(
        *arguments, **options
    )


def set_tokenizer(h):
    ka.AlbertBackbone(CONFIG).tokenizer = 3


def lora_twice(h):
    model = ka.AlbertBackbone(CONFIG)
    model.enable_lora(2)
    model.enable_lora(3)


BACKBONES = [
    row("`pooler` must be True or False.*'no'", backbone(pooler="no")),
    row("alpha=0", lora(2, alpha=0)),
    row("`targets` must be a list.*: 3", lora(2, targets=3)),
    row(
        "AlbertConfig.from_json.*Received: str",
        lambda h: ka.AlbertBackbone("base_v2"),
    ),
    row("'unrolled', 'scan'.*loop='while'", backbone(loop="while")),
    row(r"loop=\['scan'\]", backbone(loop=["scan"])),
    row("`remat` must be True or False.*'yes'", backbone(remat="yes")),
    row(
        "Tokenizer.'spiece.model'.*Received: str", backbone(tokenizer="v.model")
    ),
    row("`tokenizer` must be.*Received: int", set_tokenizer),
    row(
        "160 pieces.*vocab_size=150.*trained with",
        lambda h: ka.AlbertBackbone(
            CONFIG.replace(vocab_size=150), tokenizer=h.tokenizer
        ),
    ),
    row("`rank` must be a positive integer.*rank=0", lora(0)),
    row("rank=2.0", lora(2.0)),
    row(
        r"some of .*'query'.*Received: \['querry'\]",
        lora(2, targets=("querry",)),
    ),
    row(r"`targets` must be.*Received: \[\]", lora(2, targets=())),
    row("enabled already. Load the model again", lora_twice),
]


def head(kind, *arguments, **options):
    return lambda h: kind(h.backbone, *arguments, **options)


def without_backbone(kind, value, *arguments):
    return lambda h: kind(value, *arguments)


HEADS = [
    *(
        row(
            f"AlbertBackbone.VARIANTS.*Received: {type(value).__name__}",
            without_backbone(kind, value, *arguments),
        )
        for kind, value, arguments in (
            (AlbertForMaskedLM, None, ()),
            (AlbertForSequenceClassification, "base_v2", (3,)),
            (AlbertForTokenClassification, 3, (3,)),
            (AlbertForMultipleChoice, {}, ()),
            (AlbertForQuestionAnswering, [], ()),
            (AlbertForQuestionAnsweringV2, (), ()),
            (AlbertForTextEmbedding, 2.5, ()),
        )
    ),
    row(
        "'sop', 'nsp', None.*sentence_task='order'",
        head(AlbertForPretraining, sentence_task="order"),
    ),
    row(
        "integer of 2 or more.*: 1.0",
        head(AlbertForSequenceClassification, 1.0),
    ),
    row(
        "integer of 2 or more.*: True",
        head(AlbertForSequenceClassification, True),
    ),
    row(
        "integer of 1 or more.*: 0",
        head(AlbertForSequenceClassification, 0, problem="regression"),
    ),
    row(
        "'single_label', 'multi_label'.*problem='ranking'",
        head(AlbertForSequenceClassification, 3, problem="ranking"),
    ),
    row(
        "`dropout` must be in.*dropout=1",
        head(AlbertForSequenceClassification, 2, 1),
    ),
    row(
        r"2 different names .num_labels=2.*\('a', 'b', 'c'\)",
        head(AlbertForSequenceClassification, 2, labels=("a", "b", "c")),
    ),
    row(
        r"2 different names.*\('a', 'a', 'b'\)",
        head(AlbertForSequenceClassification, 2, labels=("a", "a", "b")),
    ),
    row(
        "2 different names.*'ab'",
        head(AlbertForSequenceClassification, 2, labels="ab"),
    ),
    row(
        "2 different names.*Received: 2",
        head(AlbertForSequenceClassification, 2, labels=2),
    ),
    row(r"integer of 2 or more.*: 1\.$", head(AlbertForTokenClassification, 1)),
    row(
        r"2 different names.*\('a', 'a'\)",
        head(AlbertForTokenClassification, 2, labels=("a", "a")),
    ),
    row("dropout=-0.1", head(AlbertForTokenClassification, 2, dropout=-0.1)),
    row("dropout='x'", head(AlbertForMultipleChoice, dropout="x")),
    row(
        "`beam` must be a positive.*beam=0",
        head(AlbertForQuestionAnsweringV2, beam=0),
    ),
    row("dropout=1.0", head(AlbertForQuestionAnsweringV2, dropout=1.0)),
    row(
        "'mean', 'cls'.*pooling='max'",
        head(AlbertForTextEmbedding, pooling="max"),
    ),
]


def called(name="classifier", **changes):
    """A model called with good ids but for `changes`; None takes one away."""
    inputs = {"token_ids": IDS, **changes}
    return lambda h: getattr(h, name)(inputs)


def given(method, x, *arguments):
    return lambda h: getattr(h.classifier, method)(x, *arguments)


INPUTS = [
    row("a dict with `token_ids`.*: ndarray", lambda h: h.classifier(IDS)),
    row("dict with `token_ids`.*: list", lambda h: h.classifier([IDS, IDS])),
    row("dict with `token_ids`.*: NoneType", lambda h: h.classifier(None)),
    row(r"Received: \['ids'\]", lambda h: h.classifier({"ids": IDS})),
    row(r"also: \['labels'\]", called(labels=IDS)),
    row(
        "`token_ids` must be an array.*: list. Make it one .numpy.array",
        called(token_ids=[[5, 7]]),
    ),
    row(
        "`segment_ids` must be an array.*NoneType.*leave an optional",
        called(segment_ids=None),
    ),
    row(
        "`token_ids` must be integers.*float32",
        called(token_ids=IDS.astype("float32")),
    ),
    row("`token_ids` must be integers.*bool", called(token_ids=IDS > 3)),
    row("`segment_ids` must be integers.*bool", called(segment_ids=IDS < 3)),
    row("`padding_mask` must be integers.*float", called(padding_mask=IDS / 5)),
    row(
        "`token_ids` must be integers.*float32",
        lambda h: h.classifier({"token_ids": keras.ops.ones((2, 7))}),
    ),
    row("`padding_mask` must be from 0 to 1.*: 5", called(padding_mask=IDS)),
    row("`segment_ids` must be from 0 to 1.*: -1", called(segment_ids=IDS - 6)),
    row(
        "0 to 162 .vocab_size=163.*: 163.*vocabulary",
        called(token_ids=IDS + 158),
    ),
    row(
        r"axes \[batch, sequence\].*\(2, 7, 1\)",
        called(token_ids=IDS[..., None]),
    ),
    row(r"\[batch, choice, sequence\].*\(2, 7\)", called("choice")),
    row(
        r"at least one token.*\(2, 0\)",
        called(token_ids=np.zeros((2, 0), int)),
    ),
    row(
        "=61 tokens.*62 tokens.*max_length=61",
        called(token_ids=np.full((2, 62), 5)),
    ),
    row(
        r"`segment_ids` must have the shape of `token_ids`, \(2, 7\).*\(2, 6\)",
        called(segment_ids=IDS[:, :6]),
    ),
    row(r"`padding_mask`.*\(2, 7\).*: \(7,\)", called(padding_mask=IDS[0])),
    row(
        r"`masked_positions` must have the shape \(2, None\).*\(3, 4\)",
        called("masked_lm", masked_positions=np.zeros((3, 4), int)),
    ),
    row(
        r"`masked_positions`.*Received: \(2,\)",
        called("pretraining", masked_positions=np.zeros(2, int)),
    ),
    row(
        "`masked_positions` must be integers",
        called("masked_lm", masked_positions=np.zeros((2, 4))),
    ),
    row(
        r"`start_positions` must have the shape \(2,\).*\(2, 1\)",
        called("qa_v2", start_positions=np.zeros((2, 1), int)),
    ),
    row(
        "`start_positions` must be from 0 to 6.*: 7",
        called("qa_v2", start_positions=np.full(2, 7)),
    ),
    # The loops say the same, before Keras has compiled anything.
    row("dict with.*ndarray", given("predict", IDS)),
    row("dict with.*NoneType", given("predict", None)),
    row("must be an array.*list", given("predict", {"token_ids": [[5]]})),
    row("62 tokens", given("predict", {"token_ids": np.full((2, 62), 5)})),
    row("integers.*float64", given("evaluate", {"token_ids": IDS / 1}, IDS)),
    row(
        r"\(2, 6\)",
        given("fit", {"token_ids": IDS, "segment_ids": IDS[:, 1:]}, IDS),
    ),
    row(
        "also.*'x'", given("train_on_batch", {"token_ids": IDS, "x": IDS}, IDS)
    ),
    row(
        "Received: 163",
        lambda h: h.classifier.fit(
            {"token_ids": IDS},
            np.zeros((2, 3)),
            validation_data=({"token_ids": IDS + 158}, np.zeros((2, 3))),
        ),
    ),
]


def texts(x, name="classifier"):
    return lambda h: getattr(h, name).preprocess(x)


def predicted(x, name="classifier"):
    return lambda h: getattr(h, name).predict(x)


def fill(x, *arguments):
    return lambda h: h.masked_lm.fill_mask(x, *arguments)


def labelled(*arguments):
    return lambda h: h.tokens.word_examples(*arguments)


CHOICES = {"context": ["a"], "choices": [["b", "c"]]}

TEXTS = [
    row(r"list of texts.*'bare'.*\[text\]", predicted("bare")),
    row("list of texts.*b'bare'", predicted(b"bare")),
    row("Received: an empty list", predicted([])),
    row("one or more texts.*empty list", predicted(np.array([], object))),
    row(r"must have the key `text`.*\['texts'\]", predicted({"texts": ["a"]})),
    row(r"\['label', 'text'\]", predicted({"text": ["a"], "label": ["b"]})),
    row(r"str or UTF-8 bytes.*None", predicted(["a", None])),
    row("str or UTF-8 bytes.*3", predicted(["a", 3])),
    row("str or UTF-8 bytes.*tuple", predicted([("a", "b")])),
    row("`pairs` must be a list.*'b'", predicted((["a"], "b"))),
    row("2 texts, 1 pairs", predicted((["a", "c"], ["b"]))),
    row("2 texts, 1 pairs", predicted((["a", "c"], ["b"]), "masked_lm")),
    row(r"'bare'.*\[text\]", predicted("bare", "masked_lm")),
    row("Received: an empty list", predicted([], "masked_lm")),
    row(
        "model.tokenizer = Tokenizer",
        lambda h: AlbertForMaskedLM(ka.AlbertBackbone(CONFIG))(["a"]),
    ),
    row(
        "list of texts.*'bare'",
        lambda h: h.classifier.fit(
            ["a"], np.zeros((1, 3)), validation_data=("bare", np.zeros((1, 3)))
        ),
    ),
    # Masked words.
    row(r"list of texts.*a \[MASK\].*\[text\]", fill("a [MASK]")),
    row(
        r"needs \"\[MASK\]\".*'no mask' .0 masks", fill(["a [MASK]", "no mask"])
    ),
    row("1 masks, 0 of them in reach", fill(["London " * 60 + "[MASK]"])),
    row("`top_k` must be a positive integer.*top_k=0", fill(["[MASK]"], 0)),
    row("str or UTF-8 bytes.*list", fill((["[MASK]"], ["b"]))),
    row("Received: an empty list", fill([])),
    # Embeddings.
    row(r"'bare'.*\[text\]", lambda h: h.embedding.encode("bare")),
    row("empty list", lambda h: h.embedding.similarity(["a"], [])),
    # Questions.
    row("dict of `question` and `context`.*: list", texts(["a"], "qa")),
    row(r"Received: \['question'\]", texts({"question": ["a"]}, "qa_v2")),
    row(
        r"Received: \['answer', 'context', 'question'\]",
        texts({"question": ["a"], "context": ["a"], "answer": ["a"]}, "qa"),
    ),
    row(
        r"`question` must be a list.*'a'.*\[text\]",
        texts({"question": "a", "context": ["b"]}, "qa"),
    ),
    row(
        "`question` and `context` must be equally many.*1 question, 2 context",
        texts({"question": ["a"], "context": ["b", "c"]}, "qa"),
    ),
    row(
        "`question` must be a list of one or more.*empty",
        texts({"question": [], "context": []}, "qa"),
    ),
    # Choices.
    row("dict of `context`, `choices`.*: list", texts(["a"], "choice")),
    row(r"Received: \['context'\]", texts({"context": ["a"]}, "choice")),
    row(r"'label'\]", texts({**CHOICES, "label": [1]}, "choice")),
    row(
        "`context` must be a list.*'a'",
        texts({**CHOICES, "context": "a"}, "choice"),
    ),
    row(
        "`choices` must be a list.*'b'",
        texts({**CHOICES, "choices": ["b"]}, "choice"),
    ),
    row(
        "`choices` must be a list.*empty",
        texts({**CHOICES, "choices": [[]]}, "choice"),
    ),
    row(
        "`choices` must be a list of lists.*None",
        texts({**CHOICES, "choices": None}, "choice"),
    ),
    row(
        "1 context, 2 choices, 1 question",
        texts({**CHOICES, "choices": [["a"], ["b"]]}, "choice"),
    ),
    row(
        "1 context, 1 choices, 2 question",
        texts({**CHOICES, "question": ["a", "b"]}, "choice"),
    ),
    row(
        r"same number of choices.*\[1, 2\]",
        texts(
            {"context": ["a", "b"], "choices": [["c"], ["d", "e"]]}, "choice"
        ),
    ),
    # Labels of words.
    row("each of them a list of words.*'a text'", labelled(["a text"])),
    row("each of them a list of words.*'bare'", labelled("bare")),
    row("`words` must be a list of one or more.*empty", labelled([[]])),
    row(r"each of them a list of words.*\[\]", labelled([])),
    row("str or UTF-8 bytes.*7", labelled([["a", 7]])),
    row("2 texts, 1 labels", labelled([["a"], ["b"]], [[0]])),
    row(r"needs a label.*\[0\] for 2 words", labelled([["a", "b"]], [[0]])),
    row("needs a label.*Received: 0", labelled([["a"]], [0])),
    row("from 0 to 2.*Received: 3 for 'a'", labelled([["a"]], [[3]])),
    row("from 0 to 2.*Received: -1", labelled([["a"]], [[-1]])),
    row("integer from 0 to 2.*'B-LOC'", labelled([["a"]], [["B-LOC"]])),
    row("integer from 0 to 2.*1.5", labelled([["a"]], [[1.5]])),
]


def padded(length):
    return lambda h: h.tokenizer.pad([([2, 7, 3], [0, 0, 0])], length)


TOKENIZERS = [
    row("`length` must be.*longest row, 3.*length=2.*pack", padded(2)),
    row("`length` must be an integer.*length=4.0", padded(4.0)),
    row(
        "max_length='x'",
        lambda h: h.tokenizer(["a"], max_length="x"),
    ),
    row("str or UTF-8 bytes.*3", lambda h: h.tokenizer.encode(3)),
    row("`path` must be a path.*None", lambda h: Tokenizer(None)),
    row(
        "True, False.*lower_case='no'",
        lambda h: Tokenizer.from_bytes(h.tokenizer.model_bytes, "no"),
    ),
    row("bytes of a .model.*str", lambda h: Tokenizer.from_bytes("x")),
    row("list of texts.*None", lambda h: h.tokenizer(None)),
    row("list of texts.*'text'", lambda h: h.tokenizer({"text": 1})),
    row("pad_to='x'", lambda h: h.tokenizer(["a"], max_length=5, pad_to="x")),
    row(r"integer in \[0, 160\).*'a'", lambda h: h.tokenizer.decode(["a"])),
    row("integer in .*1.5", lambda h: h.tokenizer.id_to_piece(1.5)),
    row(
        r"text\.keras: .* folder to write to",
        lambda h: h.tokenizer.save(h.folder / "text.keras"),
    ),
]


def file(name, read=None):
    return lambda h: (read or ka.load_model)(h.folder / name)


FILES = [
    row(r"none\.keras: no such file", file("none.keras")),
    row(r"cut\.keras: damaged.*another copy", file("cut.keras")),
    row(r"empty\.keras: damaged", file("empty.keras")),
    row(r"text\.keras: damaged", file("text.keras")),
    row(
        r"foreign\.keras: expected a model of this.*Sequential",
        file("foreign.keras", ka.load),
    ),
    row(r"cut\.keras: damaged", file("cut.keras", ka.load_pretrained)),
    row(r"none: no model here.*Expected", file("none", ka.load_pretrained)),
    row(
        "folder holds notes.txt.*Expected a folder written",
        file("other", ka.load_pretrained),
    ),
    row("no vocabulary. Put", file("no_vocabulary.keras", ka.load_pretrained)),
    row("tanh, erf.*'relu'", lambda h: ka.load(h.folder, gelu="relu")),
    row(r"config\.json: not a JSON file", file("", ka.Predictor.load)),
    row(r"task\.json: not a JSON file", file("run", ka.Predictor.load)),
    row(r"none: no model here, no such file", file("none", ka.Predictor.load)),
    row(
        r"none\.index: no such file",
        lambda h: ka.load_tf1(h.backbone, h.folder / "none"),
    ),
    row(r"'bare'.*\[text\]", lambda h: h.served.predict("bare")),
    row("path of a .keras file.*3", lambda h: ka.load_model(3)),
    row(
        "keras_albert.load gives. Received: str",
        lambda h: ka.save_huggingface("x", h.folder / "new"),
    ),
    row(
        "keras_albert.load gives. Received: Sequential",
        lambda h: ka.save_keras_hub(keras.Sequential(), h.folder / "new"),
    ),
    row("list of texts.*'a'", lambda h: h.served.predict({"a": 1})),
    row("batch_size=0", lambda h: h.served.probabilities(["a"], batch_size=0)),
    row("str or UTF-8 bytes.*None", lambda h: h.served.predict([None])),
    row(
        "takes single texts. Received: pairs",
        lambda h: h.served.predict(["a"], ["b"]),
    ),
]

TRAINING = [
    row("steps=10.5", lambda h: ka.WarmupPolynomialDecay(0.1, 10.5)),
    row("steps='x'", lambda h: ka.WarmupPolynomialDecay(0.1, "x")),
    row("power=-1", lambda h: ka.WarmupPolynomialDecay(0.1, 10, 2, -1)),
    *(
        row(message, lambda h, options=options: ka.Lamb(**options))
        for message, options in (
            ("learning_rate=-1", {"learning_rate": -1}),
            ("learning_rate=nan", {"learning_rate": float("nan")}),
            ("learning_rate='x'", {"learning_rate": "x"}),
            ("beta_1=1.5", {"beta_1": 1.5}),
            ("beta_2='a'", {"beta_2": "a"}),
            ("epsilon=-1", {"epsilon": -1}),
            ("0 .none. or more.*weight_decay=-1", {"weight_decay": -1}),
            ("global_clipnorm=-1", {"global_clipnorm": -1}),
            (
                "list of regular expressions .a single string.*'bias'",
                {"exclude_from_weight_decay": "bias"},
            ),
            (
                r"list of regular expressions .*\('\(',\)",
                {"exclude_from_layer_adaptation": ("(",)},
            ),
        )
    ),
    row("epsilon=-1", lambda h: ka.WeightedCrossEntropy(epsilon=-1)),
    row(
        r"`sample_weight` must.*\(3, 3\).*\(3,\)",
        lambda h: ka.WeightedCrossEntropy()(
            np.zeros((3, 3), int), np.zeros((3, 3, 5)), np.ones(3)
        ),
    ),
    row(
        r"`y_true` must have.*\(2,\).*\(2, 3\)",
        lambda h: ka.WeightedCrossEntropy()(
            np.zeros((2, 3), int), np.zeros((2, 5))
        ),
    ),
    row(
        "`learning_rate` must be a positive number.*=0",
        lambda h: ka.WarmupPolynomialDecay(0, 10),
    ),
    row(
        "warmup_steps=-1, steps=10",
        lambda h: ka.WarmupPolynomialDecay(0.1, 10, -1),
    ),
]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(CONFIGS + BACKBONES + HEADS + INPUTS + TEXTS),
        *(TOKENIZERS + FILES + TRAINING),
    ],
)
def test_refused(call, message, here):
    with pytest.raises(AlbertError, match=message) as caught:
        call(here)
    assert "\n" not in str(caught.value), "one line"


def test_a_model_works_after_a_mistake(here):
    """Nothing that was refused has left a loop half made."""
    for x in (IDS, [], {"token_ids": [[5]]}, {"token_ids": IDS / 2}):
        with pytest.raises(AlbertError):
            here.classifier.predict(x)
    assert here.classifier.predict({"token_ids": IDS}, verbose=0).shape == (
        2,
        3,
    )


def test_unknown_arguments_are_named(here):
    """The message has the class and the argument."""
    with pytest.raises(TypeError, match="hiden_size"):
        AlbertConfig(hiden_size=3)
    with pytest.raises(TypeError, match=r"AlbertBackbone.*poler.*`pooler`"):
        ka.AlbertBackbone(CONFIG, poler=False)
    with pytest.raises(TypeError, match=r"AlbertForMaskedLM.*labels"):
        AlbertForMaskedLM(here.backbone, labels=3)
    with pytest.raises(ValueError, match=r"not recognized.*rate"):
        ka.Lamb(rate=0.1)


def test_settings_file_of_another_package(tmp_path):
    (tmp_path / "task.json").write_text(json.dumps({"task": "translation"}))
    with pytest.raises(AlbertError, match=r"task\.json: not what .*another"):
        ka.Predictor.load(tmp_path)


def test_labels_in_lists(here):
    x, y = ["a text", "another"], [[0, 1, 0], [1, 0, 0]]
    here.classifier.fit(x, y, validation_data=[x, y], verbose=0)
    assert here.classifier.evaluate(x, y, verbose=0) > 0
