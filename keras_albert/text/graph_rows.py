"""`model_inputs.choice_rows` in a TensorFlow graph, with equal results.

Letters: B examples, C choices of each, S tokens of the longest row.

Import this module only to make a graph: it imports TensorFlow.
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
    """Makes a row for each choice of each context, as `choice_rows` does.

    Takes strings [B], [B] and [B, C]; a question may be "". Returns
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
    most = tf.maximum(room // 2, room - lengths)
    ends = tf.cast(ids.row_limits(), tf.int32)
    kept = tf.minimum(tf.cast(ids.row_lengths(), tf.int32), most)
    return tokenizer.pack(
        # A row holds at most `longest` tokens of its context.
        _part(context_ids.values, starts, tf.minimum(lengths, longest)),
        _part(ids.values, ends - kept, kept),
        longest,
    )


def _with_choices(question: tf.Tensor, choices: tf.Tensor) -> tf.Tensor:
    """Puts each choice into the blanks "_" of its question: strings [B, C].

    If a question has no blank, the choice comes after it.
    """
    # Malformed bytes are removed before joining: the halves of a character at
    # the end of one string and the start of the next would otherwise form one.
    question, choices = (
        tf.strings.unicode_transcode(x, "UTF-8", "UTF-8", errors="ignore")
        for x in (question, choices)
    )
    # The "_" added at the end gives two or more parts, of which the last is
    # empty. A question without a blank has exactly two.
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
