"""Text normalization before SentencePiece, as published.

The functions equal `preprocess_text` and `convert_to_unicode` of the
reference's tokenization.py. Quotes are not changed: other ALBERT tokenizers
replace `` and '' by ", but the reference does not.

This module only uses the standard library.
"""

import unicodedata

from keras_albert.errors import AlbertError


def to_text(value: str | bytes) -> str:
    r"""Converts a str or UTF-8 bytes to text, without malformed parts.

    Malformed bytes are dropped, and lone surrogates, which UTF-8 lacks.

    >>> to_text(b"caf\xc3\xa9 \xff")
    'café '

    Raises AlbertError if the value is neither str nor bytes.
    """
    if isinstance(value, str):
        if value.isascii():
            return value
        value = value.encode("utf-8", errors="ignore")
    if not isinstance(value, bytes):
        raise AlbertError(
            "a text must be a str or UTF-8 bytes. "
            f"Received: {value!r} ({type(value).__name__})."
        )
    return value.decode("utf-8", errors="ignore")


def has_mark(character: str) -> bool:
    """Whether `normalize` removes a mark of the character, or all of it."""
    parts = unicodedata.normalize("NFKD", character)
    return any(map(unicodedata.combining, parts))


def normalize(
    text: str, lower_case: bool = True, keep_accents: bool = False
) -> str:
    """Collapses white space, decomposes (NFKD), drops marks, lower-cases.

    A mark is a character whose canonical combining class is not 0. As in the
    published code, this is not the Unicode category Mn: some vowel signs are
    kept. `keep_accents` skips the decomposition and keeps marks; SentencePiece
    then composes characters itself (NFKC, with changes of its own).

    >>> normalize("  Ünïcode\\n in  ２０１０ ")
    'unicode in 2010'
    """
    text = " ".join(text.split())
    # ASCII is its own NFKD and has no marks.
    if not (keep_accents or text.isascii()):
        text = unicodedata.normalize("NFKD", text)
        text = "".join(c for c in text if not unicodedata.combining(c))
    return text.lower() if lower_case else text
