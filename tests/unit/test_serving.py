"""The serving graph of every task equals Predictor: any text, any length.

Letters: B texts, C labels or choices, W words, S tokens.
"""

import types

import numpy as np
import pytest
from hypothesis import (
    HealthCheck,
    assume,
    example,
    given,
    settings,
    strategies as st,
)

if pytest.importorskip("keras").backend.backend() != "tensorflow":
    pytest.skip("graphs are traced by TensorFlow", allow_module_level=True)
tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from served_models import (  # noqa: E402
    KINDS,
    LONGEST,
    READS_PAIRS,
    SIGNATURES,
    answers_of,
    check_rows,
    close,
    embeddings_of,
    expected,
    operations,
    outputs_of,
    random_predictor,
    softmax,
    used,
)
from tensorflow.core.protobuf import saved_model_pb2  # noqa: E402

from keras_albert.errors import AlbertError  # noqa: E402
from keras_albert.exports.litert import write_litert  # noqa: E402
from keras_albert.exports.load import ASIDE  # noqa: E402
from keras_albert.exports.saved_model.signatures import serving_module  # noqa: E402
from keras_albert.exports.saved_model.warm_up import (  # noqa: E402
    BATCH_SIZES,
    WARM_UP_FILE,
    write_warm_up,
)
from keras_albert.tasks import graph as serving_graph  # noqa: E402
from keras_albert.tasks.question_answering import graph as answers  # noqa: E402
from keras_albert.tasks.question_answering.task import NO_CANDIDATE  # noqa: E402
from keras_albert.tasks.question_answering.windows import (  # noqa: E402
    max_context,
    window_spans,
)
from keras_albert.tasks.similarity_graph import serve_similarity  # noqa: E402
from keras_albert.text.graph_tokenizer import GraphTokenizer  # noqa: E402
from keras_albert.text.normalization import to_text  # noqa: E402

FEW = settings(max_examples=4, suppress_health_check=list(HealthCheck))
TEXTS = st.one_of(
    st.text(max_size=30),
    st.text("01,, aefox.\u0301İΣ\u200b\0\u3000ﬁ½한😀_", max_size=40),
    st.lists(
        st.sampled_from(
            ["The fox sold £9 of tea", "in 1950,", "Élodie", "e\u0301\u0301"]
            + ["\u00a0", "São Paulo (7 miles away).", "😀😀", "\n", "a_b"]
        ),
        max_size=20,
    ).map(" ".join),
    st.lists(
        st.sampled_from([b"\xff", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"_"])
        | st.sampled_from([b"\xf0\x9f", b"fox", b" ", b"9,", b"\0"]),
        max_size=12,
    ).map(b"".join),
)
proof = pytest.mark.proof
NAMED = " ".join(f"ÉLODIE {number}" for number in range(30))
# In three parts, and the shortest ones are not first.
MANY = [" ".join(["fox"] * (7 * n % 20)) for n in range(20)]
SOME = ["The fox sold £9 of tea in 1950.", "", NAMED, "e\u0301 😀Σ"]


@pytest.fixture(scope="module")
def graph(tokenizer):
    return GraphTokenizer(tokenizer)


def untraced(kind):
    """Signatures that are the same for every kind, and traced for one."""
    return set() if kind == "classification" else {"embed", "tokenize"}


@pytest.fixture(scope="module")
def served(tokenizer):
    """Returns a random model of a kind as Predictor, and its signatures."""
    made = {}

    def of(kind):
        if kind not in made:
            predictor = random_predictor(tokenizer, kind)
            only = SIGNATURES[kind] - untraced(kind)
            made[kind] = predictor, *serving_module(predictor, only=only)
        return made[kind]

    return of


def strings(values):
    return [value.decode() for value in values]


def utf8(values):
    """Strings, or lists of them, as a tensor of bytes."""
    if isinstance(values, list):
        return [utf8(value) for value in values]
    return values if isinstance(values, bytes) else values.encode()


def ask(served, signature="serving_default", **inputs):
    tensors = {
        name: tf.constant(utf8(value), tf.string)
        for name, value in inputs.items()
    }
    outputs = served[2][signature](**tensors)
    return {name: value.numpy() for name, value in outputs.items()}


def check(served, **inputs):
    """Asks for what Predictor answers, too."""
    found = ask(served, **inputs)
    check_rows(found, answers_of(served[0], **inputs), "serving_default")
    return found


def assume_no_ties(tokenizer, graph, texts):
    """Skips texts with two best segmentations; see test_text_graph.py."""
    ids = graph(tf.constant(utf8(texts), tf.string)).to_list()
    assume(ids == tokenizer.encode_batch(map(to_text, texts)))


@pytest.mark.parametrize("kind", KINDS)
def test_signatures(served, kind):
    """Servers link their operations, and none needs a compiler."""
    signatures = served(kind)[2]
    assert signatures.keys() == SIGNATURES[kind] - untraced(kind)
    for name, function in signatures.items():
        graph = function.graph.as_graph_def()
        ops = used(graph)
        assert ops <= operations("2.12") & operations("2.20"), name
        assert not [op for op in ops if "xla" in op.lower()], name
        owners = [*graph.node, *graph.library.function]
        for function in graph.library.function:
            owners += function.node_def
        assert not any(each.attr["_XlaMustCompile"].b for each in owners), name


@FEW
@given(st.lists(TEXTS, min_size=1, max_size=4))
@example(SOME)
@example(MANY)
def test_one_label(served, tokenizer, graph, texts):
    assume_no_ties(tokenizer, graph, texts)
    for kind in ("classification", "early exit", "ensemble"):
        check(served(kind), text=texts)


@FEW
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
@example([*zip(SOME, SOME[::-1], strict=True)])
@example([("fox " * 30, "tea " * 31), ("fox " * 31, "tea " * 30)])
def test_pairs(served, tokenizer, graph, pairs):
    texts, others = map(list, zip(*pairs, strict=True))
    assume_no_ties(tokenizer, graph, texts + others)
    for kind in ("pairs", "regression"):
        inputs = {"text": texts, "pair": others}
        found = check(served(kind), **inputs)
        again = ask(served(kind), "pair", **inputs)
        assert all((again[name] == found[name]).all() for name in found)


def test_several_labels(served):
    found = check(served("multilabel"), text=SOME)
    # The thresholds matter.
    assert (found["chosen"] != (found["probabilities"] > 0.5)).any()


@FEW
@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), min_size=1, max_size=3))
@example([("fox " * 30, "_ and _", "a", "tea " * 30), ("", "", "", "_")])
@example([("fox", "what is _?", "\\1 tea", "\\0"), ("fox", "_", "a_b", "b")])
@example([("a", b"\xc3_", b"\xa9", "b")])
def test_choices(served, tokenizer, graph, rows):
    texts, questions, a, b = map(list, zip(*rows, strict=True))
    choices = [[*row] for row in zip(a, b, strict=True)]
    assume_no_ties(tokenizer, graph, texts)
    for kind in ("choice", "question and choice"):
        inputs = {"text": texts, "choices": choices}
        if kind != "choice":
            inputs["question"] = questions
        asked = inputs.get("question", [""] * len(rows))
        for question, row in zip(map(to_text, asked), choices, strict=True):
            blank = question if "_" in question else f"{question} _"
            filled = [blank.replace("_", to_text(choice)) for choice in row]
            assume_no_ties(tokenizer, graph, filled)
        logits, decoded = expected(served(kind)[0], **inputs)
        found = ask(served(kind), **inputs)
        close(found["probabilities"], softmax(logits))
        best = softmax(logits)[np.arange(len(rows)), found["choice"]]
        close(best, [row["score"] for row in decoded])


@FEW
@given(st.lists(TEXTS, min_size=1, max_size=4))
@example(SOME)
@example(["a \u0301 b", "\u0301 " * 30, "fox" * 40 + " a " + "tea" * 40, " "])
def test_words(served, tokenizer, graph, texts):
    words = [word for text in texts for word in to_text(text).split()]
    assume_no_ties(tokenizer, graph, words)
    check(served("tokens"), text=texts)


@FEW
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
@example([*zip(SOME[::-1], SOME, strict=True)])
@example([("who " * 9, "\u3000Élodie e\u0301\u0301" + NAMED), ("", "")])
@example([("tea", "1950, 1950, 9, (7) " * 3), ("", " \n "), ("a", "\u0301")])
def test_answers(served, tokenizer, graph, pairs):
    questions, contexts = map(list, zip(*pairs, strict=True))
    assume_no_ties(tokenizer, graph, questions + contexts)
    inputs = {"question": questions, "context": contexts}
    for kind in ("answer", "answer or none"):
        _, decoded = expected(served(kind)[0], **inputs)
        found = ask(served(kind), **inputs)
        assert strings(found["answer"]) == [
            row["prediction"] for row in decoded
        ]
        close(found["score"], [row["score"] for row in decoded])
        for row, context in enumerate(map(to_text, contexts)):
            place = found["start"][row], found["end"][row]
            wanted = decoded[row]["start"], decoded[row]["end"]
            wanted = (-1, -1) if wanted[0] is None else wanted
            # What a text has twice may stand in windows that are equal.
            answer = decoded[row]["prediction"]
            if place != wanted and context.count(answer) > 1:
                wanted = place
                assert context[slice(*place)] == answer
            assert place == wanted


def test_threshold(served, tokenizer):
    """A question is refused where its score reaches the threshold."""
    inputs = {"question": ["who"] * 3, "context": [SOME[0], SOME[2], ""]}
    predictor = served("answer or none")[0]
    against = ask(served("answer or none"), **inputs)["no_answer"]
    assert against[2] == NO_CANDIDATE
    limit = float(against[:2].mean())
    other = predictor.with_threshold(limit)
    graph = serving_module(other, only={"serving_default"})
    found = ask((other, *graph), **inputs)
    _, decoded = expected(other, **inputs)
    assert [bool(answer) for answer in found["answer"]] == [
        *(against[:2] < limit),
        False,
    ]
    assert strings(found["answer"]) == [row["prediction"] for row in decoded]
    close(found["score"], [row["score"] for row in decoded])
    always = served("answer")[0]
    with pytest.raises(AlbertError, match="this model always answers"):
        always.with_threshold(limit)


@settings(FEW, max_examples=60)
@given(st.integers(0, 150), st.integers(1, 40), st.integers(1, 45))
@example(584, 384, 200)
def test_most_context(count, room, stride):
    """The closed form equals `max_context` for every token and window."""
    spans = window_spans(count, room, stride)
    sizes = (count, room, min(room, stride), len(spans))
    (owner,) = answers._most_context(
        tf.range(count)[tf.newaxis], *(tf.constant([[n]]) for n in sizes)
    ).numpy()
    for index, (span, best) in enumerate(
        zip(spans, max_context(spans), strict=True)
    ):
        assert ((owner[slice(*span)] == index) == best).all()


def test_short_texts_do_not_wait_for_long_ones():
    """Eight at a time, the shortest first, as wide as the longest of them."""
    lengths = np.array([7 * n % 20 + 2 for n in range(20)])
    mask = (np.arange(30) < lengths[:, np.newaxis]).astype("int32")
    rows = {
        "token_ids": mask * np.arange(20, dtype="int32")[:, np.newaxis],
        "segment_ids": 0 * mask,
        "padding_mask": mask,
    }

    def seen(rows):
        ids = rows["token_ids"]
        width = tf.fill(tf.shape(ids)[:1], tf.shape(ids)[1])
        return {"width": width, "row": ids[:, 0]}

    function = serving_graph.ServingGraph.of_rows(None, seen)
    found = serving_graph._by_length(function, rows)
    np.testing.assert_array_equal(found["row"], np.arange(20))
    parts = (lengths - 2) // 8  # each length from 2 to 21 occurs once
    longest = np.minimum(8 * (parts + 1), 20) + 1
    np.testing.assert_array_equal(found["width"], longest)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batches(served, kind):
    signatures = served(kind)[2]
    names = signatures if kind == "classification" else ["serving_default"]
    for name in names:
        function = signatures[name]
        inputs = {
            spec.name: tf.zeros([0] + [2] * (len(spec.shape) - 1), spec.dtype)
            for spec in function.structured_input_signature[0]
        }
        for output, value in function(**inputs).items():
            assert value.shape[0] == 0, (name, output)


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("pairs", {"text": ["a", "b"], "pair": ["a"]}),
        ("choice", {"text": ["a"], "choices": [["a", "b"]] * 3}),
        ("answer", {"question": ["a"], "context": ["a", "b"]}),
    ],
)
def test_unequal_numbers(served, kind, inputs):
    a, b = inputs
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        ask(served(kind), **inputs)
    assert f"`{a}` and `{b}` must have as many rows" in str(error.value)


def test_unequal_numbers_of_similar_texts():
    def embed(texts):
        return {"embedding": tf.ones((len(texts), 2))}

    serve = serve_similarity(types.SimpleNamespace(embed=embed))
    with pytest.raises(tf.errors.InvalidArgumentError, match="text` and `pair"):
        serve(tf.constant(["a"]), tf.constant(["b", "c"]))


def ids_signature(served, rows):
    function = served[2]["token_ids"]
    outputs = function(token_ids=tf.constant(rows, tf.int32))
    return {name: value.numpy() for name, value in outputs.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_token_ids(served, tokenizer, kind):
    """A row may be padded with 0, or, as a server does, with its first id."""
    predictor, _, _ = served(kind)
    pair = tokenizer.encode("in 1950") if kind in READS_PAIRS else None
    tokens, segments = tokenizer.pack(tokenizer.encode("a fox"), pair)
    for padding in (0, 2):
        found = ids_signature(served(kind), [tokens + [padding] * 3])
        wanted = outputs_of(predictor, tokens, segments, padding=3)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            close(found[name], value)
    if kind == "answer or none":  # shorter than the beam
        assert ids_signature(served(kind), [[2, 3, 3]])["answer_class"].size


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([2] + [7] * 61, r"must have 1 to 61 tokens a row. Received:\] \[62\]"),
        ([], r"must have 1 to 61 tokens a row. Received:\] \[0\]"),
        ([2, 163, 3], r"must be from 0 to 162, .* lowest and highest:\] "
                      r"\[2\] \[163\]"),
        ([2, -1, 3], r"must be from 0 to 162, .*\] \[-1\] \[3\]"),
    ],
)  # fmt: skip
def test_token_ids_that_no_model_knows(served, row, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ids_signature(served("classification"), [row])


def test_embed_tokenize_and_classify(served, tokenizer):
    predictor = served("classification")[0]
    packed = tokenizer(SOME, max_length=LONGEST)
    found = ask(served("classification"), "tokenize", text=SOME)
    assert found["token_ids"].tolist() == packed["token_ids"].tolist()
    assert found["lengths"].tolist() == packed["padding_mask"].sum(1).tolist()
    found = ask(served("classification"), "embed", text=MANY)
    wanted = embeddings_of(predictor, MANY)
    close(found["embedding"], [row["embedding"] for row in wanted])
    examples = [serialized(text.encode()) for text in SOME]
    found = ask(served("classification"), "classify", inputs=examples)
    answers = ask(served("classification"), text=SOME)
    assert (found["classes"] == answers["labels"]).all()
    close(found["scores"], answers["probabilities"])


def serialized(text):
    """A serialized tf.Example of a text, or of a whole number."""
    message = tf.train.Example()
    feature = message.features.feature["text"]
    kind = feature.int64_list if isinstance(text, int) else feature.bytes_list
    kind.value.append(text)
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([b"a text"], r"`inputs` must be .* `serving_default`.*row:\] \[0\]"),
        ([serialized(b"a"), b"\xff"], r"`inputs` must be .*row:\] \[1\]"),
        ([b"\nno message"], "feature_text"),
        ([b""], "Feature: text .*is required(.|\n)*feature_text"),
        ([serialized(3)], "int64 but expected type: string"),
    ],
)
def test_what_is_no_example_with_a_text(served, inputs, message):
    """The name of the operation that fails says what it expects."""
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ask(served("classification"), "classify", inputs=inputs)


def assert_bytes_a_weight(size, predictor, folder):
    stored = sum(f.stat().st_size for f in folder.rglob("*.data-*"))
    weights = size * predictor.model.count_params()
    assert weights <= stored < weights + 9000


def test_saved_model(served, tmp_path):
    """A stored model has each weight once; loaded, it answers the same."""
    predictor, module, signatures = served("answer or none")
    tf.saved_model.save(module, tmp_path, signatures)
    content = (tmp_path / "saved_model.pb").read_bytes()
    saved = saved_model_pb2.SavedModel.FromString(content)
    ops = used(saved.meta_graphs[0].graph_def)
    assert ops <= operations("2.12") & operations("2.20")
    assert "SentencepieceOp" in ops
    assert_bytes_a_weight(4, predictor, tmp_path)
    # Most of it character maps: SentencePiece's, and the tables of text/graph.
    assert len(content) < 4e6
    inputs = {"question": SOME[::-1], "context": SOME}
    loaded = tf.saved_model.load(tmp_path)
    found = ask((None, None, loaded.signatures), **inputs)
    np.testing.assert_equal(found, ask(served("answer or none"), **inputs))


QUICK_KINDS = ("classification", "choice", "answer or none")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in QUICK_KINDS else proof)
        for kind in KINDS
    ],
)
def test_warm_up(served, tmp_path, kind):
    """A server can read and answer each request: else it refuses the model."""
    api = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    server = pytest.importorskip("serving_stand_in")
    predictor, module, signatures = served(kind)
    tf.saved_model.save(module, tmp_path, signatures)
    (tmp_path / ASIDE).mkdir()
    write_warm_up(predictor, signatures, tmp_path / ASIDE)
    records = tf.data.TFRecordDataset(str(tmp_path / ASIDE / WARM_UP_FILE))
    logs = [*map(api.PredictionLog.FromString, records.as_numpy_iterator())]
    seen = {name: [] for name in signatures}
    version = server.Version(tmp_path, warm_up=False)
    for log in logs:
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        name = request.model_spec.signature_name
        outputs = version.predict(request)
        values = {
            key: tf.make_ndarray(tensor)
            for key, tensor in request.inputs.items()
        }
        (size,) = {len(value) for value in values.values()}
        assert all(len(value) == size for value in outputs.values())
        if name == "tokenize":
            size = (size, outputs["lengths"].max() == LONGEST)
        if name == "token_ids":
            size = (size, values["token_ids"].shape[1] == LONGEST)
        seen[name].append(size)
        wanted = api.PredictionLog()
        wanted.predict_log.request.model_spec.signature_name = name
        inputs = wanted.predict_log.request.inputs
        for key, value in values.items():
            inputs[key].CopyFrom(tf.make_tensor_proto(value))
        assert log == wanted
    small, large = BATCH_SIZES
    for name, sizes in seen.items():
        expected = [small, small, large, large]
        if name in ("token_ids", "tokenize"):
            expected = [(n, long) for n in BATCH_SIZES for long in (0, 1)]
        assert sizes == expected, name
    assert len(logs) == 4 * len(signatures) < 1000


@pytest.mark.parametrize(
    ("weights", "digits"),
    [("float16", 11), pytest.param("bfloat16", 8, marks=pytest.mark.proof)],
)
def test_weights_of_16_bits(tokenizer, tmp_path, weights, digits):
    """The file has half the bytes, the outputs of the rounded weights."""
    predictor = random_predictor(tokenizer, "classification")
    module, signatures = serving_module(
        predictor, weights, only={"serving_default"}
    )
    tf.saved_model.save(module, tmp_path, signatures)
    assert_bytes_a_weight(2, predictor, tmp_path)
    exact = [np.array(w) for w in predictor.model.get_weights()]
    rounded = [tf.cast(tf.cast(w, weights), "float32").numpy() for w in exact]
    for a, b in zip(exact, rounded, strict=True):
        np.testing.assert_allclose(a, b, rtol=2.0**-digits, atol=1e-6)
    predictor.model.set_weights(rounded)
    logits, _ = expected(predictor, text=SOME)
    found = ask((None, None, signatures), text=SOME)
    close(found["probabilities"], softmax(logits))


def test_weights_that_a_model_cannot_have(tokenizer, tmp_path):
    predictor = random_predictor(tokenizer, "classification")
    with pytest.raises(AlbertError, match="int4"):
        serving_module(predictor, "int4")
    predictor.model.quantize("int8")
    with pytest.raises(AlbertError, match="the model is quantized"):
        serving_module(predictor, "float16")
    with pytest.raises(AlbertError, match="from before `quantize`"):
        write_litert(predictor, tmp_path / "a", "float32")
