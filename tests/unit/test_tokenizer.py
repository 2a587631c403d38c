"""Tokenizer: hand-known answers on vocabularies made here, and every error."""

import json
import pickle
import sys
import warnings

import numpy as np
import pytest
from commands import output_of
from written_texts import trained_pieces

from keras_albert.errors import AlbertError
from keras_albert.text.normalization import normalize, to_text
from keras_albert.text.pieces import word_starts
from keras_albert.text.tokenizer import Tokenizer

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def model_bytes():
    return trained_pieces()


@pytest.fixture(scope="module")
def tokenizer(model_bytes):
    return Tokenizer.from_bytes(model_bytes)


CASED = {"lower_case": False}
ACCENTS = {"keep_accents": True}


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("", {}, ""),
        (" \t\n\u3000 ", {}, ""),
        ("  A\u00a0 b\x1c\u2028C ", {}, "a b c"),
        ("Élodie NAÏVE", {}, "elodie naive"),
        ("２０¹⁰ ﬁ ™", {}, "2010 fi tm"),
        ("straße", {}, "straße"),  # lower, not casefold
        ("İI", {}, "ii"),
        ("ΟΔΟΣ ΟΣΑ", {}, "οδος οσα"),  # final sigma
        ("``x''", {}, "``x''"),  # quotes stay
        ("की", {}, "की"),  # U+0940 is a mark of combining class 0
        ("한", {}, "\u1112\u1161\u11ab"),
        (" Élodie  À ", CASED, "Elodie A"),
        (" Käse\n がぎ  हिन्दी", ACCENTS, "käse がぎ हिन्दी"),
        ("Käse", CASED | ACCENTS, "Käse"),
    ],
)
def test_normalize(text, options, expected):
    assert normalize(text, **options) == expected


@pytest.mark.parametrize(
    ("piece", "published", "any_script"),
    [
        ("▁дом", True, True),
        ("ом", True, False),
        ("がぎ", True, False),
        ("ि", True, False),  # a vowel sign: a mark
        ("ing", False, False),
        ("7", True, True),
        ("a.", False, False),
        (".", True, True),
    ],
)
def test_words_of_any_script(piece, published, any_script):
    assert word_starts([piece], keep_accents=False) == [published]
    assert word_starts([piece], keep_accents=True) == [any_script]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("é", "é"),
        ("a\ud800b", "ab"),
        (b"caf\xc3\xa9 \xff\xe2\x82", "café "),
        (b"a\xed\xa0\x80b", "ab"),
    ],
)
def test_to_text(value, expected):
    assert to_text(value) == expected


@pytest.mark.parametrize("value", [None, 3, 2.5, ["a"], float("nan")])
def test_to_text_refuses(value):
    with pytest.raises(AlbertError, match="str or UTF-8 bytes"):
        to_text(value)


def test_resplits_follow_python_3(tokenizer):
    # A word mark appears where there was none: see Tokenizer.resplits.
    pieces = [
        " ".join(map(tokenizer.id_to_piece, new))
        for _, new in sorted(tokenizer.resplits.items())
    ]
    assert pieces == ["▁ 9 ,", "▁ 1 2 ,"]
    assert tokenizer.tokenize("9, 9") == ["▁", "9", ",", "▁", "9"]
    assert tokenizer.tokenize("x12,") == ["▁", "x", "▁", "1", "2", ","]
    assert tokenizer.tokenize("3,") == ["▁", "3", ","]


def test_encode_is_the_ids_of_tokenize(tokenizer):
    for text in ("9, abc x12,", "a,b", "", "ABC é"):
        ids = [tokenizer.piece_to_id(p) for p in tokenizer.tokenize(text)]
        assert tokenizer.encode(text) == ids
        assert tokenizer.encode_batch([text, text]) == [ids, ids]


def test_normalize_can_be_left_out(tokenizer):
    assert tokenizer.tokenize("É") == ["▁", "e"]
    assert tokenizer.tokenize("É", normalize=False) == ["▁", "É"]
    assert tokenizer.encode_batch(["É"], normalize=False) == [
        tokenizer.encode("É", normalize=False)
    ]


@pytest.mark.parametrize("lower_case", [True, False])
def test_typed_control_symbols_are_text(model_bytes, lower_case):
    # "[" and "]" are unknown here, so "[CLS]" is one unknown run that is
    # spelled like a piece.
    tokenizer = Tokenizer.from_bytes(model_bytes, lower_case)
    ids = tokenizer.encode("[CLS][SEP] [MASK] <pad> a")
    assert not {0, 2, 3, 4} & set(ids)
    assert tokenizer.encode_batch(["[CLS][SEP] [MASK] <pad> a"]) == [ids]


def test_pieces_and_ids(tokenizer):
    found = " ".join(tokenizer.id_to_piece(i) for i in range(6))
    assert found == "<pad> <unk> [CLS] [SEP] [MASK] ▁9,"
    assert tokenizer.piece_to_id("12,") == 6
    assert tokenizer.piece_to_id("no such piece") == 1
    ids = [2, *tokenizer.encode("abc d"), 1, 3, 0]
    assert tokenizer.decode(np.array(ids)) == "abc d ⁇ "
    assert tokenizer.decode([]) == ""
    for bad in (-1, 10_000):
        for use in (tokenizer.id_to_piece, lambda i: tokenizer.decode([i])):
            with pytest.raises(AlbertError, match=f"Received: {bad}"):
                use(bad)


def test_word_starts(tokenizer):
    starts = tokenizer.word_starts
    assert starts.dtype == np.bool_
    assert starts.shape == (tokenizer.vocab_size,)
    known = {
        "<pad>": True,  # begins with <
        "[CLS]": False,  # letters and punctuation only
        "▁9,": True,
        "12,": True,  # digits are not English letters
        "abc": False,
        "▁abc": True,
        ",": True,
        "'": True,  # not in the reference's list, so a foreign character
        "$": True,
        "a": False,
        "9": True,
    }
    found = {p: bool(starts[tokenizer.piece_to_id(p)]) for p in known}
    assert found == known


def test_pack_single(tokenizer):
    """An empty second text makes a single, as in the reference."""
    for ids, pair, max_length, expected in (
        ([11, 13], None, 8, [2, 11, 13, 3]),
        ([11, 13], [], 8, [2, 11, 13, 3]),
        ([11, 13, 17], None, 4, [2, 11, 13, 3]),
        ([], None, 3, [2, 3]),
    ):
        packed = tokenizer.pack(ids, pair, max_length)
        assert packed == (expected, [0] * len(expected))


@pytest.mark.parametrize("max_length", range(5, 14))
def test_pack_drops_from_the_longer(tokenizer, max_length):
    for size_a in range(9):
        for size_b in range(1, 9):
            a, b = list(range(10, 10 + size_a)), list(range(30, 30 + size_b))
            packed = tokenizer.pack(a, b, max_length)
            while len(a) + len(b) > max_length - 3:
                (a if len(a) > len(b) else b).pop()
            assert packed == (
                [2, *a, 3, *b, 3],
                [0] * (len(a) + 2) + [1] * (len(b) + 1),
            )


@pytest.mark.parametrize(
    ("b_ids", "max_length"), [(None, 2), ([7], 4), (None, 9.0)]
)
def test_pack_without_room(tokenizer, b_ids, max_length):
    with pytest.raises(AlbertError, match="`max_length` must be an integer"):
        tokenizer.pack([5], b_ids, max_length)


def test_batch(tokenizer):
    batch = tokenizer(["abc", "a b", ""], max_length=9)
    assert list(batch) == ["token_ids", "segment_ids", "padding_mask"]
    assert all(x.dtype == np.int32 for x in batch.values())
    texts = tokenizer.encode("abc"), tokenizer.encode("a b"), []
    width = 2 + max(map(len, texts))
    for row, text_ids in enumerate(texts):
        ids = [2, *text_ids, 3]
        padding = [0] * (width - len(ids))
        assert batch["token_ids"][row].tolist() == ids + padding
        assert batch["padding_mask"][row].tolist() == [1] * len(ids) + padding
    assert not batch["segment_ids"].any()
    assert tokenizer([])["token_ids"].shape == (0, 2)
    assert tokenizer([], pad_to=512)["token_ids"].shape == (0, 512)


def test_batch_of_pairs_padded(tokenizer):
    batch = tokenizer(["a", "b"], ["c", ""], max_length=7, pad_to=11)
    a, b, c = (
        [tokenizer.piece_to_id("▁"), tokenizer.piece_to_id(x)] for x in "abc"
    )
    assert batch["token_ids"].tolist() == [
        [2, *a, 3, *c, 3, 0, 0, 0, 0],
        [2, *b, 3, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert batch["segment_ids"].sum(axis=1).tolist() == [3, 0]
    assert batch["padding_mask"].sum(axis=1).tolist() == [7, 4]


def test_generators(tokenizer):
    found = tokenizer((each for each in "ab"), (each for each in "cd"))
    np.testing.assert_equal(found, tokenizer(["a", "b"], ["c", "d"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": ["a"], "pairs": ["b", "c"]}, "1 texts, 2 pairs"),
        ({"texts": ["a"], "pad_to": 100}, "Pass max_length=100"),
        ({"texts": ["a"], "max_length": 1}, "at least 3 for single"),
        ({"texts": ["a"], "pairs": ["b"], "max_length": 4}, "at least 5"),
    ],
)
def test_batch_errors(tokenizer, arguments, message):
    with pytest.raises(AlbertError, match=message):
        tokenizer(**arguments)


def test_save_and_load(tokenizer, model_bytes, tmp_path):
    saved = tmp_path / "new" / "folder"
    Tokenizer.from_bytes(model_bytes, lower_case=False).save(saved)
    assert (saved / "spiece.model").read_bytes() == model_bytes
    assert json.loads((saved / "spiece.json").read_text()) == {
        "lower_case": False,
        "keep_accents": False,
    }
    for path in (saved, saved / "spiece.model", str(saved)):
        again = Tokenizer(path)
        assert not again.lower_case
        assert again.fingerprint == tokenizer.fingerprint
    assert Tokenizer(saved, lower_case=True).lower_case
    assert Tokenizer(saved, keep_accents=True).keep_accents
    # As they were written before marks could be kept.
    (saved / "spiece.json").write_text('{"lower_case": false}')
    assert not Tokenizer(saved).keep_accents


def test_released_folder(model_bytes, tmp_path):
    with pytest.raises(AlbertError, match=r"absent: no such file or folder"):
        Tokenizer(tmp_path / "absent")
    with pytest.raises(AlbertError, match="Received: none"):
        Tokenizer(tmp_path)
    (tmp_path / "30k-clean.model").write_bytes(model_bytes)
    assert Tokenizer(tmp_path).lower_case
    (tmp_path / "other.model").write_bytes(b"broken")
    with pytest.raises(AlbertError, match=r"30k-clean\.model, other\.model"):
        Tokenizer(tmp_path)
    (tmp_path / "spiece.model").write_bytes(model_bytes)
    assert Tokenizer(tmp_path).model_bytes == model_bytes


def test_warnings_that_are_errors(tiny_vocab):
    """SentencePiece itself would end the process, as its C++ code warns."""
    program = (
        "import sys, keras_albert\n"
        "print(keras_albert.Tokenizer(sys.argv[1]).vocab_size)"
    )
    said = output_of(sys.executable, "-W", "error", "-c", program, tiny_vocab)
    assert int(said) == 160


def test_pickle(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode("x12, abc") == tokenizer.encode("x12, abc")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"not a model", "not a SentencePiece model"),
        ("truncated", "not a SentencePiece model"),
    ],
)
def test_corrupt_file(tmp_path, content, message, model_bytes):
    if content == "truncated":
        content = model_bytes[:-7]
    (tmp_path / "bad.model").write_bytes(content)
    with pytest.raises(AlbertError, match=rf"bad\.model: {message}"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{", "not a JSON file"),
        ("[]", "expected"),
        ('{"lower_case": 1}', "expected"),
        ('{"lower_case": true, "cased": true}', "expected"),
    ],
)
def test_bad_settings(tmp_path, model_bytes, settings, message):
    (tmp_path / "spiece.model").write_bytes(model_bytes)
    (tmp_path / "spiece.json").write_text(settings)
    with pytest.raises(AlbertError, match=rf"spiece\.json: {message}"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"control": ("[SEP]", "[CLS]", "[MASK]")},
        {"control": ("[CLS]",)},
        {"pad": 1},
        {"control": (), "symbols": ("[CLS]", "[SEP]", "[MASK]")},
    ],
)
def test_not_an_albert_vocabulary(options):
    with pytest.raises(AlbertError, match="Train one with `keras-albert vocab"):
        Tokenizer.from_bytes(trained_pieces(**options))


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("é", r"U\+00E9 \(LATIN SMALL LETTER E WITH ACUTE\)"),
        ("\u094d", r"U\+094D \(DEVANAGARI SIGN VIRAMA\)"),
        ("が", r"U\+304C \(HIRAGANA LETTER GA\)"),
        ("한ß½", None),  # which keep all their parts
    ],
)
def test_a_vocabulary_with_marks(tmp_path, symbol, name):
    """Loading warns that texts lose them, unless a setting was chosen."""
    file = tmp_path / "spiece.model"
    file.write_bytes(trained_pieces(symbols=[symbol]))
    tokenizer = Tokenizer(file, keep_accents=True)
    if name:
        with pytest.warns(UserWarning, match=name):
            assert not Tokenizer(tmp_path).keep_accents
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not name:
            Tokenizer(tmp_path)
        Tokenizer(file, keep_accents=False)
        tokenizer.save(tmp_path)
        assert Tokenizer(tmp_path).keep_accents
        Tokenizer(file, keep_accents=False).save(tmp_path)
        assert not Tokenizer(tmp_path).keep_accents
