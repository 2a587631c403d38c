"""Which characters pieces come from: by hand."""

import numpy as np
import pytest
from written_texts import trained_pieces

from keras_albert.errors import AlbertError
from keras_albert.text.alignment import Aligner, normalize_with_sources
from keras_albert.text.tokenizer import Tokenizer

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    ("text", "lower_case", "expected"),
    [
        ("Á  ½", True, ("a 1⁄2", [0, 1, 3, 3, 3])),
        ("Á  ½", False, ("A 1⁄2", [0, 1, 3, 3, 3])),
        (" \n a\t\u3000b ", True, ("a b", [3, 4, 6])),
        ("ΟΣ ΣΟ", True, ("ος σο", [0, 1, 2, 3, 4])),  # a final sigma, a first
        ("", True, ("", [])),
    ],
)
def test_normal_text_and_its_sources(text, lower_case, expected):
    assert normalize_with_sources(text, lower_case) == expected


def test_bytes_cannot_be_aligned():
    """Several byte pieces are one character."""
    tokenizer = Tokenizer.from_bytes(
        trained_pieces(byte_fallback=True, vocab_size=300)
    )
    assert "<0xE4>" in tokenizer.tokenize("中")
    with pytest.raises(AlbertError, match=r"byte_fallback.*another vocabulary"):
        Aligner(tokenizer)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The comma rule of the tokenizer adds word marks that stand for
        # nothing; the mark before the text does, too.
        (
            "xn  1990,A x9,",
            "▁:0-0 x:0-1 n:1-2 ▁:2-3 1:4-5 9:5-6 9:6-7 0:7-8 ,:8-9 a:9-10 "
            "▁:10-11 x:11-12 ▁:12-12 9:12-13 ,:13-14",
        ),
        # One character of several pieces; an invisible space between two
        # visible ones; a letter with its accent.
        ("½ \ufeff B\u0301C ", "▁:0-0 1:0-1 ⁄:0-1 2:0-1 ▁:1-2 b:4-6 c:6-7"),
        # SentencePiece composes three jamo to one character.
        ("\u1112\u1161\u11ab(", "▁:0-0 한:0-3 (:3-4"),
        # An invisible space before a visible one: the visible one is meant.
        ("a\u200e b", "▁:0-0 a:0-1 ▁:2-3 b:3-4"),
        # Characters that SentencePiece drops.
        ("a\x01b\ufeff", "▁:0-0 a:0-1 b:2-3"),
        # A word mark of the comma rule within a character.
        ("⅑,", "▁:0-0 1:0-1 ⁄:0-1 ▁:0-1 9:0-1 ,:1-2"),
        ("\u0301", ""),
    ],
)
def test_pieces(digit_comma_vocab, text, expected):
    tokenizer = Tokenizer(digit_comma_vocab)
    pieces = Aligner(tokenizer)(text)
    assert pieces.ids.dtype == pieces.starts.dtype == pieces.ends.dtype
    assert pieces.ids.dtype == np.int32
    names = tokenizer.tokenize(text)
    found = zip(names, pieces.starts, pieces.ends, strict=True)
    assert " ".join(f"{name}:{a}-{b}" for name, a, b in found) == expected
    assert pieces.ids.tolist() == tokenizer.encode(text)
