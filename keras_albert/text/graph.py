"""The tokenizer inside a TensorFlow graph, for models that take strings.

Shapes: B texts, S tokens in the longest row.

Every rule is a table made from the Python side (`normalization`, `Tokenizer`)
when the object is made: what Python does to each code point, and what it does
to each piece that ends in digit and comma. So the graph normalizes with the
Unicode tables and the case rules of the Python that exported it, whatever ICU
version and locale the server has: new capitals, NUL, dotted I and final sigma
included. Everything but SentencePiece itself is an operation of core
TensorFlow, and all of it is linked into TensorFlow Serving since 2.15.

Known exception, the only one: where two segmentations of a word have the same
probability, the two SentencePiece versions (Python's, and 0.1.96 in
tensorflow-text) may choose different ones.

Import this module only to export or to test: it imports TensorFlow.
"""

import functools
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from keras_albert.config import (
    CLS_ID,
    PAD_ID,
    SEP_ID,
    AlbertConfig,
    AlbertError,
)
from keras_albert.text.normalization import normalize
from keras_albert.text.tokenizer import Tokenizer, check_max_length

try:
    import tensorflow as tf
    import tensorflow_text
except ImportError as error:
    raise AlbertError(
        "tensorflow and tensorflow-text are needed to tokenize inside a graph "
        f"({error}). "
        "Run: pip install 'keras-albert[export]'"
    ) from None

SIGMA, FINAL_SIGMA, SMALL_SIGMA = 0x3A3, 0x3C2, 0x3C3


class GraphTokenizer(tf.Module):
    """`Tokenizer` as TensorFlow operations, with the same ids.

    >>> graph = GraphTokenizer(tokenizer)
    >>> graph.pack(graph(tf.constant(["a text"])), max_length=512)
    """

    def __init__(self, tokenizer: Tokenizer):
        if not isinstance(tokenizer, Tokenizer):
            raise AlbertError(
                "`tokenizer` must be a Tokenizer. "
                f"Received: {type(tokenizer).__name__}."
            )
        super().__init__(name="graph_tokenizer")
        self._sentencepiece = tensorflow_text.SentencepieceTokenizer(
            model=tokenizer.model_bytes, out_type=tf.int32
        )
        self._lower_case = tokenizer.lower_case
        self._normal_forms = _Substitution(
            _changed_code_points(**tokenizer.settings)
        )
        self._resplits = _Substitution(tokenizer.resplits)

    def normalize(self, texts: tf.Tensor) -> tf.Tensor:
        """`normalization.normalize` of UTF-8 strings [B], malformed or not."""
        texts = tf.strings.unicode_transcode(
            texts, "UTF-8", "UTF-8", errors="ignore"
        )
        texts = tf.strings.regex_replace(texts, _whitespace() + "+", " ")
        texts = tf.strings.regex_replace(texts, "^ | $", "")
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        values, splits = self._normal_forms(codes.values, codes.row_splits)
        if self._lower_case:
            values = _lower_sigmas(values, splits)
        return tf.strings.unicode_encode(_ragged(values, splits), "UTF-8")

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """`Tokenizer.encode_batch`: strings [B] to int32 ids [B, (S)]."""
        return _ragged(*self._flat_ids(texts))

    # A function of its own, so that a SavedModel holds the tables once for
    # all of its signatures.
    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
    )
    def _flat_ids(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ids = self._sentencepiece.tokenize(self.normalize(texts))
        return self._resplits(ids.values, ids.row_splits)

    def pack(
        self,
        a: tf.RaggedTensor,
        b: tf.RaggedTensor | None = None,
        max_length: int = AlbertConfig.max_position_embeddings,
    ) -> dict[str, tf.Tensor]:
        """`Tokenizer.pack` of every row, padded to the longest one.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, each int32 [B, S].

        Raises:
            AlbertError: `max_length` leaves no room for a token of each text.
        """
        check_max_length(max_length, pair=b is not None)
        # end_a: where the [SEP] of a stands; end: the last [SEP] of the row.
        lengths_a = tf.cast(a.row_lengths(), tf.int32)
        end = end_a = tf.minimum(lengths_a, max_length - 2) + 1  # [B]
        if b is not None:
            lengths_b = tf.cast(b.row_lengths(), tf.int32)
            room = max_length - 3
            keep_a = tf.maximum((room + 1) // 2, room - lengths_b)
            keep_b = tf.maximum(room // 2, room - lengths_a)
            paired = lengths_b > 0  # an empty b makes a single
            end_a = tf.where(paired, tf.minimum(lengths_a, keep_a) + 1, end_a)
            end_b = end_a + tf.minimum(lengths_b, keep_b) + 1
            end = tf.where(paired, end_b, end_a)
        # Room for [CLS] and [SEP] even in a batch without a row.
        width = tf.reduce_max(tf.concat([end + 1, [2]], axis=0))
        position = tf.range(width)[tf.newaxis, :]  # [1, S]
        end_a, end = end_a[:, tf.newaxis], end[:, tf.newaxis]  # [B, 1]

        is_a = (position > 0) & (position < end_a)  # [B, S]
        is_sep = (position == end_a) | (position == end)
        token_ids = tf.where(is_sep, SEP_ID, PAD_ID)
        token_ids = tf.where(position == 0, CLS_ID, token_ids)
        token_ids = tf.where(is_a, _take(a, position - 1, is_a), token_ids)
        if b is not None:
            is_b = (position > end_a) & (position < end)
            from_b = _take(b, position - end_a - 1, is_b)
            token_ids = tf.where(is_b, from_b, token_ids)
        segment_ids = (position > end_a) & (position <= end)
        return {
            "token_ids": token_ids,
            "segment_ids": tf.cast(segment_ids, tf.int32),
            "padding_mask": tf.cast(position <= end, tf.int32),
        }


class _Substitution:
    """Replaces some values of a ragged tensor by several, or none.

    Args:
        replacements: value -> the values that take its place.
    """

    def __init__(self, replacements: Mapping[int, Sequence[int]]):
        keys = sorted(replacements)
        self._lengths = np.array(
            [len(replacements[key]) for key in keys], "int32"
        )
        self._starts = np.cumsum(self._lengths, dtype="int32") - self._lengths
        self._new = np.array(
            [value for key in keys for value in replacements[key]], "int32"
        )
        self._keys = np.array(keys, "int32")

    def __call__(
        self, values: tf.Tensor, row_splits: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """int32 values [N] and int64 row splits [B + 1], to new ones."""
        if not len(self._keys):
            return values, row_splits
        at = tf.searchsorted(self._keys, values)
        at = tf.minimum(at, len(self._keys) - 1)
        hit = tf.gather(self._keys, at) == values
        # Other values stand behind the replacements in the pool, once each.
        itself = len(self._new) + tf.range(tf.size(values))
        starts = tf.where(hit, tf.gather(self._starts, at), itself)
        lengths = tf.where(hit, tf.gather(self._lengths, at), 1)
        index = tf.ragged.range(
            starts, starts + lengths, row_splits_dtype="int64"
        )
        pool = tf.concat([self._new, values], axis=0)
        return (
            tf.gather(pool, index.values),
            tf.gather(index.row_splits, row_splits),
        )


def _ragged(values: tf.Tensor, row_splits: tf.Tensor) -> tf.RaggedTensor:
    # Validation would add assertions to the graph for what holds by
    # construction.
    return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)


def _take(
    rows: tf.RaggedTensor, column: tf.Tensor, wanted: tf.Tensor
) -> tf.Tensor:
    """rows[i, column] where `wanted`, anything elsewhere; int32 [B, S]."""
    starts = tf.cast(rows.row_starts(), tf.int32)[:, tf.newaxis]
    pool = tf.concat([[PAD_ID], rows.values], axis=0)  # never empty
    return tf.gather(pool, tf.where(wanted, starts + column + 1, 0))


def _lower_sigmas(codes: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
    """Lower-cases capital sigmas, the one letter whose form has a context.

    A sigma is final if the nearest character before it that is not
    case-ignorable (an apostrophe, say) is cased and the nearest one after it
    is not (Unicode 3.13, Final_Sigma).
    """
    cased, ignorable = (_member(codes, table) for table in _case_classes())
    size = tf.size(codes)
    # Characters that count, between two sentinels that are not cased.
    counts = tf.cast(tf.where(~ignorable)[:, 0], tf.int32)
    counts = tf.concat([[-1], counts, [size]], axis=0)
    rank = tf.cumsum(tf.cast(~ignorable, tf.int32), exclusive=True)
    before = tf.gather(counts, rank)
    # `rank + 1` is the character itself if it counts: a sigma does.
    after = tf.gather(counts, tf.minimum(rank + 2, tf.size(counts) - 1))
    row = tf.ragged.row_splits_to_segment_ids(row_splits)
    padded_cased = tf.concat([[False], cased, [False]], axis=0)
    padded_row = tf.concat([[-1], row, [-1]], axis=0)

    def cased_at(index):
        same_row = tf.gather(padded_row, index + 1) == row
        return tf.gather(padded_cased, index + 1) & same_row

    final = cased_at(before) & ~cased_at(after)
    small = tf.where(final, FINAL_SIGMA, SMALL_SIGMA)
    return tf.where(codes == SIGMA, small, codes)


def _member(codes: tf.Tensor, ranges: np.ndarray) -> tf.Tensor:
    """Which codes lie in sorted [first, past) ranges, flattened."""
    return tf.searchsorted(ranges, codes, side="right") % 2 == 1


def _code_points() -> Sequence[int]:
    return [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]


@functools.cache
def _changed_code_points(
    lower_case: bool, keep_accents: bool
) -> dict[int, tuple[int, ...]]:
    """What `normalize` makes of single code points, where it changes them.

    Marks vanish, so canonical reordering cannot show and normalization is
    free of context, but for capital sigma, which stays as it is here.
    Whitespace inside a text is single spaces by then and stays.
    """
    changed = {}
    for code in _code_points():
        character = chr(code)
        if character.isspace():
            continue
        normal = normalize(character, False, keep_accents)
        if lower_case:
            normal = "".join(
                c if c == chr(SIGMA) else c.lower() for c in normal
            )
        if normal != character:
            changed[code] = tuple(map(ord, normal))
    return changed


@functools.cache
def _case_classes() -> tuple[np.ndarray, np.ndarray]:
    """Ranges of the cased and of the case-ignorable code points.

    Python does not show these properties, but its handling of sigma does.
    """
    sigma = chr(SIGMA)
    cased, ignorable = [], []
    for code in _code_points():
        character = chr(code)
        if (character + sigma).lower()[-1] == chr(FINAL_SIGMA):
            cased.append(code)
        elif ("a" + character + sigma).lower()[-1] == chr(FINAL_SIGMA):
            ignorable.append(code)
    return _boundaries(cased), _boundaries(ignorable)


def _boundaries(codes: list[int]) -> np.ndarray:
    """[first, past, first, past, ...] of the runs in sorted codes."""
    codes = np.array(codes, "int32")
    breaks = np.flatnonzero(np.diff(codes) != 1)
    first = codes[np.concatenate([[0], breaks + 1])]
    past = codes[np.concatenate([breaks, [len(codes) - 1]])] + 1
    return np.stack([first, past], axis=1).ravel()


@functools.cache
def _whitespace() -> str:
    """A class of RE2 that matches what Python's `str.split` splits at."""
    spaces = [chr(code) for code in _code_points() if chr(code).isspace()]
    return "[" + "".join(rf"\x{{{ord(c):x}}}" for c in spaces) + "]"
