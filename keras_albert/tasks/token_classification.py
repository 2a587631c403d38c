"""A label for each word.

Letters: C labels, W words of a text.
"""

import numpy as np

from keras_albert.data.batches import Features
from keras_albert.data.tables import Field, label_index, read_parts, read_words
from keras_albert.errors import AlbertError
from keras_albert.modeling.classification import AlbertForTokenClassification
from keras_albert.tasks import classes
from keras_albert.tasks.labels import LABEL, ClassNames, known
from keras_albert.tasks.metrics import Scores, entity_f1, measure
from keras_albert.tasks.serving import Serving
from keras_albert.tasks.task import LearnedTask, Outputs
from keras_albert.text.model_inputs import word_rows
from keras_albert.text.normalization import to_text

TOKENS = "a label for each token"  # what the head predicts


class _WordServing(Serving):
    """The signature of an exported model that labels the words of texts.

    It takes `text`, string [B], and returns `words` and `labels`, string
    [B, W], `scores` float32 [B, W], and the characters at which each word
    starts and ends.
    """

    def signatures(self, graph):
        from keras_albert.tasks.token_classification_graph import serve_words

        return {"serving_default": serve_words(graph)}

    def texts(self, values):
        text = " ".join(values["text"])
        if text.split() != values["text"]:  # a word contains spaces
            return None
        return {"text": to_text(text)}

    def answer(self, outputs, given):
        # The batch is padded to the largest number of words in a text.
        return outputs["labels"][: len(given["text"].split())], 0


class TokenClassification(LearnedTask):
    """A label for each word of each text."""

    heads = {TOKENS: AlbertForTokenClassification}
    labels = ClassNames(nested=True, unit="words")
    serving = _WordServing()
    adds = frozenset({"prediction"})
    best = "accuracy"

    def inputs(self, columns):
        return {"text": Field(columns.text, read_words)}

    def label_reader(self, names):
        return known(read_words, names)

    def parts(self, *arguments, **options):
        return read_parts(*arguments, **options, complete=_one_label_a_word)

    def checked_input(self, name, values):
        return [_words(name, i, words) for i, words in enumerate(values)]

    def features(self, tokenizer, table, names, length):
        labels = table.values.get(LABEL)
        rows, targets, counts = [], [], []
        for i, words in enumerate(table.values["text"]):
            marks = np.zeros(len(words), "int32")
            if labels is not None:
                lines = [table.lines[i]] * len(words)
                marks = label_index(labels[i], names, table.path, lines)
            parts = word_rows(tokenizer, words, length)
            done = 0
            for row, starts in parts:
                target = np.full(len(row.token_ids), -1, "int32")
                target[starts] = marks[done : done + len(starts)]
                done += len(starts)
                rows.append(row)
                targets.append(target)
            counts.append(len(parts))
        return Features(rows, token_target=targets, source=counts)

    def head(self, backbone, names, options):
        return AlbertForTokenClassification(
            backbone,
            num_labels=len(names),
            labels=names,
            dropout=options.dropout,
        )

    def loss(self, names):
        return classes.class_loss()

    def logits_and_target(self, outputs, features):
        return tuple(map(np.concatenate, _of_words(outputs, features)))

    def scores(self, outputs, features, names):
        logits, expected = _of_words(outputs, features)
        predicted = [row.argmax(-1) for row in logits]
        expected_words, words = map(np.concatenate, (expected, predicted))
        values = measure(["accuracy"], expected_words, words).values
        # By the labels of the model: which of them a run predicts may differ
        # from seed to seed, and all seeds must have the same scores.
        if all(name == "O" or name[:2] in ("B-", "I-") for name in names):
            found = entity_f1(
                [[names[i] for i in row] for row in expected],
                [[names[i] for i in row] for row in predicted],
            )
            values = {"entity_f1": found, **values}
        remarks = classes.collapse(expected_words, words, names, "word")
        return Scores(values, remarks)

    def baseline(self, features):
        return classes.share_of_most_frequent(
            np.concatenate([t[t >= 0] for t in features.token_target])
        )

    def unpadded(self, output, row):
        return output[: len(row.token_ids)]

    def decode(self, outputs, features, names):
        logits, _ = _of_words(outputs, features)
        return [
            {"prediction": [names[i] for i in row.argmax(-1)]} for row in logits
        ]

    def card(self, columns, length, reading):
        return 'Predictor.load(MODEL).predict([["some", "words"]])', (
            f"A text of more than {length:,} tokens is read in parts that know "
            "nothing of each other."
        )


def _words(name: str, index: int, words: object) -> list[str]:
    if isinstance(words, np.ndarray | tuple):  # as tables in memory have them
        words = list(words)
    # A text without words is an error in a table, as it cannot have a label.
    if words == [] or (isinstance(words, str) and not words.strip()):
        return []
    try:
        return read_words(words)
    except AlbertError as error:
        raise AlbertError(f"`{name}` {index} {error}") from None


def _one_label_a_word(row: dict, values: dict) -> dict:
    words, labels = values["text"], values.get(LABEL)
    if labels is not None and len(labels) != len(words):
        raise AlbertError(
            f"{len(words)} words, but {len(labels)} labels. Give each word one."
        )
    return values


def _of_words(
    outputs: Outputs, features: Features
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The logits [W, C] and the labels [W] of the words of each text.

    The rows of a text are joined; of each word only the first piece counts,
    which alone has a label of 0 or more.
    """
    logits, labels = [], []
    ends = np.cumsum(features.source)
    for end, count in zip(ends, features.source, strict=True):
        rows = slice(end - count, end)
        target = np.concatenate(features.token_target[rows])
        logits.append(np.concatenate(outputs[rows])[target >= 0])
        labels.append(target[target >= 0])
    return logits, labels
