"""A vocabulary as `tokenizer.json`, which Hugging Face's tokenizers read.

transformers would make one of spiece.model itself. It then takes the pieces
that SentencePiece calls user-defined, "(", ")", "-", "." and others of the
released vocabulary, for words of their own, and gives most English sentences
other ids than the model was trained with.
"""

import base64
import json

from keras_albert.text.special_tokens import (
    CLS_ID,
    MASK_ID,
    SEP_ID,
    SPECIAL_PIECES,
    UNK_ID,
)
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer

# Less than any text of other pieces: such a piece is never chosen.
_NEVER = -100.0
# White space to Python, which SentencePiece's map would drop.
_SPACES = r"[\x09-\x0d\x1c-\x1f\x85]"


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """The content of the file.

    Ids are those of `Tokenizer`, but that "<unk>" in a text is the special
    token there, as transformers has it; that numbers with several commas may be
    parted elsewhere (`Tokenizer.resplits`); that vowel signs of Indic scripts
    and Thai go with the accents; and that of equally likely parts others may be
    taken.
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
                    "lstrip": i == MASK_ID,  # [MASK] stands for " word"
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
    """`normalization.normalize`, then the map that SentencePiece applies."""
    found = [{"type": "Replace", "pattern": {"Regex": _SPACES}, "content": " "}]
    if not tokenizer.keep_accents:
        found += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if tokenizer.lower_case:
        found.append({"type": "Lowercase"})
    if charsmap:
        found.append(
            {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(charsmap).decode(),
            }
        )
    return found


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
