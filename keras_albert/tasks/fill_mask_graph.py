"""The pieces that "[MASK]" may stand for, inside a graph.

Letters: B texts, P parts of texts between masks, S tokens of the longest row,
M masks of the text with most of them, K pieces for a mask, V vocabulary.

It equals `modeling.masked_texts`, whose names are in parentheses.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_albert.modeling.config import FILL_MASK_CHOICES
from keras_albert.modeling.masked_texts import MASK
from keras_albert.tasks.graph import ServingGraph
from keras_albert.text.graph_characters import Characters, ragged, rows_of
from keras_albert.text.graph_tokenizer import GraphTokenizer
from keras_albert.text.special_tokens import MASK_ID, PAD_ID
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer

NO_PIECE = -1  # the id where a text has fewer masks than another


def serve_masks(graph: ServingGraph) -> tuple[Callable, Callable]:
    """`fill_mask` and `token_ids` of a model with a masked-LM head.

    Returns:
        a function of `text` string [B], and one of `token_ids` int32 [B, S].
        They return the K most probable pieces for each mask, the best first:
        `pieces` string, `scores` float32, which are their probabilities, and
        `ids` int32, [B, M, K]. If a text has fewer masks than another of its
        batch, the others are "", 0 and NO_PIECE; M is at least 1. Masks beyond
        the longest row are ignored.
    """
    tokenizer, model = graph.predictor.tokenizer, graph.predictor.model
    blank = tokenizer.piece_to_id(WORD_MARK)

    @graph.of_rows
    def logits_at_masks(rows):
        positions, is_given = mask_positions(rows["token_ids"])
        with graph.scope():
            inputs = {**rows, "masked_positions": positions}
            outputs = model(inputs, training=False)
        if isinstance(outputs, dict):
            outputs = outputs["mlm"]
        return {"logits": outputs, "is_given": is_given}

    def fill_mask(text):
        ids = _masked_ids(graph.tokenizer, text, blank)
        rows = graph.tokenizer.pack(ids, None, graph.predictor.sequence_length)
        return best_pieces(tokenizer, logits_at_masks(rows))

    def fill_ids(token_ids):
        rows = graph.rows_of_ids(token_ids)
        return best_pieces(tokenizer, logits_at_masks(rows))

    return fill_mask, fill_ids


def best_pieces(
    tokenizer: Tokenizer, found: dict[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """The best pieces for masks, see `serve_masks`.

    `found` has `logits`, float32 [B, M, V]; and `is_given`, bool [B, M].
    """
    count = tokenizer.vocab_size
    names = tf.constant([tokenizer.id_to_piece(i) for i in range(count)])
    # The model may have more ids than the vocabulary has pieces.
    probabilities = tf.nn.softmax(found["logits"])[..., :count]
    scores, ids = tf.math.top_k(probabilities, min(FILL_MASK_CHOICES, count))
    is_given = found["is_given"][..., tf.newaxis]
    return {
        "pieces": tf.where(is_given, tf.gather(names, ids), ""),
        "scores": tf.where(is_given, scores, 0.0),
        "ids": tf.where(is_given, ids, NO_PIECE),
    }


def mask_positions(token_ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The positions of the masks of rows [B, S], int32 [B, M]; and bool [B, M].

    If a row has fewer masks, the others are False, and their position is 0.
    """
    is_mask = token_ids == MASK_ID
    counts = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)  # [B]
    most = tf.reduce_max(tf.concat([counts, [1]], axis=0))
    place = tf.cast(tf.where(is_mask), tf.int32)  # row by row
    splits = tf.concat([[0], tf.cumsum(counts)], axis=0)
    number = tf.range(tf.shape(place)[0]) - tf.gather(splits, place[:, 0])
    index = tf.stack([place[:, 0], number], axis=1)
    shape = tf.stack([tf.shape(token_ids)[0], most])
    positions = tf.scatter_nd(index, place[:, 1], shape)
    is_given = tf.range(most)[tf.newaxis] < counts[:, tf.newaxis]
    return positions, is_given


def _masked_ids(
    tokenizer: GraphTokenizer, text: tf.Tensor, blank: int
) -> tf.RaggedTensor:
    """The ids of texts, without [CLS] and [SEP], int32 [B, (S)] (masked_ids).

    `blank` is the id of the word mark alone.
    """
    # Malformed bytes are removed first: they may divide a mask.
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore")
    parts = tf.strings.split(text, MASK)  # one or more of each text
    splits = tf.cast(parts.row_splits, tf.int32)
    number = tf.range(tf.size(parts.values))
    follows = number > tf.gather(splits, rows_of(splits))  # a mask
    ids = tokenizer(parts.values)
    starts = tf.cast(ids.row_starts(), tf.int32)  # [P]
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    pool = tf.concat([ids.values, [PAD_ID]], axis=0)  # never empty
    # A word mark before ".", for example, would mean a space after the mask.
    dropped = (
        follows
        & ~_begins_with_space(parts.values)
        & (lengths > 0)
        & (tf.gather(pool, starts) == blank)
    )
    skipped, before = tf.cast(dropped, tf.int32), tf.cast(follows, tf.int32)
    ends = tf.cumsum(before + lengths - skipped)
    ends = tf.concat([[0], ends], axis=0)  # of parts in tokens, [P + 1]
    part = rows_of(ends)
    within = tf.range(ends[-1]) - tf.gather(ends, part)
    source = tf.gather(starts + skipped - before, part) + within
    is_mask = (within == 0) & tf.gather(follows, part)
    values = tf.gather(pool, tf.where(is_mask, 0, source))
    return ragged(tf.where(is_mask, MASK_ID, values), tf.gather(ends, splits))


def _begins_with_space(texts: tf.Tensor) -> tf.Tensor:
    """Whether the first character is white space in Python, bool [P]."""
    texts = Characters.of(texts)
    is_space = tf.concat([texts.is_space(), [False]], axis=0)
    return (texts.lengths > 0) & tf.gather(is_space, texts.splits[:-1])
