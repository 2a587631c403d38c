"""`keras_albert.text.alignment` in a TensorFlow graph, with equal results.

Shapes: B texts of N characters, P pieces, W characters that SentencePiece
reads; N, P and W are totals over all texts.

Python's SentencePiece returns an offset for each character, but the operation
of tensorflow-text only returns offsets for pieces. To get the offset of each
character, a second SentencePiece model tokenizes the same normalized text. It
has the same character map but no vocabulary except single bytes (byte
fallback), so that each of its pieces is a byte of one character.

Import this module only to export or to test: it imports TensorFlow.
"""

import functools
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text

from keras_albert.private_apis import keep_vocabulary
from keras_albert.text.alignment import Aligner
from keras_albert.text.graph_characters import (
    SPACE,
    Characters,
    boundaries,
    code_points,
    count_before,
    is_member,
    next_true,
    ragged,
    rows_of,
)
from keras_albert.text.graph_tokenizer import GraphTokenizer, Substitution
from keras_albert.text.guarded_sentencepiece import sentencepiece
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer

_BYTES = 256
# UTF-8 needs one more byte from each of these code points on.
_LONGER_FROM = (0x80, 0x800, 0x10000)


class GraphPieces(NamedTuple):
    """The pieces of texts; positions are counted as in `Characters`."""

    ids: tf.RaggedTensor
    """int32 [B, (P)]"""
    starts: tf.Tensor
    """int32 [P], position of the first character of each piece"""
    ends: tf.Tensor
    """int32 [P], position after the last character of each piece"""


class GraphAligner(tf.Module):
    """`Aligner` as TensorFlow operations.

    >>> texts = Characters.of(tf.constant(["The Café"]))
    >>> GraphAligner(tokenizer, GraphTokenizer(tokenizer))(texts).starts
    [0, 3]
    """

    def __init__(self, tokenizer: Tokenizer, graph: GraphTokenizer):
        super().__init__(name="graph_aligner")
        self._graph = graph
        lengths = Aligner(tokenizer).resplit_lengths()
        self._resplit_lengths = Substitution(lengths)
        self._invisible = boundaries(_invisible(tokenizer.model_bytes))
        model, user_defined = _model_of_bytes(tokenizer.model_bytes)
        self._user_defined = Substitution(user_defined)
        self._sentencepiece = tensorflow_text.SentencepieceTokenizer(
            model=model, out_type=tf.int32
        )
        # Unique for each vocabulary; see `GraphTokenizer`.
        name = f"bytes_{tokenizer.fingerprint[:16]}"
        keep_vocabulary(self._sentencepiece, model, name)

    def __call__(self, texts: Characters) -> GraphPieces:
        """Tokenizes the texts."""
        normal, sources = self._graph.normalize_with_sources(texts)
        strings = normal.strings()
        starts, ends = self._character_spans(texts, normal, sources, strings)
        ids, lengths, splits = self._graph.aligned_pieces(
            strings, self._resplit_lengths
        )
        after = tf.cumsum(lengths)
        first = after - lengths
        # One more element, as a gather from an empty tensor is an error. The
        # result does not depend on its value.
        starts, ends = (tf.concat([x, [0]], axis=0) for x in (starts, ends))
        piece_starts = tf.gather(starts, first)
        # A word mark without a character has an empty span, at its start or at
        # the end of the previous piece.
        before = tf.gather(ends, tf.maximum(after - 1, 0))
        is_first = tf.range(tf.size(ids)) == tf.gather(splits, rows_of(splits))
        own = (lengths > 0) | ~is_first
        piece_ends = tf.where(
            lengths > 0,
            before,
            tf.where(own, tf.maximum(piece_starts, before), piece_starts),
        )
        return GraphPieces(ragged(ids, splits), piece_starts, piece_ends)

    def _written(
        self, normal: Characters, strings: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The characters that SentencePiece reads after its own normalization.

        Returns bool [W], whether each is a word mark; int32 [W], the position
        in `normal` that it comes from; int32 [B + 1], row splits of the W
        characters; and int32 [B], the position in `normal` at which the last
        character of each text ends.
        """
        ids, starts, ends = self._sentencepiece.tokenize_with_offsets(strings)
        splits = tf.cast(ids.row_splits, tf.int32)
        index, splits, owners = self._user_defined.locate(ids.values, splits)
        values = self._user_defined.new_values(index, ids.values)
        # The byte position of each character, over all texts, to convert the
        # byte offsets of SentencePiece to positions of characters.
        size = 1 + sum(
            tf.cast(normal.codes >= code, tf.int32) for code in _LONGER_FROM
        )
        byte_starts = tf.concat([[0], tf.cumsum(size)], axis=0)  # [N + 1]
        base = tf.gather(byte_starts, normal.splits)  # [B + 1]

        def characters(offsets, rows):
            offsets = tf.cast(offsets, tf.int32) + tf.gather(base, rows)
            return tf.searchsorted(byte_starts, offsets)

        rows = rows_of(splits)
        # In UTF-8 every byte of a character but the first is 10xxxxxx.
        is_lead = values & 0xC0 != 0x80
        padded = tf.concat([values, [0, 0]], axis=0)
        mark = WORD_MARK.encode()
        is_mark = (
            (values == mark[0])
            & (padded[1:-1] == mark[1])
            & (padded[2:] == mark[2])
        )
        origins = characters(tf.gather(starts.values, owners), rows)
        # The last byte of a text ends at the end of the text that was read.
        has_any = splits[1:] > splits[:-1]
        last = tf.gather(
            tf.concat([owners, [0]], axis=0), tf.maximum(splits[1:] - 1, 0)
        )
        last_end = tf.gather(tf.concat([ends.values, [0]], axis=0), last)
        last_end = tf.where(has_any, last_end, 0)
        return (
            tf.boolean_mask(is_mark, is_lead),
            tf.boolean_mask(origins, is_lead),
            tf.gather(count_before(is_lead), splits),
            characters(last_end, tf.range(tf.size(last_end))),
        )

    def _character_spans(
        self,
        texts: Characters,
        normal: Characters,
        sources: tf.Tensor,
        strings: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """`Aligner._character_spans` in a graph; int32 [W], [W] in `texts`.

        `sources` has the position in `texts` of each character of `normal`, and
        `strings` is `normal` as UTF-8 strings [B].
        """
        is_mark, first, splits, text_end = self._written(normal, strings)
        rows = rows_of(splits)
        places = tf.range(tf.size(first))
        # The next origin that differs. The number of the text is added to each
        # origin, so that the last character of a text never has the same
        # origin as the first one of the next text.
        following = tf.searchsorted(first + rows, first + rows, side="right")
        following = tf.gather(tf.concat([first, [0]], axis=0), following)
        row_end = tf.gather(text_end, rows)
        origins = first + rows
        is_last = origins == tf.gather(
            tf.concat([origins, [0]], axis=0), tf.gather(splits, rows + 1) - 1
        )
        after = tf.where(is_last, tf.maximum(row_end, first), following)
        last = after - 1
        # Where several characters became one, SentencePiece has either composed
        # them, or dropped all but the first; see `Aligner`.
        several = last > first
        space = next_true(normal.codes == SPACE, first)
        space = tf.where(space < after, space, first)
        is_seen = ~is_member(normal.codes, self._invisible)
        only_first = next_true(is_seen, tf.minimum(first + 1, after)) >= after
        to_first = several & (is_mark | only_first)
        begin = tf.where(several & is_mark, space, first)
        last = tf.where(to_first, begin, last)
        sources = tf.concat([sources, [0]], axis=0)
        starts = tf.gather(sources, begin)
        ends = self._after_marks(
            texts, tf.gather(sources, tf.maximum(last, 0)) + 1, rows
        )
        # A word mark that SentencePiece added before the text has no character.
        next_origin = tf.where(
            places + 1 < tf.gather(splits, rows + 1),
            tf.concat([first[1:], [0]], axis=0)[: tf.size(first)],
            row_end,
        )
        is_put = is_mark & (places == tf.gather(splits, rows))
        is_put &= next_origin == first
        beginning = tf.gather(texts.splits, rows)
        return (
            tf.where(is_put, beginning, starts),
            tf.where(is_put, beginning, ends),
        )

    def _after_marks(
        self, texts: Characters, places: tf.Tensor, rows: tf.Tensor
    ) -> tf.Tensor:
        """The first character at or after each place that is not a mark."""
        is_letter = ~is_member(texts.codes, _marks())
        return tf.minimum(
            next_true(is_letter, places), tf.gather(texts.splits, rows + 1)
        )


@functools.cache
def _marks():
    marks = [c for c in code_points() if unicodedata.combining(chr(c))]
    return boundaries(marks)


def _invisible(model_bytes: bytes) -> list[int]:
    """The code points that SentencePiece drops or turns into white space."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    codes = code_points()
    # All code points are normalized in a single text, with letters between
    # them, since a call for each would take much longer.
    written, origins = processor.normalize(
        "".join("a" + chr(code) for code in codes), with_offsets=True
    )
    characters = np.frombuffer(written.encode("utf-32-le"), "<u4")
    is_seen = np.zeros(2 * len(codes) + 1, bool)
    is_seen[np.array(origins[:-1])[characters != ord(WORD_MARK)]] = True
    # Of a combining mark the text above shows only the letter before it, with
    # which it was composed. The candidates are therefore checked one by one.
    likely = np.array(codes)[~is_seen[1::2]].tolist()
    alone = processor.normalize([chr(code) for code in likely])
    pairs = zip(likely, alone, strict=True)
    return [code for code, normal in pairs if not normal]


def _model_of_bytes(
    model_bytes: bytes,
) -> tuple[bytes, dict[int, tuple[int, ...]]]:
    """A SentencePiece model of single bytes with the same normalization.

    User-defined pieces, which SentencePiece does not normalize, are kept. Also
    returns the bytes of these pieces, by their ids.
    """
    # Imported late: protobuf refuses code generated for newer versions.
    from sentencepiece import sentencepiece_model_pb2 as proto

    original = proto.ModelProto.FromString(model_bytes)
    kinds = proto.ModelProto.SentencePiece
    model = proto.ModelProto()
    model.normalizer_spec.CopyFrom(original.normalizer_spec)
    model.trainer_spec.model_type = proto.TrainerSpec.CHAR
    model.trainer_spec.byte_fallback = True
    for byte in range(_BYTES):
        model.pieces.add(piece=f"<0x{byte:02X}>", type=kinds.BYTE)
    model.trainer_spec.unk_id = _BYTES
    model.pieces.add(piece="<unk>", type=kinds.UNKNOWN)
    user_defined = {}
    for piece in original.pieces:
        if piece.type == kinds.USER_DEFINED:
            user_defined[len(model.pieces)] = tuple(piece.piece.encode())
            model.pieces.add(piece=piece.piece, type=kinds.USER_DEFINED)
    return model.SerializeToString(), user_defined
