"""Trains a SentencePiece vocabulary with ALBERT's settings.

The settings are those of the reference's README (section "SentencePiece"), as
found in the released 30k-clean.model: a unigram model, [CLS] [SEP] [MASK] as
control symbols, and eight characters that are always pieces.
"""

import contextlib
import io
import re
from collections.abc import Iterator

from keras_albert.corpus.config import VocabRun
from keras_albert.corpus.documents import read_files
from keras_albert.errors import AlbertError
from keras_albert.storage import check_free, new_folder, remove_folder
from keras_albert.text.guarded_sentencepiece import sentencepiece
from keras_albert.text.normalization import normalize
from keras_albert.text.special_tokens import (
    CLS_ID,
    PAD_ID,
    SPECIAL_PIECES,
    UNK_ID,
)
from keras_albert.text.tokenizer import Tokenizer

USER_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")

# SentencePiece trains on a random sample of so many lines, with a fixed seed.
LARGEST_SAMPLE = 10_000_000

# Expectation maximization sums over this many threads. The number affects the
# rounding, and so the vocabulary: it must not depend on the machine.
NUM_THREADS = 16

# Longer lines are silently dropped; paragraphs often exceed the default, 4192.
LONGEST_LINE_BYTES = 2**30


def train_vocabulary(run: VocabRun) -> Tokenizer:
    """Trains a vocabulary and writes `spiece.model` and `spiece.json`.

    Lines are normalized as by `Tokenizer`, and lower-cased unless `run.cased`;
    blank lines are skipped. The same input gives the same bytes.

    Raises AlbertError if an input is missing or not UTF-8, there is no text,
    the output folder is not empty, or `vocab_size` does not fit the text.
    """
    check_free(run.output)
    # All lines are read, so that bad UTF-8 is found before SentencePiece runs.
    if not sum(1 for _ in _lines(run)):
        files = ", ".join(str(path) for path in run.input)
        raise AlbertError(
            f"`input` has no text to train on ({files}). Expected UTF-8 text "
            "files, one sentence or paragraph a line."
        )
    # Made before the training, which would be lost if that were not possible.
    folder = new_folder(run.output)
    try:
        tokenizer = Tokenizer.from_bytes(_train(run), **_settings(run))
        check_free(folder)  # another run may have written to it meanwhile
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()  # unless another run has written to it
        raise
    try:
        tokenizer.save(folder)
    except BaseException:
        remove_folder(folder)  # so that the same command can be given again
        raise
    print(f"{tokenizer.vocab_size:,} pieces -> {run.output}")
    return tokenizer


def _lines(run: VocabRun) -> Iterator[str]:
    for line in read_files(run.input, run.column):
        # The trainer treats NUL as the end of a file and drops such lines.
        text = normalize(line.replace("\0", " "), **_settings(run))
        if text.strip():
            yield text


def _settings(run: VocabRun) -> dict[str, bool]:
    return {"lower_case": not run.cased, "keep_accents": run.keep_accents}


def _train(run: VocabRun) -> bytes:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(run),
            model_writer=model,
            model_type="unigram",
            vocab_size=run.vocab_size,
            character_coverage=run.character_coverage,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(SPECIAL_PIECES[CLS_ID:]),
            user_defined_symbols=list(USER_SYMBOLS),
            input_sentence_size=LARGEST_SAMPLE,
            shuffle_input_sentence=True,
            max_sentence_length=LONGEST_LINE_BYTES,
            num_threads=NUM_THREADS,
            minloglevel=2,  # errors only
        )
    except RuntimeError as error:
        raise _explained(error, run) from None
    return model.getvalue()


def _explained(error: RuntimeError, run: VocabRun) -> AlbertError:
    message = str(error)
    largest = re.search(r"too high.*value <= (\d+)", message)
    if largest:
        return AlbertError(
            f"`vocab_size` is too large for this text. Received: vocab_size="
            f"{run.vocab_size}. Pass at most {largest[1]}, or more text."
        )
    smallest = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if smallest:
        return AlbertError(
            "`vocab_size` is too small for the characters of this text. "
            f"Received: vocab_size={run.vocab_size}. Pass at least "
            f"{smallest[1]}, or lower `character_coverage`."
        )
    return AlbertError(f"SentencePiece could not train on this text: {message}")
