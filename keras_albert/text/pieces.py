"""The pieces of a vocabulary: loading, special pieces, ALBERT's two rules.

ALBERT splits pieces of digits and a comma again, and masks whole words, whose
first pieces it recognizes by rules of its own. Both only depend on the pieces.
"""

import json
import string
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_albert.errors import AlbertError
from keras_albert.storage import read_json
from keras_albert.text.guarded_sentencepiece import sentencepiece
from keras_albert.text.normalization import has_mark
from keras_albert.text.special_tokens import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    SPECIAL_PIECES,
    UNK_ID,
)

VOCAB_FILE = "spiece.model"
VOCAB_SETTINGS_FILE = "spiece.json"  # Tokenizer.settings
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"  # of transformers
WORDPIECE_FILE = "vocab.txt"  # of BertTokenizer of transformers
WORD_MARK = "▁"  # U+2581: SentencePiece's mark for a space before a piece
# The reference's list: ASCII punctuation without ' < = >.
_PUNCTUATION = frozenset(string.punctuation) - frozenset("'<=>")


def find_model(path: Path) -> Path:
    """The path of a SentencePiece model: a file, or the one in a folder."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise AlbertError(
            f"{path}: no such file or folder. Expected a SentencePiece .model "
            "file, or the folder that holds it."
        )
    if (path / VOCAB_FILE).is_file():
        return path / VOCAB_FILE
    models = sorted(path.glob("*.model"))
    if len(models) != 1:
        names = ", ".join(file.name for file in models) or "none"
        raise AlbertError(
            f"{path}: expected {VOCAB_FILE}, or exactly one *.model file in "
            f"the folder. Received: {names}. Name the file itself."
        )
    return models[0]


def find_wordpiece(folder: Path) -> str | None:
    """The name of a vocabulary of WordPiece in a folder or its assets."""
    found = [*folder.glob("vocab*.txt"), *folder.glob("assets/vocab*.txt")]
    return found[0].name if found else None


def not_of_sentencepiece(file: str) -> str:
    """The error for a vocabulary of WordPiece, and what to do instead."""
    return (
        f"the vocabulary is one of WordPiece ({file}), as Chinese ALBERTs "
        "have, and only those of SentencePiece are read. The model itself "
        "takes the ids that transformers.BertTokenizer gives: "
        "model({'token_ids': ids})."
    )


def saved_settings(folder: Path) -> dict[str, bool]:
    """The settings of the vocabulary in a folder.

    They are in `spiece.json` of this package, in `tokenizer_config.json` of
    transformers, and else those of the released vocabularies.
    """
    published = {"lower_case": True, "keep_accents": False}
    file = folder / VOCAB_SETTINGS_FILE
    if not file.exists():
        return published | _settings_of_transformers(folder)
    settings = read_json(file)
    if (
        not isinstance(settings, dict)
        or "lower_case" not in settings
        or not settings.keys() <= published.keys()
        or not all(isinstance(value, bool) for value in settings.values())
    ):
        raise AlbertError(
            f"{file}: expected {json.dumps(published)}, with true or false as "
            f"values. Received: {json.dumps(settings)}."
        )
    return published | settings


def warn_of_marks(pieces: Sequence[str], file: Path) -> None:
    """Warns of pieces that no text has without its combining marks.

    Such a vocabulary was made from texts with marks. It does not show whether
    the model was trained with them: the reference removes them whatever the
    vocabulary. So nothing is decided here, unless `spiece.json` has done so.
    """
    if (file.parent / VOCAB_SETTINGS_FILE).exists():
        return
    marked = filter(has_mark, {*"".join(pieces)})
    if (first := min(marked, default=None)) is not None:
        name = unicodedata.name(first, "no name")
        keep = json.dumps({"lower_case": True, "keep_accents": True})
        warnings.warn(
            f"{file}: the vocabulary has accents or vowel signs, such as "
            f"U+{ord(first):04X} ({name}), and they are removed from all "
            "texts. If the model was trained with them, pass "
            f"Tokenizer(..., keep_accents=True), or write {keep} to "
            f"{VOCAB_SETTINGS_FILE} beside the vocabulary. If it was not, set "
            "keep_accents to false there, which ends this warning.",
            stacklevel=3,
        )


def _settings_of_transformers(folder: Path) -> dict[str, bool]:
    file = folder / TOKENIZER_CONFIG_FILE
    if not file.is_file():
        return {}
    settings = read_json(file)
    if not isinstance(settings, dict):
        raise AlbertError(
            f"{file}: expected a JSON object. Received: {settings!r:.60}. Copy "
            "the file again."
        )
    chosen = {}
    for ours, theirs in (
        ("lower_case", "do_lower_case"),
        ("keep_accents", "keep_accents"),
    ):
        if theirs in settings:
            chosen[ours] = settings[theirs]
            if not isinstance(chosen[ours], bool):
                raise AlbertError(
                    f"{file}: `{theirs}` must be true or false. "
                    f"Received: {chosen[ours]!r}."
                )
    return chosen


def load_model(
    model_bytes: bytes, source: str
) -> sentencepiece.SentencePieceProcessor:
    """Loads a model; `source` is its name in error messages."""
    if not isinstance(model_bytes, bytes):
        raise AlbertError(
            "a vocabulary must be the bytes of a .model file. "
            f"Received: {type(model_bytes).__name__}."
        )
    if not model_bytes:
        raise AlbertError(
            f"{source}: the file is empty. Expected a SentencePiece model; "
            "copy it again, or train one with `keras-albert vocab`."
        )
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    except RuntimeError as error:
        raise AlbertError(
            f"{source}: not a SentencePiece model ({error}). Copy it again, or "
            "train one with `keras-albert vocab`."
        ) from None


def check_special_pieces(
    processor: sentencepiece.SentencePieceProcessor,
    pieces: Sequence[str],
    source: str,
) -> None:
    """Raises AlbertError unless the ids 0-4 are ALBERT's special pieces."""
    found = tuple(pieces[: len(SPECIAL_PIECES)])
    # Control symbols are pieces that no text is ever tokenized to.
    control = all(
        processor.is_control(i)
        for i in (PAD_ID, CLS_ID, SEP_ID, MASK_ID)
        if i < len(pieces)
    )
    is_albert = found == SPECIAL_PIECES and processor.is_unknown(UNK_ID)
    if not (is_albert and control):
        kind = "" if control else ", not all of them control symbols"
        raise AlbertError(
            f"{source}: not an ALBERT vocabulary. Expected the control "
            f"symbols {' '.join(SPECIAL_PIECES)} as ids 0-4. Received: "
            f"{' '.join(found)}{kind}. Train one with `keras-albert vocab`."
        )


def digit_comma_resplits(
    processor: sentencepiece.SentencePieceProcessor, pieces: Sequence[str]
) -> dict[int, tuple[int, ...]]:
    """The ids that replace each piece that ends in digit and comma.

    `encode_pieces` of the reference's tokenization.py encodes such a piece
    ("▁2010,") again without its comma and word marks, then appends the comma.
    The result only depends on the piece, so it is a table. A run of unknown
    characters with a comma is no piece and remains one <unk>.

    The second encoding puts a word mark in front ("1990," -> "▁1990" ","). The
    reference intends to remove it if the piece had none, but compares a str
    with the UTF-8 bytes of the mark. In Python 3 these are never equal, so the
    mark is kept: this code does what the reference does.
    """
    return {
        i: (
            *processor.encode(piece[:-1].replace(WORD_MARK, "")),
            processor.piece_to_id(","),
        )
        for i, piece in enumerate(pieces)
        if piece[-1:] == "," and piece[-2:-1].isdigit()
    }


def word_starts(pieces: Sequence[str], keep_accents: bool) -> np.ndarray:
    r"""Whether each piece begins a word: bool [V].

    As in `_is_start_piece_sp` of the reference's create_pretraining_data.py,
    these are the pieces that begin with the word mark or "<", that are one of
    the characters !"#$%&()*+,-./:;?@[\]^_`{|}~, or that have a character that
    is neither one of those nor an English letter. With `keep_accents`, letters
    and marks of any script count as English letters do.
    """
    is_letter = _is_letter if keep_accents else _is_english
    return np.array(
        [
            piece.startswith((WORD_MARK, "<"))
            or piece in _PUNCTUATION
            or not all(c in _PUNCTUATION or is_letter(c) for c in piece)
            for piece in pieces
        ]
    )


def _is_english(character: str) -> bool:
    return character.lower() in string.ascii_lowercase


def _is_letter(character: str) -> bool:
    return character.isalpha() or unicodedata.category(character)[0] == "M"
