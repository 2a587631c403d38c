"""Rows of choices inside a TensorFlow graph: the twin of `rows.choice_rows`.

Letters: B examples, C choices of each, S tokens of the longest row.

Import this module only where a graph is made: it imports TensorFlow.
"""

import tensorflow as tf

from keras_albert.text.graph_characters import ragged
from keras_albert.text.graph_tokenizer import GraphTokenizer


def pack_choices(
    tokenizer: GraphTokenizer,
    contexts: tf.Tensor,
    questions: tf.Tensor,
    choices: tf.Tensor,
    longest: int,
) -> dict[str, tf.Tensor]:
    """A row for each choice of each context, as `rows.choice_rows` makes them.

    Args:
        tokenizer: of the model.
        contexts: strings [B].
        questions: strings [B]; "" where there is none.
        choices: strings [B, C].
        longest: of a row, in tokens.

    Returns:
        `token_ids`, `segment_ids`, `padding_mask`, each int32 [B C, S].
    """
    room = longest - 3  # [CLS], two [SEP]
    batch, count = tf.unstack(tf.shape(choices))
    ids = tokenizer(tf.reshape(_with_choices(questions, choices), [-1]))
    context_ids = tokenizer(contexts)
    owner = tf.repeat(tf.range(batch), count)
    starts, lengths = (
        tf.gather(tf.cast(x, tf.int32), owner)
        for x in (context_ids.row_starts(), context_ids.row_lengths())
    )
    least = tf.maximum(room // 2, room - lengths)
    ends = tf.cast(ids.row_limits(), tf.int32)
    kept = tf.minimum(tf.cast(ids.row_lengths(), tf.int32), least)
    return tokenizer.pack(
        # No row reads more of a context than it has tokens.
        _part(context_ids.values, starts, tf.minimum(lengths, longest)),
        _part(ids.values, ends - kept, kept),
        longest,
    )


def _with_choices(question: tf.Tensor, choices: tf.Tensor) -> tf.Tensor:
    """Each choice in its question's blanks "_", or behind it, [B, C]."""
    # Malformed parts go first: together they might make a character.
    question, choices = (
        tf.strings.unicode_transcode(x, "UTF-8", "UTF-8", errors="ignore")
        for x in (question, choices)
    )
    # Two parts or more, the last one empty.
    parts = tf.strings.split(tf.strings.join([question, "_"]), "_")
    blanks = tf.cast(parts.row_lengths(), tf.int32) - 2  # [B]
    parts = parts.to_tensor("")[:, tf.newaxis]  # [B, 1, P]
    number = tf.range(tf.shape(parts)[-1])  # [P]
    blanks = blanks[:, tf.newaxis, tf.newaxis]
    choices = choices[:, :, tf.newaxis]
    behind = tf.where(
        blanks == 0, tf.strings.join([" ", choices]), tf.constant("")
    )
    filled = tf.where(
        number < blanks, choices, tf.where(number == 0, behind, "")
    )  # [B, C, P]
    return tf.strings.reduce_join(parts + filled, axis=-1)


def _part(
    values: tf.Tensor, starts: tf.Tensor, lengths: tf.Tensor
) -> tf.RaggedTensor:
    places = tf.ragged.range(starts, starts + lengths)
    return ragged(tf.gather(values, places.values), places.row_splits)
