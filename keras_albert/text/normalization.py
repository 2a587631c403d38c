"""Text normalization, as published: str or bytes -> the str that is tokenized.

Equals `preprocess_text` and `convert_to_unicode` of the reference's
tokenization.py. Quotes are left alone: rewriting `` and '' to " is a habit of
other ALBERT tokenizers, not of the reference.

Standard library only.
"""

import unicodedata

from keras_albert.errors import AlbertError


def to_text(value: str | bytes) -> str:
    r"""The text of a str, or of UTF-8 bytes without their malformed parts.

    Lone surrogates, which no UTF-8 file can hold, are dropped from a str in
    the same way.

    >>> to_text(b"caf\xc3\xa9 \xff")
    'café '

    Raises:
        AlbertError: neither str nor bytes.
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


def normalize(
    text: str, lower_case: bool = True, keep_accents: bool = False
) -> str:
    """Collapses whitespace, decomposes (NFKD), drops marks, lower-cases.

    A mark is a character whose canonical combining class is not 0. That is
    not the Unicode category Mn: some vowel signs are kept, as published.
    `keep_accents` leaves out decomposing and dropping: SentencePiece composes
    (NFKC, with its own changes) by itself.

    >>> normalize("  Ünïcode\\n in  ２０１０ ")
    'unicode in 2010'
    """
    text = " ".join(text.split())
    # ASCII is its own NFKD and has no marks.
    if not (keep_accents or text.isascii()):
        text = unicodedata.normalize("NFKD", text)
        text = "".join(c for c in text if not unicodedata.combining(c))
    return text.lower() if lower_case else text
