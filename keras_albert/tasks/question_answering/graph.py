"""Answers to questions inside a graph, in contexts of any length.

Letters: B questions, W windows, S tokens of the longest window, K beam, or
number of starts and ends that are combined in a window, M possible answers.

It computes the same as `windows`, `decoding` and `task` outside a graph.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_albert.tasks.graph import ServingGraph
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    WindowConfig,
)
from keras_albert.tasks.question_answering.task import NO_CANDIDATE
from keras_albert.text.graph_alignment import GraphAligner, GraphPieces
from keras_albert.text.graph_characters import Characters, equally_many, rows_of
from keras_albert.text.special_tokens import CLS_ID, PAD_ID, SEP_ID


def serve_questions(
    graph: ServingGraph,
) -> Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]:
    """`serving_default` of a model that answers questions.

    Returns:
        a function of `question` and `context`, string [B]. It returns `answer`
        string [B], "" if there is none; `score` float32 [B], its probability
        among the candidates, or the probability of no answer; `start` and `end`
        int32 [B], with which the answer is context[start:end], or -1; and
        `no_answer` float32 [B], the score for no answer, at most NO_CANDIDATE.
    """
    reading = graph.predictor.reading
    may_refuse = graph.predictor.labels is not None
    threshold = math.inf  # as `task.no_answer_threshold` computes it
    if may_refuse and reading.threshold is not None:
        threshold = reading.threshold
    # Windows have at least as many tokens as the beam, and at least three,
    # [CLS] [SEP] [SEP]: those of an empty question and an empty context.
    narrowest = max(getattr(graph.predictor.model, "beam", 1), 3)
    aligner = GraphAligner(graph.predictor.tokenizer, graph.tokenizer)
    graph.kept.append(aligner)

    def serve(question, context):
        question, context = equally_many(question=question, context=context)
        texts = Characters.of(context)
        pieces = aligner(texts)
        windows = _Windows.of(
            graph.tokenizer(question), pieces, reading.windows, narrowest
        )
        found = graph.in_parts(windows.rows)
        if "start" in found:
            spans, no_answer = _spans_of_logits(
                windows, found, reading.answers.n_best
            )
        else:
            spans, no_answer = _spans_of_beam(found)
        best = _best(texts, pieces, windows, spans, reading.answers)
        count = tf.size(texts.splits) - 1
        no_answer = tf.math.unsorted_segment_min(
            no_answer, windows.question, count
        )
        if "start" in found:
            no_answer -= best.score
        no_answer = tf.where(best.has_any, no_answer, math.inf)
        answered = best.has_text & ~(no_answer > threshold)
        score = tf.where(answered, best.probability, tf.sigmoid(no_answer))
        base = texts.splits[:-1]
        return {
            "answer": tf.where(answered, best.text, ""),
            "score": tf.cast(score, tf.float32),
            "start": tf.where(answered, best.start - base, -1),
            "end": tf.where(answered, best.end - base, -1),
            "no_answer": tf.cast(
                tf.minimum(no_answer, NO_CANDIDATE), tf.float32
            ),
        }

    return serve


class _Windows(NamedTuple):
    """The windows of questions and contexts, as `make_windows` makes them."""

    rows: dict[str, tf.Tensor]  # int32 [W, S], the inputs of the model
    question: tf.Tensor  # int32 [W], ascending
    lengths: tf.Tensor  # int32 [W], tokens without padding
    # int32 [W, S], the piece of the contexts at each position of a context
    pieces: tf.Tensor
    # bool [W, S], whether the window has most context for the piece
    max_context: tf.Tensor

    @classmethod
    def of(
        cls,
        queries: tf.RaggedTensor,
        context: GraphPieces,
        config: WindowConfig,
        narrowest: int,
    ) -> "_Windows":
        """The windows of all questions, in their order; one or more each."""
        query_lengths = tf.minimum(
            _int32(queries.row_lengths()), config.query_length
        )  # [B]
        counts = _int32(context.ids.row_lengths())
        room = config.sequence_length - query_lengths - 3
        step = tf.minimum(room, config.stride)
        # The spans of the windows, as `window_spans` computes them.
        number = 1 + -(-tf.maximum(counts - room, 0) // step)
        splits = tf.concat([[0], tf.cumsum(number)], axis=0)
        question = rows_of(splits)  # [W]
        index = tf.range(tf.size(question)) - tf.gather(splits, question)

        def of_question(values):  # [B] -> [W, 1]
            return tf.gather(values, question)[:, tf.newaxis]

        count, room, step, number = map(
            of_question, (counts, room, step, number)
        )
        index = index[:, tf.newaxis]
        begin = index * step
        end = tf.minimum(begin + room, count)
        sep = of_question(query_lengths) + 1  # position of the first [SEP]
        lengths = sep + 1 + end - begin + 1  # [W, 1]
        width = tf.reduce_max(tf.concat([lengths[:, 0], [narrowest]], axis=0))
        place = tf.range(width)[tf.newaxis]  # [1, S]

        def taken(ids, column, wanted):
            start = of_question(_int32(ids.row_starts()))
            pool = tf.concat([[PAD_ID], ids.values], axis=0)  # never empty
            at = tf.where(wanted, start + column + 1, 0)
            return tf.gather(pool, at), tf.maximum(at - 1, 0)

        is_query = (place > 0) & (place < sep)
        is_context = (place > sep) & (place < lengths - 1)
        token = begin + place - sep - 1  # of the context
        query_ids, _ = taken(queries, place - 1, is_query)
        context_ids, pieces = taken(context.ids, token, is_context)
        token_ids = tf.where(is_query, query_ids, PAD_ID)
        token_ids = tf.where(is_context, context_ids, token_ids)
        is_sep = (place == sep) | (place == lengths - 1)
        token_ids = tf.where(is_sep, SEP_ID, token_ids)
        token_ids = tf.where(place == 0, CLS_ID, token_ids)
        owner = _most_context(token, count, room, step, number)
        return cls(
            rows={
                "token_ids": token_ids,
                "segment_ids": _int32((place > sep) & (place < lengths)),
                "padding_mask": _int32(place < lengths),
            },
            question=question,
            lengths=lengths[:, 0],
            pieces=pieces,
            max_context=is_context & (owner == index),
        )


def _most_context(token, count, room, step, number):
    """The window that has most context for a token, as in `max_context`.

    All windows but the last have the same length. The window is therefore one
    of the two with the nearest middle, or the last one.

    `token` [W, S] are positions in a context of `count` tokens, in `number`
    windows of at most `room` tokens, one every `step`, all [W, 1].
    """
    nearest = (2 * token - (room - 1)) // (2 * step)  # at or below
    last = number - 1
    best = owner = None
    whole = tf.maximum(last - 1, 0)
    for index in (
        tf.clip_by_value(nearest, 0, whole),
        tf.clip_by_value(nearest + 1, 0, whole),
        last + tf.zeros_like(token),
    ):
        begin = index * step
        end = tf.minimum(begin + room, count)
        least = tf.minimum(token - begin, end - 1 - token)
        # In Python's precision; if two are equal, the first one is chosen.
        context = tf.cast(least, tf.float64)
        context += 0.01 * tf.cast(end - begin, tf.float64)
        context = tf.where(least >= 0, context, -1.0)
        if best is None:
            best, owner = context, index
        else:
            owner = tf.where(context > best, index, owner)
            best = tf.maximum(context, best)
    return owner


class _Spans(NamedTuple):
    """The starts and ends that are combined in a window, [W, K, K]."""

    starts: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor  # float64, the sum of the scores of start and end


def _spans_of_logits(
    windows: _Windows, outputs: dict[str, tf.Tensor], n_best: int
) -> tuple[_Spans, tf.Tensor]:
    """The spans that `decode_logits` tries, from the logits.

    The second result is the score of [CLS], float64 [W].
    """
    is_token = tf.sequence_mask(windows.lengths, tf.shape(outputs["start"])[1])
    count = tf.minimum(n_best, tf.shape(is_token)[1])
    (start_scores, starts), (end_scores, ends) = (
        tf.math.top_k(tf.where(is_token, outputs[name], -math.inf), count)
        for name in ("start", "end")
    )
    spans = _Spans(
        starts[:, :, tf.newaxis] + tf.zeros_like(ends)[:, tf.newaxis],
        ends[:, tf.newaxis] + tf.zeros_like(starts)[:, :, tf.newaxis],
        _float64(start_scores)[:, :, tf.newaxis]
        + _float64(end_scores)[:, tf.newaxis],
    )
    first = [_float64(outputs[name][:, 0]) for name in ("start", "end")]
    return spans, sum(first)


def _spans_of_beam(outputs: dict[str, tf.Tensor]) -> tuple[_Spans, tf.Tensor]:
    """The spans that `decode_beam` tries, from the outputs of the beam.

    The second result is the logit of no answer, float64 [W].
    """
    ends = outputs["end_top_index"]  # [W, K, K]
    starts = outputs["start_top_index"][:, :, tf.newaxis]
    scores = _float64(outputs["start_top_log_probs"])[:, :, tf.newaxis]
    spans = _Spans(
        starts + tf.zeros_like(ends),
        ends,
        scores + _float64(outputs["end_top_log_probs"]),
    )
    return spans, _float64(outputs["answer_class"][:, 0])


class _Best(NamedTuple):
    """The best answer to each question; [B]."""

    has_any: tf.Tensor  # bool, whether there is a candidate
    score: tf.Tensor  # float64, score of the best candidate
    # bool, whether a candidate has text; the rest is of the best of these
    has_text: tf.Tensor
    text: tf.Tensor  # string
    start: tf.Tensor  # int32, first character in all contexts
    end: tf.Tensor  # int32, the character after the last one
    probability: tf.Tensor  # float64, among the `n_best` candidates


def _possible(
    windows: _Windows, spans: _Spans, config: AnswerConfig
) -> tf.Tensor:
    """bool [W, K, K], whether a span may be an answer."""
    starts, ends, _ = spans
    return (
        tf.gather(windows.max_context, starts, batch_dims=1)
        & (starts <= ends)
        & (ends < windows.lengths[:, tf.newaxis, tf.newaxis] - 1)
        & (ends - starts < config.answer_length)
    )


def _best(
    texts: Characters,
    pieces: GraphPieces,
    windows: _Windows,
    spans: _Spans,
    config: AnswerConfig,
) -> _Best:
    """The best answer to each question, for all questions at once.

    `_spans`, `_predictions` and `_candidates` of `decoding` find the same.
    """
    starts, ends, scores = spans
    possible = _possible(windows, spans, config)
    places = tf.where(possible)  # [M, 3]: by question, window, start, end
    window = places[:, 0]
    question = tf.gather(windows.question, window)
    scores = tf.gather_nd(scores, places)
    # Sorts by question, then by score, with ties in their order.
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    by_question = tf.argsort(tf.gather(question, order), stable=True)
    order = tf.gather(order, by_question)
    question, scores, window = (
        tf.gather(x, order) for x in (question, scores, window)
    )

    def characters(positions, of_pieces):
        positions = tf.gather(tf.gather_nd(positions, places), order)
        at = tf.gather(windows.pieces, window)
        at = tf.gather(at, positions, batch_dims=1)
        return tf.gather(of_pieces, at)

    begin, end = texts.trimmed(
        characters(starts, pieces.starts), characters(ends, pieces.ends)
    )
    text = texts.parts(begin, end)
    # Of the candidates with the same text, only the best one is kept.
    number = tf.range(tf.size(question))
    _, same = tf.unique(
        tf.strings.join([tf.strings.as_string(question), " ", text])
    )
    first = tf.math.unsorted_segment_min(number, same, tf.size(number))
    is_first = tf.gather(first, same) == number
    count = tf.size(texts.splits) - 1
    splits = tf.searchsorted(question, tf.range(count + 1))
    before = tf.cumsum(_int32(is_first), exclusive=True)
    before -= tf.gather(before, tf.gather(splits, question))
    kept = is_first & (before < config.n_best)

    def padded(values, last):  # `gather` needs at least one value
        return tf.concat([values, [last]], axis=0)

    best_score = tf.gather(padded(scores, 0.0), splits[:-1])
    weights = tf.exp(scores - tf.gather(best_score, question))
    total = tf.math.unsorted_segment_sum(
        tf.where(kept, weights, 0.0), question, count
    )
    chosen = tf.math.unsorted_segment_min(
        tf.where(kept & (end > begin), number, tf.size(number)), question, count
    )
    chosen = tf.minimum(chosen, tf.size(number))  # the padding if there is none
    return _Best(
        has_any=splits[1:] > splits[:-1],
        score=best_score,
        has_text=chosen < tf.size(number),
        text=tf.gather(padded(text, ""), chosen),
        start=tf.gather(padded(begin, 0), chosen),
        end=tf.gather(padded(end, 0), chosen),
        probability=tf.gather(padded(weights, 0.0), chosen)
        / tf.maximum(total, 1.0),  # that of the best one is 1
    )


def _int32(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.int32)


def _float64(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.float64)
