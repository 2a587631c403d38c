"""Vocabulary training: text -> spiece.model, with ALBERT's recipe.

The recipe is the one of the reference's README (section "SentencePiece") as
it stands in the released 30k-clean.model: unigram, [CLS] [SEP] [MASK] as
control symbols, and eight characters that always stay pieces of their own.
"""

import io
import re
from collections.abc import Iterator

import sentencepiece

from keras_albert.corpus.config import VocabRun
from keras_albert.corpus.documents import read_files
from keras_albert.errors import AlbertError
from keras_albert.storage import check_free, new_folder
from keras_albert.text.normalization import normalize
from keras_albert.text.special_tokens import (
    CLS_ID,
    PAD_ID,
    SPECIAL_PIECES,
    UNK_ID,
)
from keras_albert.text.tokenizer import Tokenizer

USER_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")

# At most this many lines, drawn by SentencePiece with a fixed seed of its own.
LARGEST_SAMPLE = 10_000_000

# The sums of expectation maximization are split over this many threads, so
# the number is part of the result: it must not follow the machine.
NUM_THREADS = 16

# SentencePiece drops longer lines without a word; paragraphs are often longer
# than its default of 4192 bytes.
LONGEST_LINE_BYTES = 2**30


def train_vocabulary(run: VocabRun) -> Tokenizer:
    """Trains a vocabulary and writes `spiece.model` and `spiece.json`.

    Lines are normalized, and lower-cased unless `run.cased`, as a tokenizer
    does later; blank lines are skipped. The same input gives the same bytes.
    Nothing is written before training has succeeded.

    Raises:
        AlbertError: an input is missing or not UTF-8, there is no text, the
            output is taken, or `vocab_size` does not suit the text.
    """
    check_free(run.output)
    # All of them, so that bad UTF-8 is found before SentencePiece runs.
    if not sum(1 for _ in _lines(run)):
        files = ", ".join(str(path) for path in run.input) or "no file given"
        raise AlbertError(
            f"`input` has no text to train on ({files}). Expected UTF-8 text "
            "files, one sentence or paragraph a line."
        )
    tokenizer = Tokenizer.from_bytes(_train(run), **_settings(run))
    tokenizer.save(new_folder(run.output))
    print(f"{tokenizer.vocab_size:,} pieces -> {run.output}")
    return tokenizer


def _lines(run: VocabRun) -> Iterator[str]:
    for line in read_files(run.input, run.column):
        # The trainer takes NUL for the end of a file and drops lines that
        # hold it.
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
