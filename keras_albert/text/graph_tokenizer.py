"""`Tokenizer` in a TensorFlow graph, for models that take strings.

Shapes: B texts, S tokens in the longest row.

TensorFlow has its own Unicode operations, but their results depend on the ICU
version and the locale of the server. This graph therefore uses tables, which
are computed with Python when the object is made: the normal form of each code
point, and the pieces that replace a piece ending in digit and comma. The graph
then normalizes exactly as the Python that exported it, including new capitals,
NUL, dotted I and final sigma. Everything except SentencePiece is an operation
of core TensorFlow, and TensorFlow Serving has had all operations since 2.15.

There is one known exception: if two segmentations of a word have the same
probability, SentencePiece in tensorflow-text (0.1.96) may choose another one.

Import this module only where it is needed: it imports TensorFlow.
"""

import copy
import functools
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

from keras_albert.errors import optional_import
from keras_albert.private_apis import keep_vocabulary
from keras_albert.text.graph_characters import (
    Characters,
    boundaries,
    code_points,
    is_member,
    ragged,
    rows_of,
    true_places,
)
from keras_albert.text.normalization import normalize
from keras_albert.text.special_tokens import CLS_ID, PAD_ID, SEP_ID
from keras_albert.text.tokenizer import (
    DEFAULT_MAX_LENGTH,
    Tokenizer,
    check_is_tokenizer,
    check_max_length,
)

tf = optional_import("tensorflow", "export", "tokenizing inside a graph")
# There is no tensorflow-text for Windows.
tensorflow_text = optional_import(
    "tensorflow_text", "export", "tokenizing inside a graph"
)

SIGMA, FINAL_SIGMA, SMALL_SIGMA = 0x3A3, 0x3C2, 0x3C3
# For private use: they have no case, and normalization never changes them.
BETWEEN, HELD = "\ue000", "\ue001"


class GraphTokenizer(tf.Module):
    """`Tokenizer` as TensorFlow operations, with the same ids.

    >>> graph = GraphTokenizer(tokenizer)
    >>> graph.pack(graph(tf.constant(["a text"])), max_length=512)
    """

    def __init__(self, tokenizer: Tokenizer):
        check_is_tokenizer(tokenizer)
        super().__init__(name="graph_tokenizer")
        self._sentencepiece = tensorflow_text.SentencepieceTokenizer(
            model=tokenizer.model_bytes, out_type=tf.int32
        )
        # The name must be unique for each vocabulary: models that are loaded
        # in one process share resources of the same name.
        keep_vocabulary(
            self._sentencepiece,
            tokenizer.model_bytes,
            f"pieces_{tokenizer.fingerprint[:16]}",
        )
        self._lower_case = tokenizer.lower_case
        forms = _changed_code_points(**tokenizer.settings)
        self._normal_forms = Substitution(forms)
        self._resplits = Substitution(tokenizer.resplits)

    def normalize(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalizes UTF-8 strings [B], as `normalization.normalize` does."""
        normal, _ = self.normalize_with_sources(Characters.of(texts))
        return normal.strings()

    def normalize_with_sources(
        self, texts: Characters
    ) -> tuple[Characters, tf.Tensor]:
        """Normalizes texts, as `alignment.normalize_with_sources` does.

        Also returns int32 [N]: the position in `texts` of each character.
        """
        codes, splits, sources = self._normal(*texts)
        return Characters(codes, splits), sources

    # `_normal` and `_flat_ids` are tf.functions, so that a SavedModel holds
    # the tables once and not once for each of its signatures.
    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int32)] * 2, autograph=False
    )
    def _normal(self, codes: tf.Tensor, splits: tf.Tensor) -> tuple:
        words, places = Characters(codes, splits).collapsed()
        index, splits, owners = self._normal_forms.locate(*words)
        codes = self._normal_forms.new_values(index, words.codes)
        if self._lower_case:
            codes = _lower_sigmas(codes, splits)
        return codes, splits, tf.gather(places, owners)

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes strings [B] to int32 ids [B, (S)], without [CLS], [SEP]."""
        return ragged(*self._flat_ids(texts))

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
    )
    def _flat_ids(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ids, splits = self._pieces(self.normalize(texts), tf.int32)
        return self._resplits(ids, splits)

    def _pieces(
        self, normal: tf.Tensor, kind: tf.DType
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids (tf.int32) or strings [N] of pieces, and their row splits."""
        # The copy shares the resource that holds the vocabulary.
        processor = copy.copy(self._sentencepiece)
        processor.out_type = kind
        pieces = processor.tokenize(normal)
        return pieces.values, tf.cast(pieces.row_splits, tf.int32)

    def aligned_pieces(
        self, normal: tf.Tensor, resplit_lengths: "Substitution"
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Tokenizes normalized strings; also returns the length of each piece.

        Returns int32 ids [N]; int32 [N], the number of characters that
        SentencePiece reads as each piece; and row splits, int32 [B + 1].
        `resplit_lengths` comes from `Aligner.resplit_lengths`.
        """
        ids, splits = self._pieces(normal, tf.int32)
        written, _ = self._pieces(normal, tf.string)
        lengths = tf.strings.length(written, unit="UTF8_CHAR")
        index, splits, _ = self._resplits.locate(ids, splits)
        return (
            self._resplits.new_values(index, ids),
            resplit_lengths.new_values(index, lengths),
            splits,
        )

    def pack(
        self,
        a: tf.RaggedTensor,
        b: tf.RaggedTensor | None = None,
        max_length: int = DEFAULT_MAX_LENGTH,
    ) -> dict[str, tf.Tensor]:
        """Packs rows as `Tokenizer.pack` does, padded to the longest one.

        Args:
            a: int32 ids [B, (tokens)] of the first texts.
            b: int32 ids [B, (tokens)] of the second texts, or None.
            max_length: most tokens of a row.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, each int32 [B, S].

        Raises:
            AlbertError: `max_length` leaves no room for a token of each text.
        """
        check_max_length(max_length, pair=b is not None)
        # `end_a` is the position of the [SEP] after a, `end` that of the last
        # [SEP] of the row.
        lengths_a = tf.cast(a.row_lengths(), tf.int32)
        end = end_a = tf.minimum(lengths_a, max_length - 2) + 1  # [B]
        if b is not None:
            lengths_b = tf.cast(b.row_lengths(), tf.int32)
            room = max_length - 3
            keep_a = tf.maximum((room + 1) // 2, room - lengths_b)
            keep_b = tf.maximum(room // 2, room - lengths_a)
            paired = lengths_b > 0  # an empty b is treated as no b
            end_a = tf.where(paired, tf.minimum(lengths_a, keep_a) + 1, end_a)
            end_b = end_a + tf.minimum(lengths_b, keep_b) + 1
            end = tf.where(paired, end_b, end_a)
        # At least [CLS] and [SEP], even if the batch is empty.
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


class Substitution:
    """Replaces values of a ragged tensor by several values, or by none.

    Args:
        replacements: for each value to replace, the values that replace it.
    """

    def __init__(self, replacements: Mapping[int, Sequence[int]]):
        keys = sorted(replacements)
        new = [replacements[key] for key in keys]
        self._lengths = np.array([*map(len, new)], "int32")
        self._starts = np.cumsum(self._lengths, dtype="int32") - self._lengths
        self._new = np.array([value for each in new for value in each], "int32")
        self._keys = np.array(keys, "int32")

    def __call__(
        self, values: tf.Tensor, row_splits: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Replaces int32 values [N]; returns new values and row splits."""
        index, row_splits, _ = self.locate(values, row_splits)
        return self.new_values(index, values), row_splits

    def locate(
        self, values: tf.Tensor, row_splits: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Computes where each new value comes from.

        Returns int32 [M], indices for `new_values`; the new row splits; and
        int32 [M], the index of the old value that each new one replaces.
        """
        places = tf.range(tf.size(values))
        if not len(self._keys):
            return places, row_splits, places
        keys = tf.constant(self._keys)  # a single constant in the graph
        at = tf.searchsorted(keys, values)
        at = tf.minimum(at, len(self._keys) - 1)
        hit = tf.gather(keys, at) == values
        # `new_values` gathers from the replacements, followed by the old
        # values. An old value that is not replaced is gathered from there.
        starts = tf.where(
            hit, tf.gather(self._starts, at), len(self._new) + places
        )
        lengths = tf.where(hit, tf.gather(self._lengths, at), 1)
        ends = starts + lengths
        index = tf.ragged.range(starts, ends, row_splits_dtype="int32")
        return (
            index.values,
            tf.gather(index.row_splits, row_splits),
            rows_of(index.row_splits),
        )

    def new_values(self, index: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """The new values, int32 [M], by an index of `locate` and the old ones.

        The index may come from a `Substitution` with the same keys and lengths.
        """
        return tf.gather(tf.concat([self._new, values], axis=0), index)


def _take(
    rows: tf.RaggedTensor, column: tf.Tensor, wanted: tf.Tensor
) -> tf.Tensor:
    """Gathers rows[i, column] where `wanted`; arbitrary elsewhere: [B, S]."""
    starts = tf.cast(rows.row_starts(), tf.int32)[:, tf.newaxis]
    pool = tf.concat([[PAD_ID], rows.values], axis=0)  # never empty
    return tf.gather(pool, tf.where(wanted, starts + column + 1, 0))


def _lower_sigmas(codes: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
    """Lower-cases capital sigmas, which depends on the letters around them.

    The lower case of a sigma is the final form if, leaving out case-ignorable
    characters such as an apostrophe, the character before it is cased and the
    one after it is not (Unicode 3.13, Final_Sigma).
    """
    cased, ignorable = (is_member(codes, table) for table in _case_classes())
    size = tf.size(codes)
    # Where the characters are that are not ignorable, between two sentinels
    # that are not cased.
    places = tf.concat([[-1], true_places(~ignorable), [size]], axis=0)
    rank = tf.cumsum(tf.cast(~ignorable, tf.int32), exclusive=True)
    before = tf.gather(places, rank)
    # `rank + 1` is the sigma itself, which is not ignorable.
    after = tf.gather(places, tf.minimum(rank + 2, tf.size(places) - 1))
    row = rows_of(row_splits)
    padded_cased = tf.concat([[False], cased, [False]], axis=0)
    padded_row = tf.concat([[-1], row, [-1]], axis=0)

    def cased_at(index):
        same_row = tf.gather(padded_row, index + 1) == row
        return tf.gather(padded_cased, index + 1) & same_row

    final = cased_at(before) & ~cased_at(after)
    small = tf.where(final, FINAL_SIGMA, SMALL_SIGMA)
    return tf.where(codes == SIGMA, small, codes)


@functools.cache
def _changed_code_points(
    lower_case: bool, keep_accents: bool
) -> dict[int, tuple[int, ...]]:
    """The normal form of each code point that `normalize` changes.

    Normalization can be done code point by code point, because marks are
    dropped, so that their canonical reordering has no effect. The only
    exception is capital sigma, which is not lower-cased here; see
    `_lower_sigmas`. White space is left out: it is single spaces by now.
    """
    characters = _characters()
    text = normalize(BETWEEN.join(characters), False, keep_accents)
    if lower_case:
        held = text.replace(chr(SIGMA), HELD).lower()
        text = held.replace(HELD, chr(SIGMA))
    return {
        ord(character): tuple(map(ord, normal))
        for character, normal in zip(
            characters, text.split(BETWEEN), strict=True
        )
        if normal != character
    }


@functools.cache
def _case_classes() -> tuple[np.ndarray, np.ndarray]:
    """Ranges of the cased and of the case-ignorable code points.

    Python has no function for these properties, so they are inferred from how
    it lower-cases a sigma after each code point.
    """
    characters = _characters()

    def final_after(start: str) -> set[int]:
        text = BETWEEN.join(start + c + chr(SIGMA) for c in characters)
        words = text.lower().split(BETWEEN)
        return {
            ord(character)
            for character, word in zip(characters, words, strict=True)
            if word.endswith(chr(FINAL_SIGMA))
        }

    cased = final_after("")
    ignorable = final_after("a") - cased
    return boundaries(sorted(cased)), boundaries(sorted(ignorable))


@functools.cache
def _characters() -> str:
    """All characters that normalization may change, or that have a case.

    White space is left out, and so are unassigned code points and those for
    private use, which are six of seven. The functions above join the others
    to one text, as a call for each would take ten times as long.
    """
    unknown = ("Cn", "Co")  # general categories: unassigned, private use
    return "".join(
        character
        for character in map(chr, code_points())
        if unicodedata.category(character) not in unknown
        and not character.isspace()
    )
