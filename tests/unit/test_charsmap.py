"""A SentencePiece file that normalizes texts as our tokenizer does."""

import random
import unicodedata

import pytest
import sentencepiece
from hypothesis import assume, example, given, strategies as st

from keras_albert.corpus.config import VocabRun
from keras_albert.corpus.vocabulary import train_vocabulary
from keras_albert.text.charsmap import normalizing_model
from keras_albert.text.tokenizer import Tokenizer

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A vocabulary with capitals, accents, Greek and Hangul among its pieces.

    So that a character which is not normalized becomes another id.
    """
    folder = tmp_path_factory.mktemp("letters")
    rng = random.Random(5)
    characters = [
        *map(chr, range(0x21, 0x180)),
        *"\u0391\u0392\u03b1\u03b2\ud55c\uae00",
    ]
    lines = [" ".join(rng.choices(characters, k=20)) for _ in range(300)]
    lines += ["".join(rng.choices("aÀbÉ", k=5)) for _ in range(300)]
    (folder / "text.txt").write_text("\n".join(lines))
    run = VocabRun(
        input=(folder / "text.txt",),
        output=folder / "vocab",
        vocab_size=500,
        character_coverage=1.0,
        cased=True,
        keep_accents=True,
    )
    train_vocabulary(run)
    return run.output


def processor(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.fixture(
    scope="module",
    params=[
        (True, False),
        (False, True),
        pytest.param((True, True), marks=pytest.mark.proof),
        pytest.param((False, False), marks=pytest.mark.proof),
    ],
    ids=["lower", "cased_accents", "lower_accents", "cased"],
)
def both(request, letters):
    """Our tokenizer, and SentencePiece with the file made from it."""
    tokenizer = Tokenizer(letters, *request.param)
    return tokenizer, processor(normalizing_model(tokenizer))


def test_every_character(both):
    """Alone and inside a word; unassigned code points have no rules."""
    characters = [
        character
        for character in map(chr, range(1, 0x110000))
        if unicodedata.category(character) not in ("Cn", "Cs", "Co")
    ]
    tokenizer, theirs = both
    for texts in (characters, [f"x{c}y" for c in characters]):
        assert tokenizer.encode_batch(texts) == theirs.encode(texts)


def is_composed_late(character, next_one):
    """As of ª, which becomes "a", and an accent: no rule has both."""
    forms = (unicodedata.normalize(form, character) for form in ("NFD", "NFKD"))
    return len({*forms}) == 2 and unicodedata.combining(next_one)


# Without sigma: at the end of a word str.lower makes another letter of it.
@given(
    st.text(st.characters(max_codepoint=0x2FFF, exclude_characters="\u03a3\0"))
)
@example("\u1100\u1161\u11a8 \ud55c\uae00")  # Hangul in letters
@example("e\u0301\u0323 \u1e69 A\u030a")
@example("\u0627\u0653 \u0cc6\u0cc2\u0cd5")  # vowel signs that compose
def test_any_text(both, text):
    tokenizer, theirs = both
    assume(not any(map(is_composed_late, text, text[1:])))
    assert theirs.encode(text) == tokenizer.encode(text)


def test_numbers_before_commas(digit_comma_vocab):
    tokenizer = Tokenizer(digit_comma_vocab)
    theirs = processor(normalizing_model(tokenizer))
    assert tokenizer.resplits
    text = "In 1990, a 9, b"
    plain = processor(tokenizer.model_bytes)
    assert plain.encode(text.lower()) != tokenizer.encode(text)
    assert theirs.encode(text) == tokenizer.encode(text)
