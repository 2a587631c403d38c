"""Tokenizer: SentencePiece with ALBERT's normalization and special rules.

Shapes: B texts in a batch, S tokens in the longest of them, V pieces in the
vocabulary.

graph_tokenizer.py has the same tokenizer in a TensorFlow graph, for serving. It
computes its tables from a `Tokenizer`, so that both follow the same rules.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from keras_albert.errors import AlbertError, is_whole
from keras_albert.storage import check_not_a_file, local_path, replacing
from keras_albert.text import normalization
from keras_albert.text.pieces import (
    VOCAB_FILE as VOCAB_FILE,
    VOCAB_SETTINGS_FILE,
    WORD_MARK as WORD_MARK,
    check_special_pieces,
    digit_comma_resplits,
    find_model,
    load_model,
    saved_settings,
    warn_of_marks,
    word_starts,
)
from keras_albert.text.special_tokens import CLS_ID, PAD_ID, SEP_ID

DEFAULT_MAX_LENGTH = 512  # tokens; number of positions of released models
# The shortest rows: the special tokens, and one token of each text.
SHORTEST_SINGLE, SHORTEST_PAIR = 3, 5


class Tokenizer:
    """Converts texts to ALBERT token ids.

    Args:
        path: a SentencePiece `.model` file, or a folder that holds
            `spiece.model` or exactly one `*.model` file.
        lower_case: whether to lower-case texts. None reads `spiece.json` or,
            without it, `tokenizer_config.json` of transformers beside the
            model file; without both it is True, as released.
        keep_accents: whether to keep combining marks, and to recognize words of
            any script in n-gram masking. None reads the same files; without
            both it is False, as published, with a warning if the vocabulary
            has pieces with marks. If marks are kept, letters that only
            SentencePiece takes out of a character stay upper case, such as the
            T and M of a trade mark sign; transformers does the same.

    Raises:
        AlbertError: the file does not exist, is not a SentencePiece model, or
            its ids 0-4 are not ALBERT's special pieces.
    """

    def __init__(
        self,
        path: str | Path,
        lower_case: bool | None = None,
        keep_accents: bool | None = None,
    ):
        if not isinstance(path, str | os.PathLike):
            raise AlbertError(
                "`path` must be a path: of a SentencePiece .model file, or of "
                f"the folder that holds it. Received: {path!r:.60}."
            )
        file = find_model(local_path(path))
        saved = saved_settings(file.parent)
        self._load(
            file.read_bytes(),
            saved["lower_case"] if lower_case is None else lower_case,
            saved["keep_accents"] if keep_accents is None else keep_accents,
            str(file),
        )
        if keep_accents is None and not self.keep_accents:
            warn_of_marks(self._pieces, file)

    @classmethod
    def from_bytes(
        cls,
        model_bytes: bytes,
        lower_case: bool = True,
        keep_accents: bool = False,
    ) -> "Tokenizer":
        """Makes a tokenizer from the content of a `.model` file.

        Raises AlbertError if it is no vocabulary of SentencePiece, or lacks
        ALBERT's special pieces.
        """
        tokenizer = cls.__new__(cls)
        tokenizer._load(model_bytes, lower_case, keep_accents, "the vocabulary")
        return tokenizer

    def _load(
        self,
        model_bytes: bytes,
        lower_case: bool,
        keep_accents: bool,
        source: str,
    ) -> None:
        self.lower_case = lower_case
        self.keep_accents = keep_accents
        for name, value in self.settings.items():
            if type(value) is not bool:
                raise AlbertError(
                    f"`{name}` must be True or False; only Tokenizer(path) "
                    "takes None, which reads the setting from a file. "
                    f"Received: {name}={value!r}."
                )
        self.model_bytes = model_bytes
        self._processor = load_model(model_bytes, source)
        self.vocab_size: int = self._processor.vocab_size()
        self._pieces: list[str] = self._processor.id_to_piece(
            list(range(self.vocab_size))
        )
        check_special_pieces(self._processor, self._pieces, source)
        self.resplits = digit_comma_resplits(self._processor, self._pieces)

    def __repr__(self) -> str:
        """The size of the vocabulary and the settings."""
        settings = ", ".join(f"{k}={v}" for k, v in self.settings.items())
        return f"<Tokenizer pieces={self.vocab_size:,}, {settings}>"

    @property
    def settings(self) -> dict[str, bool]:
        """The settings of the normalization, as `spiece.json` stores them."""
        return {
            "lower_case": self.lower_case,
            "keep_accents": self.keep_accents,
        }

    def _prepare(self, text: str | bytes, normalize: bool) -> str:
        text = normalization.to_text(text)
        if not normalize:
            return text
        return normalization.normalize(text, **self.settings)

    def _resplit(self, ids: list[int]) -> list[int]:
        if self.resplits.keys().isdisjoint(ids):
            return ids
        return [new for i in ids for new in self.resplits.get(i, (i,))]

    def tokenize(self, text: str | bytes, normalize: bool = True) -> list[str]:
        """The pieces of a text; unknown characters appear as in the text.

        Args:
            text: str or UTF-8 bytes; malformed bytes are ignored.
            normalize: whether to call `normalization.normalize`, which the
                reference's `FullTokenizer.tokenize` does not.
        """
        text = self._prepare(text, normalize)
        pieces = self._processor.encode(text, out_type=str)
        ids = self._processor.encode(text)
        result = []
        for piece, i in zip(pieces, ids, strict=True):
            if i in self.resplits:
                result += (self._pieces[new] for new in self.resplits[i])
            else:
                result.append(piece)
        return result

    def encode(self, text: str | bytes, normalize: bool = True) -> list[int]:
        """The ids of a text, without [CLS] and [SEP]; see `tokenize`.

        "[CLS]" is tokenized like other text: the ids 0, 2, 3, 4 never appear.
        """
        text = self._prepare(text, normalize)
        return self._resplit(self._processor.encode(text))

    def encode_batch(
        self,
        texts: Iterable[str | bytes],
        normalize: bool = True,
        num_threads: int = -1,
    ) -> list[list[int]]:
        """Calls `encode` for each text, with several threads.

        Args:
            texts: a list of texts; a str or bytes raises AlbertError.
            normalize: see `tokenize`.
            num_threads: number of threads; -1 for as many as there are cores.
        """
        check_batch("texts", texts)
        batch = [self._prepare(text, normalize) for text in texts]
        encoded = self._processor.encode(batch, num_threads=num_threads)
        return [self._resplit(ids) for ids in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special pieces are omitted, <unk> becomes " ⁇ ".

        Raises AlbertError if an id is not in [0, V).
        """
        if not hasattr(ids, "__iter__"):
            raise AlbertError(
                f"`ids` must be a list of token ids. Received: {ids!r:.60}. "
                "Put a single id in a list."
            )
        return self._processor.decode([self._checked(i) for i in ids])

    def id_to_piece(self, token_id: int) -> str:
        """The piece of an id; raises AlbertError if it is not in [0, V)."""
        return self._pieces[self._checked(token_id)]

    def piece_to_id(self, piece: str) -> int:
        """The id of a piece; the id of <unk> if there is no such piece."""
        return self._processor.piece_to_id(piece)

    def _checked(self, token_id: int) -> int:
        is_integer = isinstance(token_id, int | np.integer)
        if not is_integer or not 0 <= token_id < self.vocab_size:
            raise AlbertError(
                f"a token id must be an integer in [0, {self.vocab_size}). "
                f"Received: {token_id!r}."
            )
        return int(token_id)

    def pack(
        self,
        a_ids: Sequence[int],
        b_ids: Sequence[int] | None = None,
        max_length: int = DEFAULT_MAX_LENGTH,
    ) -> tuple[list[int], list[int]]:
        """Packs ids as `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

        If a pair exceeds `max_length` tokens, tokens are removed from the end
        of the longer text until it fits, or of b if both are equally long.
        This is `_truncate_seq_pair` of the reference's classifier_utils.py,
        which also treats an empty b as no b.

        Returns:
            token_ids and segment_ids; segment 1 is b and the [SEP] after it.

        Raises:
            AlbertError: `max_length` leaves no room for a token of each text.
        """
        check_max_length(max_length, pair=b_ids is not None)
        if b_ids is None or not len(b_ids):  # which may be an array
            a_ids = a_ids[: max_length - 2]
            return [CLS_ID, *a_ids, SEP_ID], [0] * (len(a_ids) + 2)
        room = max_length - 3
        keep_a, keep_b = truncated_lengths(len(a_ids), len(b_ids), room)
        a_ids, b_ids = a_ids[:keep_a], b_ids[:keep_b]
        return (
            [CLS_ID, *a_ids, SEP_ID, *b_ids, SEP_ID],
            [0] * (len(a_ids) + 2) + [1] * (len(b_ids) + 1),
        )

    def __call__(
        self,
        texts: Sequence[str | bytes],
        pairs: Sequence[str | bytes] | None = None,
        max_length: int = DEFAULT_MAX_LENGTH,
        pad_to: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Tokenizes texts to a batch of inputs of a model.

        Args:
            texts: B texts.
            pairs: B second texts, for tasks on pairs of texts.
            max_length: most tokens of a row; longer texts are cut off.
            pad_to: S; if None, the length of the longest row of this batch.

        Returns:
            `token_ids`, `segment_ids` and `padding_mask` (1 for tokens, 0 for
            padding), each int32 [B, S].

        Raises:
            AlbertError: `texts` is a single text, the numbers of texts and
                pairs differ, `max_length` leaves no room for a piece of each
                text, or `pad_to` is less than `max_length`.
        """
        check_max_length(max_length, pair=pairs is not None)
        is_length = is_whole(pad_to) and pad_to >= max_length
        if pad_to is not None and not is_length:
            raise AlbertError(
                "`pad_to` must be an integer, not below `max_length`. "
                "Received: "
                f"pad_to={pad_to!r}, max_length={max_length}. "
                f"Pass max_length={pad_to} to cut texts to that length."
            )
        texts, pairs = (
            list(each) if isinstance(each, Iterator) else each
            for each in (texts, pairs)
        )
        check_texts(texts, pairs)
        rows_a = self.encode_batch(texts)
        rows_b = [None] * len(rows_a)
        if pairs is not None:
            rows_b = self.encode_batch(pairs)
        rows = [
            self.pack(a, b, max_length)
            for a, b in zip(rows_a, rows_b, strict=True)
        ]
        return self.pad(rows, pad_to)

    def pad(
        self,
        rows: Sequence[tuple[list[int], list[int]]],
        length: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Pads results of `pack` to the arrays that `__call__` returns.

        Args:
            rows: B pairs of token_ids and segment_ids.
            length: S; if None, the length of the longest row.

        Raises:
            AlbertError: a row is longer than `length`.
        """
        longest = max((len(tokens) for tokens, _ in rows), default=2)
        if length is None:
            length = longest
        if not is_whole(length) or length < longest:
            raise AlbertError(
                "`length` must be an integer, at least that of the longest "
                f"row, {longest}. Received: length={length!r}. Cut the rows: "
                "pack(ids, max_length=length)."
            )
        shape = (len(rows), length)
        token_ids = np.full(shape, PAD_ID, "int32")
        segment_ids = np.zeros(shape, "int32")
        padding_mask = np.zeros(shape, "int32")
        for row, (tokens, segments) in enumerate(rows):
            token_ids[row, : len(tokens)] = tokens
            segment_ids[row, : len(tokens)] = segments
            padding_mask[row, : len(tokens)] = 1
        return {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": padding_mask,
        }

    @functools.cached_property
    def word_starts(self) -> np.ndarray:
        """Whether each piece begins a word, bool [V], for n-gram masking."""
        return word_starts(self._pieces, self.keep_accents)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the model file, in hexadecimal."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    def difference_from(self, other: "Tokenizer") -> str | None:
        """How this tokenizer differs from another one, for a message.

        Returns None if both produce the same tokens.
        """
        if self.fingerprint != other.fingerprint:
            return "other pieces"
        for name, value in other.settings.items():
            if self.settings[name] != value:
                return f"{name}={self.settings[name]} instead of {value}"
        return None

    def save(self, folder: str | Path) -> None:
        """Writes `spiece.model` and `spiece.json`; creates the folder."""
        folder = local_path(folder)
        check_not_a_file(folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings = json.dumps(self.settings, indent=2) + "\n"
        # The settings come first: if the process ends in between, a vocabulary
        # without settings would be read as a released one.
        contents = {
            VOCAB_SETTINGS_FILE: settings.encode(),
            VOCAB_FILE: self.model_bytes,
        }
        for name, content in contents.items():
            with replacing(folder / name) as unfinished:
                unfinished.write_bytes(content)


def truncated_lengths(a, b, room):
    """The lengths of the texts of a pair after truncation to `room` tokens.

    Tokens are removed one at a time from the longer text, or from b if both are
    equally long. The lengths may be arrays. Example: 7 and 4 tokens become 3
    and 2 for a `room` of 5.
    """
    return (
        np.minimum(a, np.maximum((room + 1) // 2, room - b)),
        np.minimum(b, np.maximum(room // 2, room - a)),
    )


def check_is_tokenizer(tokenizer) -> None:
    """Raises AlbertError unless `tokenizer` is a Tokenizer."""
    if not isinstance(tokenizer, Tokenizer):
        raise AlbertError(
            f"`tokenizer` must be a Tokenizer: Tokenizer({VOCAB_FILE!r}). "
            f"Received: {type(tokenizer).__name__}."
        )


def check_max_length(
    max_length: int, pair: bool, name: str = "max_length"
) -> None:
    """Raises AlbertError if a row cannot hold one token of each text."""
    shortest = SHORTEST_PAIR if pair else SHORTEST_SINGLE
    if not is_whole(max_length) or max_length < shortest:
        raise AlbertError(
            f"`{name}` must be an integer, at least {shortest} for "
            f"{'pairs' if pair else 'single texts'}. "
            f"Received: {name}={max_length!r}."
        )


def check_batch(name: str, texts: Iterable[str | bytes]) -> None:
    """Raises AlbertError unless `texts` is a collection of texts."""
    # Iterating over a dict or a frame would give its keys.
    if hasattr(texts, "columns") or isinstance(texts, dict):
        raise AlbertError(
            f"`{name}` must be a list of texts. Received: "
            f"{type(texts).__name__}. Give one of its columns."
        )
    if isinstance(texts, set | frozenset):  # without an order of the results
        raise AlbertError(
            f"`{name}` must be a list of texts. Received: a set. Give "
            f"sorted({name}), or a list."
        )
    if isinstance(texts, str | bytes) or not hasattr(texts, "__iter__"):
        raise AlbertError(
            f"`{name}` must be a list of texts. Received: {texts!r:.60}. "
            "Put a single text in a list: [text]."
        )


def check_texts(texts, pairs) -> None:
    """Raises AlbertError unless texts and pairs (or None) are equally many."""
    check_batch("texts", texts)
    if pairs is None:
        return
    check_batch("pairs", pairs)
    if len(texts) != len(pairs):
        raise AlbertError(
            "`texts` and `pairs` must be equally many. Received: "
            f"{len(texts)} texts, {len(pairs)} pairs."
        )
