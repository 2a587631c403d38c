"""GraphAligner equals Aligner: the same pieces at the same places."""

import pytest
from hypothesis import example, given, settings, strategies as st

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

import keras_albert as ka  # noqa: E402
from keras_albert.text.alignment import Aligner  # noqa: E402
from keras_albert.text.graph_alignment import GraphAligner  # noqa: E402
from keras_albert.text.graph_characters import Characters  # noqa: E402
from keras_albert.text.normalization import to_text  # noqa: E402

pytestmark = pytest.mark.any_backend

FAST = settings(max_examples=120)
# What is dropped, taken for a space, made one of several or several of one.
LIKELY = st.text(
    "09,, aAbcx.()-£ΣİI\u0301\u0345\0\x01\x1c\x85\u00a0\u3000¨ﬁ½²한각\u1112"
    "\u1161\u11ab\u200b\u200d\ufeff\u2581ﷺ𝚺😀\u093c<>",
    max_size=24,
)
BYTES = st.lists(
    st.sampled_from([b"\xff", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"a"])
    | st.sampled_from([b"\xf0\x9f", b"\xed\xa0\x80", b" ", b"9,", b"\0"]),
    max_size=12,
).map(b"".join)


@pytest.fixture(scope="module", params=["lower", "cased", "accents"])
def twins(request, digit_comma_vocab):
    tokenizer = ka.Tokenizer(
        digit_comma_vocab,
        lower_case=request.param != "cased",
        keep_accents=request.param == "accents",
    )
    graph = GraphAligner(tokenizer, ka.GraphTokenizer(tokenizer))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def align(texts):
        characters = Characters.of(texts)
        pieces = graph(characters)
        base = tf.gather(characters.splits, pieces.ids.value_rowids())
        places = pieces.starts - base, pieces.ends - base
        return [pieces.ids, *map(pieces.ids.with_values, places)]

    return tokenizer, Aligner(tokenizer), align


@FAST
@given(st.lists(st.one_of(st.text(max_size=20), LIKELY, BYTES), max_size=4))
@example([])
@example(["", " ", "\0", "\u200b", "\x01\x01", "a\x01"])
@example(["9, x9,", "in 1990, x1990,9,", "The Cafe\u0301 ", "a \u0301 b"])
@example(
    ["각각 \u1112\u1161\u11ab\x01a", "a\x01\x01b", "\u200b a \u200b\u200b b"]
)
@example(["e\u0301\u0301", "\u0301e", "¨a¨ ¨", "ﷺﷺ½", "İI\u0307 ΟΔΟΣ"])
@example(["a " * 3000 + "é, 1990,", "😀" * 300])
def test_pieces(twins, texts):
    tokenizer, aligner, align = twins
    written = [x if isinstance(x, bytes) else x.encode() for x in texts]
    found = align(tf.constant(written, tf.string))
    for i, text in enumerate(texts):
        ours = aligner(to_text(text))
        ids, starts, ends = (rows[i].numpy().tolist() for rows in found)
        if ids != ours.ids.tolist():
            # Segmentations of the same probability, see test_text_graph.py.
            assert tokenizer.decode(ids) == tokenizer.decode(ours.ids), text
            continue
        assert starts == ours.starts.tolist(), text
        assert ends == ours.ends.tolist(), text
