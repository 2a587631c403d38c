"""The real vocabulary against ids that google-research/albert made.

`tokenization_raw.jsonl` holds 260 texts with the pieces and ids of the
reference's `FullTokenizer.tokenize`, which normalizes nothing (its callers
do): `normalize=False` here.
"""

import warnings

import pytest

import keras_albert as ka

pytestmark = pytest.mark.any_backend


def test_no_piece_has_a_mark(data_folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ka.Tokenizer(data_folder / "vocab" / "30k-clean.model")


def test_pieces_equal_reference(tokenizer, golden):
    for row in golden:
        found = tokenizer.tokenize(row["text"], normalize=False)
        assert found == row["pieces"]


def test_ids_equal_reference(tokenizer, golden):
    texts = [row["text"] for row in golden]
    expected = [row["ids"] for row in golden]
    assert tokenizer.encode_batch(texts, normalize=False) == expected
    singles = [tokenizer.encode(text, normalize=False) for text in texts]
    assert singles == expected


def test_digit_comma(tokenizer):
    # None of the 260 texts has such a piece; these follow tokenization.py by
    # hand. "1990," without a space before it gains a word mark when it is
    # encoded again, so it would be "▁1990" if that were no piece of its own.
    pieces = tokenizer.tokenize("in 2010, we")
    assert pieces == ["▁in", "▁2010", ",", "▁we"]
    assert tokenizer.tokenize("9,") == ["▁9", ","]
    assert len(tokenizer.resplits) == 141
    for pieces in tokenizer.resplits.values():
        assert tokenizer.id_to_piece(pieces[0]).startswith("▁")
        assert tokenizer.id_to_piece(pieces[-1]) == ","


def test_known_ids(tokenizer):
    # The ids that KerasHub's tests have for this text.
    assert tokenizer.encode("quick brown fox.") == [2231, 886, 2385, 9]
    assert tokenizer.vocab_size == 30_000
    assert tokenizer.encode("[CLS] <pad>").count(1) == 2
    assert not tokenizer.word_starts[tokenizer.piece_to_id("ing")]
    assert tokenizer.word_starts[tokenizer.piece_to_id("▁the")]
