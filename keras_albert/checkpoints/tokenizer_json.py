"""Writes and reads `tokenizer.json` of Hugging Face's tokenizers.

A vocabulary is read from this file where there is no spiece.model: transformers
5 and sentence-transformers do not keep that file.

It is written beside spiece.model, since transformers converts that incorrectly:
it treats the user-defined pieces of SentencePiece, which are "(", ")", "-", "."
and others in the released vocabulary, as words of their own. Most English
sentences then get other ids than those that the model was trained with.
"""

import base64
import itertools
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

from keras_albert.errors import AlbertError
from keras_albert.storage import read_json
from keras_albert.text.special_tokens import (
    CLS_ID,
    MASK_ID,
    SEP_ID,
    SPECIAL_PIECES,
    UNK_ID,
)
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer

# The score of pieces that must never be chosen: others have a higher one.
# Where transformers converts spiece.model, it adds this number to the scores of
# the same pieces, which end in a digit and a comma.
_NEVER = -100.0
# White space of Python that the character map of SentencePiece drops.
_SPACES = r"[\x09-\x0d\x1c-\x1f\x85]"


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """The content of the file tokenizer.json.

    The ids are those of `Tokenizer`, with these exceptions: "<unk>" in a text
    is the special token, as usual in transformers; numbers with several commas
    may be split differently (`Tokenizer.resplits`); and of several equally
    likely segmentations another one may be chosen.
    """
    # Imported late: protobuf refuses code generated for newer versions.
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model_bytes)
    prefix = {
        "type": "Metaspace",
        "replacement": WORD_MARK,
        "prepend_scheme": "always",
    }
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": i,
                    "content": piece,
                    "single_word": False,
                    # [MASK] replaces a word together with the space before it.
                    "lstrip": i == MASK_ID,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for i, piece in enumerate(SPECIAL_PIECES)
            ],
            "normalizer": {
                "type": "Sequence",
                "normalizers": _normalizers(
                    tokenizer, model.normalizer_spec.precompiled_charsmap
                ),
            },
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "WhitespaceSplit"}, prefix],
            },
            "post_processor": _template(),
            "decoder": prefix,
            "model": {
                "type": "Unigram",
                "unk_id": UNK_ID,
                "byte_fallback": False,
                "vocab": [
                    [
                        each.piece,
                        _NEVER if i in tokenizer.resplits else each.score,
                    ]
                    for i, each in enumerate(model.pieces)
                ],
            },
        },
        ensure_ascii=False,
    )


def _normalizers(tokenizer: Tokenizer, charsmap: bytes) -> list[dict]:
    """The steps of `normalization.normalize`, then SentencePiece's map."""
    found = [{"type": "Replace", "pattern": {"Regex": _SPACES}, "content": " "}]
    if not tokenizer.keep_accents:
        # Not StripAccents, which also drops marks that `normalize` keeps:
        # vowel signs of Indic scripts and Thai, what follows an emoji.
        found += [
            {"type": "NFKD"},
            {"type": "Replace", "pattern": {"Regex": _marks()}, "content": ""},
        ]
    if tokenizer.lower_case:
        found.append({"type": "Lowercase"})
    if charsmap:
        encoded = base64.b64encode(charsmap).decode()
        found.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    return found


def _marks() -> str:
    """A regular expression for the marks that `normalize` drops."""
    ranges = []
    for is_mark, characters in itertools.groupby(
        range(sys.maxunicode + 1), lambda i: unicodedata.combining(chr(i)) > 0
    ):
        if is_mark:
            first, *_, last = 2 * [*characters]  # may be a single one
            ranges.append(rf"\x{{{first:04X}}}-\x{{{last:04X}}}")
    return f"[{''.join(ranges)}]"


def _template() -> dict:
    """[CLS] a [SEP], and [CLS] a [SEP] b [SEP] with b as segment 1."""

    def special(i: int, segment: int) -> dict:
        return {"SpecialToken": {"id": SPECIAL_PIECES[i], "type_id": segment}}

    def text(name: str, segment: int) -> dict:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special(CLS_ID, 0), text("A", 0), special(SEP_ID, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), special(SEP_ID, 1)],
        "special_tokens": {
            SPECIAL_PIECES[i]: {
                "id": SPECIAL_PIECES[i],
                "ids": [i],
                "tokens": [SPECIAL_PIECES[i]],
            }
            for i in (CLS_ID, SEP_ID)
        },
    }


def read_tokenizer_json(path: Path) -> Tokenizer | None:
    """The vocabulary of a tokenizer.json, as of SentencePiece.

    Its ids are those of the spiece.model that the file was made from, but for
    numbers with several commas. None if the file has no vocabulary of ALBERT:
    pieces of a unigram model, the first of which are ALBERT's special pieces.

    Raises AlbertError if the file is damaged.
    """
    content = read_json(path)
    try:
        model = content["model"]
        # The type may be left out, and BPE has an object as `vocab`.
        is_unigram = model.get("type", "Unigram") == "Unigram"
        if not is_unigram or isinstance(model["vocab"], dict):
            return None
        pieces = [(str(piece), float(score)) for piece, score in model["vocab"]]
        first = tuple(piece for piece, _ in pieces[: len(SPECIAL_PIECES)])
        if first != SPECIAL_PIECES:
            return None
        steps = [*_steps(content.get("normalizer"))]
        kinds = {step["type"] for step in steps}
        maps = [
            base64.b64decode(step["precompiled_charsmap"], validate=True)
            for step in steps
            if step["type"] == "Precompiled"
        ]
        return Tokenizer.from_bytes(
            _sentencepiece_model(pieces, maps[0] if maps else b""),
            lower_case="Lowercase" in kinds,
            keep_accents=not kinds & {"NFKD", "StripAccents"},
        )
    except AlbertError as error:
        raise AlbertError(_other_content(path, error)) from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise AlbertError(_other_content(path, repr(error))) from None


def _other_content(path: Path, cause: object) -> str:
    return (
        f"{path}: not what Hugging Face's tokenizers write for ALBERT "
        f"({cause}). Copy the file again, or put the vocabulary's spiece.model "
        "beside it."
    )


def _steps(normalizer: dict[str, Any] | None):
    """The steps of a normalizer, of which a Sequence has several."""
    if normalizer is not None and normalizer["type"] == "Sequence":
        for each in normalizer["normalizers"]:
            yield from _steps(each)
    elif normalizer is not None:
        yield normalizer


def _sentencepiece_model(
    pieces: list[tuple[str, float]], charsmap: bytes
) -> bytes:
    """A SentencePiece model of pieces with their scores, serialized."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    kinds = model.SentencePiece.Type
    for i, (piece, score) in enumerate(pieces):
        kind = kinds.CONTROL if i < len(SPECIAL_PIECES) else kinds.NORMAL
        if i == UNK_ID:
            kind = kinds.UNKNOWN
        elif kind == kinds.NORMAL and score == 0:
            kind = kinds.USER_DEFINED  # others have a probability below 1
        elif score < _NEVER and piece[-1:] == ",":  # by transformers
            score -= _NEVER
        model.pieces.add(piece=piece, score=score, type=kind)
    model.normalizer_spec.precompiled_charsmap = charsmap
    return model.SerializeToString()
