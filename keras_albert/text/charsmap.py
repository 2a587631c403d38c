"""Moves the text normalization into the SentencePiece file.

`Tokenizer` normalizes a text before SentencePiece. Software that only reads a
SentencePiece file, such as KerasHub, skips that step, so that capitals become
<unk>. A SentencePiece file can hold a table of replacements, its "charsmap".
This module composes the normalization and the charsmap of the file into one
table. With the new file, such software produces the ids of `Tokenizer`.
"""

import functools
import io
import sys
import tempfile
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from keras_albert.text.guarded_sentencepiece import sentencepiece
from keras_albert.text.normalization import normalize
from keras_albert.text.tokenizer import Tokenizer

# Categories that never change: unassigned, surrogates and private use.
_WITHOUT_MEANING = ("Cn", "Cs", "Co")
# A private-use character: no rule has it, and it combines with no neighbour.
_SEPARATOR = "\ue000"


# The name that SentencePiece gives a normalization that is none of its own.
OWN_RULES = "user_defined"


def normalizes_itself(model: bytes) -> bool:
    """Whether a vocabulary is one of `normalizing_model`, or like one.

    Its texts are not to be lower-cased, nor to lose accents, beforehand.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        read = sentencepiece_model_pb2.ModelProto.FromString(model)
    except DecodeError:  # `Tokenizer` says what is wrong
        return False
    return read.normalizer_spec.name == OWN_RULES


def normalizing_model(tokenizer: Tokenizer) -> bytes:
    """A SentencePiece model that normalizes texts as `tokenizer` does.

    Pieces keep their ids and scores. A piece of digits and a comma, which
    `Tokenizer.resplits` would split again, is marked as unused.

    The ids equal those of `tokenizer`, except in rare cases: a capital sigma at
    the end of a word becomes "σ" instead of "ς", since a table does not see
    word ends; letters of compatibility blocks (ª, single Hangul letters) are
    not composed with what follows them; and a number before a comma inside a
    word gets no word mark.
    """
    # Imported late: protobuf refuses code generated for newer versions.
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model_bytes)
    spec = model.normalizer_spec
    spec.name = OWN_RULES
    settings = tokenizer.settings
    spec.precompiled_charsmap = _charsmap(tokenizer.model_bytes, **settings)
    spec.remove_extra_whitespaces = True
    for i in tokenizer.resplits:
        model.pieces[i].type = model.pieces[i].UNUSED
    return model.SerializeToString()


# Cached: a process usually converts models of one vocabulary, and to go through
# all characters takes about a second.
@functools.lru_cache(maxsize=1)
def _charsmap(model: bytes, **settings: bool) -> bytes:
    return _compiled(normalization_rules(model, **settings))


def normalization_rules(model: bytes, **settings: bool) -> dict[str, str]:
    """The replacements of the normalization: text -> replaced text.

    At each position SentencePiece replaces the longest key that matches.

    Args:
        model: a SentencePiece model; its own charsmap comes after `normalize`.
        settings: keyword arguments of `normalize`.
    """
    own_map = sentencepiece.SentencePieceNormalizer(model_proto=model)

    def replaced(texts: Iterable[str]) -> list[str]:
        # As one text, which takes less time than 170,000. The separators also
        # protect white space at the ends, which `normalize` drops.
        joined = _SEPARATOR.join(["", *texts, ""])
        normal = own_map.normalize(normalize(joined, **settings))
        return normal.split(_SEPARATOR)[1:-1]

    characters = [
        character
        for character in map(chr, range(1, sys.maxunicode + 1))
        if unicodedata.category(character) not in _WITHOUT_MEANING
    ]
    rules = dict(zip(characters, replaced(characters), strict=True))
    # Composed sequences, as of Hangul, have another result than their parts.
    sequences = sorted(set().union(*map(_decompositions, characters)))
    for sequence, result in zip(sequences, replaced(sequences), strict=True):
        if result != "".join(rules[part] for part in sequence):
            rules[sequence] = result
    return {text: result for text, result in rules.items() if text != result}


def _decompositions(character: str) -> set[str]:
    """The sequences of 2 or more characters that NFC composes to this one."""
    parts = unicodedata.normalize("NFD", character)
    return {
        unicodedata.normalize("NFC", parts[:count]) + parts[count:]
        for count in range(1, len(parts))
    }


def _compiled(rules: dict[str, str]) -> bytes:
    """Compiles rules to a charsmap, by training a small model with them.

    SentencePiece has no other public function for it.
    """
    from sentencepiece import sentencepiece_model_pb2

    def code_points(text: str) -> str:
        return " ".join(f"{ord(character):X}" for character in text)

    trained = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rules.tsv")
        lines = (
            f"{code_points(a)}\t{code_points(b)}\n" for a, b in rules.items()
        )
        path.write_text("".join(lines))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["any text"]),
            model_writer=trained,
            model_type="char",
            vocab_size=10,
            hard_vocab_limit=False,
            normalization_rule_tsv=str(path),
            num_threads=1,
            minloglevel=2,  # errors only
        )
    model = sentencepiece_model_pb2.ModelProto.FromString(trained.getvalue())
    return model.normalizer_spec.precompiled_charsmap
