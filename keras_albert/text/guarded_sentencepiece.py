"""The library SentencePiece, imported in a way that cannot end the process.

SentencePiece 0.2 warns about its own types when it is imported. With
`python -W error` that warning becomes an exception inside its C++ code, which
does not expect one: the first tokenizer then ends the process with a
segmentation fault.
"""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import sentencepiece

__all__ = ["sentencepiece"]
