"""A label for each word inside a graph, in texts of any length.

Letters: B texts, N words of all texts, R rows, S tokens of the longest row,
W words of the longest text, C labels.

It computes the same as `text.model_inputs.word_rows` and
`TokenClassification.decode` outside a graph.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_albert.tasks.graph import ServingGraph
from keras_albert.text.graph_characters import (
    Characters,
    ragged,
    rows_of,
    true_places,
)
from keras_albert.text.graph_tokenizer import GraphTokenizer
from keras_albert.text.special_tokens import PAD_ID, UNK_ID


def serve_words(
    graph: ServingGraph,
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """`serving_default` of a model that labels words.

    A text with more tokens than the longest row is divided into several rows.

    Returns:
        a function of `text` string [B]; words are as by `str.split`. It returns
        `words` and `labels` string [B, W], "" if a text has fewer; `scores`
        float32 [B, W], the labels' probabilities; and `start` and `end` int32
        [B, W], the words' characters in the text, or -1.
    """
    names = tf.constant(graph.predictor.labels)
    longest = graph.predictor.sequence_length

    def serve(text):
        texts = Characters.of(text)
        starts, ends, splits = texts.words()
        words = texts.parts(starts, ends)
        rows, row, column = _rows(
            graph.tokenizer, graph.tokenizer(words), splits, longest
        )
        logits = graph.in_parts(rows)["logits"]
        logits = tf.gather_nd(logits, tf.stack([row, column], axis=1))
        probabilities = tf.nn.softmax(logits)  # [N, C]
        base = tf.gather(texts.splits, rows_of(splits))

        def dense(values, empty):
            return ragged(values, splits).to_tensor(empty)

        return {
            "words": dense(words, ""),
            "labels": dense(
                tf.gather(names, tf.argmax(probabilities, axis=-1)), ""
            ),
            "scores": dense(tf.reduce_max(probabilities, axis=-1), 0.0),
            "start": dense(starts - base, -1),
            "end": dense(ends - base, -1),
        }

    return serve


def _rows(
    tokenizer: GraphTokenizer,
    pieces: tf.RaggedTensor,
    splits: tf.Tensor,
    longest: int,
) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
    """`word_rows` of texts.

    `pieces` are those of each word, int32 [N, (pieces)], `splits` the index of
    the first word of each text [B + 1], and `longest` the most tokens of a row.
    Returns the rows, int32 [R, S]; and for each word its row and the position
    of its first piece there, int32 [N].
    """
    # A word whose characters are all dropped also has a label.
    lengths = tf.cast(pieces.row_lengths(), tf.int32)
    counts = tf.maximum(lengths, 1)
    ends = tf.concat([[0], tf.cumsum(counts)], axis=0)  # of words in tokens
    firsts = _first_words(ends, splits, longest - 2)  # [CLS], [SEP]
    row = tf.searchsorted(firsts, tf.range(tf.size(counts)), side="right") - 1
    begins = tf.gather(ends, firsts)  # [R], in tokens
    column = ends[:-1] - tf.gather(begins, row) + 1  # after [CLS]
    token = tf.concat([[PAD_ID], pieces.values], axis=0)
    # The piece of each token; 0 if a word has none.
    word = rows_of(ends)
    within = tf.range(ends[-1]) - tf.gather(ends, word)
    piece = tf.gather(tf.cast(pieces.row_starts(), tf.int32), word) + within
    has_pieces = tf.gather(lengths, word) > 0
    ids = tf.gather(token, tf.where(has_pieces, piece + 1, 0))
    ids = ragged(
        tf.where(has_pieces, ids, UNK_ID),
        tf.concat([begins, ends[-1:]], axis=0),
    )
    # Only a word that fills more than a row is cut off.
    return tokenizer.pack(ids, None, longest), row, column


def _first_words(ends: tf.Tensor, splits: tf.Tensor, room: int) -> tf.Tensor:
    """The first word of each row, int32 [R], in the order of the texts.

    `ends` are the numbers of tokens before each word, int32 [N + 1]; a row has
    at most `room` tokens, unless it has a single word.
    """
    count = tf.size(ends) - 1  # N
    words = tf.range(count)
    # The word that the next row would begin with, after a row from each word.
    after = tf.searchsorted(ends, ends[:-1] + room, side="right") - 1
    after = tf.minimum(
        tf.maximum(after, words + 1), tf.gather(splits, rows_of(splits) + 1)
    )
    after = tf.concat([after, [count]], axis=0)

    def marked(places, mark):
        marks = tf.scatter_nd(
            places[:, tf.newaxis], tf.cast(mark, tf.int32), [count + 1]
        )
        return marks > 0

    # The first words of texts; then of rows that are 1, 2, 4, ... rows later.
    begins = marked(splits, tf.ones_like(splits, tf.bool))

    def step(rows, begins, after):
        begins |= marked(after, begins)
        return 2 * rows, begins, tf.gather(after, after)

    _, begins, _ = tf.while_loop(
        lambda rows, begins, after: rows <= count,
        step,
        (1, begins, after),
        parallel_iterations=1,
    )
    return true_places(begins[:-1])
