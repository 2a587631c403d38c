"""GraphTokenizer equals Tokenizer: any text, any bytes, any pair.

And GraphAligner equals Aligner: the same pieces at the same places.
"""

import functools
import os
import sys
import unicodedata

import keras
import pytest
from hypothesis import example, given, strategies as st

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from commands import output_of  # noqa: E402
from served_models import used  # noqa: E402

import keras_albert as ka  # noqa: E402
from keras_albert.text.alignment import Aligner  # noqa: E402
from keras_albert.text.graph_alignment import GraphAligner  # noqa: E402
from keras_albert.text.graph_characters import Characters  # noqa: E402
from keras_albert.text.normalization import normalize, to_text  # noqa: E402

pytestmark = pytest.mark.any_backend

# Text that meets the rules often: digits and commas, sigmas, dotted I, marks,
# NUL, odd spaces, compatibility characters, what is dropped or made one of
# several, a new capital, an astral letter.
LIKELY = st.text(
    "0129,,, aAbcx.'\"()-£ΣσİI\u0301\u0345\0\x1c\x85\u00a0\u3000¨ﬁ²９٣한ʰ\u200d"
    "\ufeff\ua7da𝚺𐐀😀\U000110bd\U0010fffd▁[]<>`\x01각\u1112\u1161\u11ab\u200b"
    "ﷺ\u093c",
    max_size=24,
)
TEXTS = st.one_of(st.text(max_size=24), LIKELY)
BYTES = st.one_of(
    st.binary(max_size=24),
    st.lists(
        st.sampled_from([b"\xff", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac"])
        | st.sampled_from([b"\xf0\x9f", b"\xed\xa0\x80", b"a", b"9,", b"\0"]),
        max_size=12,
    ).map(b"".join),
)


@pytest.fixture(
    scope="module", params=["lower", "cased", "accents", "released"]
)
def twins(request, digit_comma_vocab):
    """A Tokenizer, and its twin's ids and normal forms."""
    if request.param == "released":
        data = request.getfixturevalue("data_folder")
        tokenizer = ka.Tokenizer(data / "vocab" / "30k-clean.model")
    else:
        tokenizer = ka.Tokenizer(
            digit_comma_vocab,
            lower_case=request.param != "cased",
            keep_accents=request.param == "accents",
        )
    return tokenizer, ka.GraphTokenizer(tokenizer)


@pytest.fixture(scope="module")
def aligners(twins):
    """What finds the characters of pieces, in Python and in a graph."""
    tokenizer, graph = twins
    aligner = GraphAligner(tokenizer, graph)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def align(texts):
        characters = Characters.of(texts)
        pieces = aligner(characters)
        base = tf.gather(characters.splits, pieces.ids.value_rowids())
        places = pieces.starts - base, pieces.ends - base
        return [pieces.ids, *map(pieces.ids.with_values, places)]

    align(utf8(["traced"]))
    keras.utils.set_random_seed(0)  # TensorFlow then deletes its kernels
    return Aligner(tokenizer), align


def utf8(texts):
    texts = [x if isinstance(x, bytes) else x.encode() for x in texts]
    return tf.constant(texts, tf.string)


def is_tie(tokenizer, ours, theirs):
    """Two segmentations of one text with the same probability.

    The one known exception: SentencePiece 0.2 and the 0.1.96 inside
    tensorflow-text break ties differently ("aaa" is "aa a" or "a aa").
    """
    score = tokenizer._processor.get_score
    return tokenizer.decode(ours) == tokenizer.decode(theirs) and (
        sum(map(score, ours))
        == pytest.approx(sum(map(score, theirs)), abs=1e-4)
    )


def assert_same_ids(tokenizer, graph, texts):
    ours = tokenizer.encode_batch(texts)
    theirs = graph(utf8(texts)).to_list()
    for text, a, b in zip(texts, ours, theirs, strict=True):
        assert a == b or is_tie(tokenizer, a, b), (text, a, b)


def test_vocabulary_has_digit_comma_pieces(digit_comma_vocab):
    tokenizer = ka.Tokenizer(digit_comma_vocab)
    pieces = {tokenizer.id_to_piece(i) for i in tokenizer.resplits}
    assert {"9,", "▁9,", "1990,", "▁1990,"} <= pieces


@given(st.lists(TEXTS, max_size=5))
@example([])
@example(["", " ", "\0", "\0\0a", "a\0"])
@example(["9, x9,", "in 1990, x1990,9,", "٣, ²,", "９，9,"])
@example(["ΟΔΟΣ", "Σ", "AΣ'", "AΣ'a", "AΣ", "a"])
@example(["\ufeffa", "İI", "[CLS][MASK]<pad>", "\u0301", "a \u0301 b"])
def test_ids_of_texts(twins, texts):
    assert_same_ids(*twins, texts)


@given(st.lists(BYTES, min_size=1, max_size=5))
def test_ids_of_bytes(twins, texts):
    assert_same_ids(*twins, texts)


@given(st.lists(st.one_of(TEXTS, BYTES), min_size=1, max_size=5))
def test_normal_forms(twins, texts):
    tokenizer, graph = twins
    ours = [normalize(to_text(x), **tokenizer.settings) for x in texts]
    theirs = [x.decode("utf-8") for x in graph.normalize(utf8(texts)).numpy()]
    assert ours == theirs


@given(st.lists(st.one_of(TEXTS, BYTES), max_size=4))
@example([])
@example(["", " ", "\0", "\u200b", "\x01\x01", "a\x01"])
@example(["9, x9,", "in 1990, x1990,9,", "The Cafe\u0301 ", "a \u0301 b"])
@example(
    ["각각 \u1112\u1161\u11ab\x01a", "a\x01\x01b", "\u200b a \u200b\u200b b"]
)
@example(["e\u0301\u0301", "\u0301e", "¨a¨ ¨", "ﷺﷺ½", "İI\u0307 ΟΔΟΣ"])
@example(["a " * 3000 + "é, 1990,", "😀" * 300])
def test_characters_of_pieces(twins, aligners, texts):
    aligner, align = aligners
    found = align(utf8(texts))
    for i, text in enumerate(texts):
        ours = aligner(to_text(text))
        ids, starts, ends = (rows[i].numpy().tolist() for rows in found)
        if ids != ours.ids.tolist():
            assert is_tie(twins[0], ours.ids.tolist(), ids), text
            continue
        assert starts == ours.starts.tolist(), text
        assert ends == ours.ends.tolist(), text


@pytest.mark.parametrize(
    "skipped",
    [("Cs", "Cn", "Co"), pytest.param(("Cs",), marks=pytest.mark.proof)],
    ids=["assigned", "all"],
)
def test_every_code_point(twins, skipped):
    """Of Unicode: without surrogates, unassigned and private characters."""
    tokenizer, graph = twins
    codes = [
        code
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) not in skipped
    ]
    # Before and after a capital sigma, where the character decides its form.
    texts = [f"x{chr(c)}Σ{chr(c)}Σ" for c in codes]
    theirs = tf.function(graph.normalize)(utf8(texts)).numpy()
    different = [
        hex(code)
        for code, text, found in zip(codes, texts, theirs, strict=True)
        if normalize(text, **tokenizer.settings) != found.decode("utf-8")
    ]
    assert different == []


IDS = st.lists(st.integers(5, 49), max_size=12)


@given(
    st.lists(st.tuples(IDS, IDS), max_size=6), st.integers(5, 30), st.booleans()
)
@example([([], [])], 5, True)
@example([([9] * 12, [8] * 12), ([9] * 12, []), ([], [8] * 12)], 5, True)
def test_pack(digit_comma_vocab, rows, max_length, paired):
    graph = graph_of(digit_comma_vocab)
    ragged = [
        tf.ragged.constant(side, tf.int32, ragged_rank=1)
        for side in ([a for a, _ in rows], [b for _, b in rows])
    ]
    found = graph.pack(ragged[0], ragged[1] if paired else None, max_length)
    pack = ka.Tokenizer(digit_comma_vocab).pack
    packed = [pack(a, b if paired else None, max_length) for a, b in rows]
    width = max((len(ids) for ids, _ in packed), default=2)
    expected = {
        "token_ids": [ids for ids, _ in packed],
        "segment_ids": [segments for _, segments in packed],
        "padding_mask": [[1] * len(ids) for ids, _ in packed],
    }
    assert list(found) == list(expected)
    for name, values in expected.items():
        values = [row + [0] * (width - len(row)) for row in values]
        assert found[name].dtype == tf.int32
        assert found[name].shape == (len(rows), width)
        assert found[name].numpy().tolist() == values


@functools.cache
def graph_of(folder):
    return ka.GraphTokenizer(ka.Tokenizer(folder))


def test_saved_model(digit_comma_vocab, tmp_path):
    """Saved and loaded, with no operation a server might not link."""
    tokenizer = ka.Tokenizer(digit_comma_vocab)
    graph = graph_of(digit_comma_vocab)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 2)
    def pairs(a, b):
        return graph.pack(graph(a), graph(b), max_length=9)

    module = tf.Module()
    module.graph, module.pairs = graph, pairs
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    texts = ["in 1990, x9,", "", "abc \0 Σ"]
    found = loaded.pairs(utf8(texts), utf8(texts[::-1]))
    expected = tokenizer(texts, texts[::-1], max_length=9)
    for name in expected:
        assert found[name].numpy().tolist() == expected[name].tolist()

    ops = used(loaded.pairs.concrete_functions[0].graph.as_graph_def())
    text_ops = {op for op in ops if "entencepiece" in op or ">" in op}
    assert text_ops == {"SentencepieceOp", "SentencepieceTokenizeOp"} & ops
    assert not {"Assert", "PyFunc", "EagerPyFunc"} & ops


@pytest.mark.proof
def test_turkish_server(digit_comma_vocab):
    """The locale of the process does not matter, as it would to ICU."""
    code = (
        "import sys, tensorflow as tf\n"
        "from keras_albert.text.graph_tokenizer import GraphTokenizer\n"
        "from keras_albert.text.tokenizer import Tokenizer\n"
        "graph = GraphTokenizer(Tokenizer(sys.argv[1]))\n"
        "assert graph.normalize(tf.constant(['IN'])).numpy()[0] == b'in'\n"
    )
    program = sys.executable, "-c", code, digit_comma_vocab
    output_of(*program, env={**os.environ, "LC_ALL": "tr_TR.UTF-8"})


def test_missing_tensorflow_text(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    monkeypatch.delitem(sys.modules, "keras_albert.text.graph_tokenizer")
    with pytest.raises(ValueError, match=r"keras-albert\[export\]"):
        import keras_albert.text.graph_tokenizer  # noqa: F401
