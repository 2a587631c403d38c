"""One label, several labels, or a number for a text or a pair of texts.

Letters: N examples, C labels.
"""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
from scipy import special

from keras_albert.data import tables
from keras_albert.data.batches import Features
from keras_albert.data.config import TableColumns
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.tasks import classes, metrics
from keras_albert.tasks.labels import LABEL, ClassNames, Names, NoLabels, known
from keras_albert.tasks.serving import Serving
from keras_albert.tasks.task import PAIR, Task
from keras_albert.text.model_inputs import Row, text_rows
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.training.losses import WeightedMean

# `AlbertForSequenceClassification.problem`, and so what the head predicts.
SINGLE_LABEL, MULTI_LABEL, REGRESSION = (
    "single_label",
    "multi_label",
    "regression",
)


@dataclasses.dataclass(frozen=True)
class Texts:
    """How texts or pairs of texts are read."""

    always_pairs: bool = False
    """whether there is a second text even if no column of it is named"""

    def inputs(self, columns: TableColumns) -> dict[str, tables.Field]:
        """The fields of a text, and of its pair if there is one."""
        fields = {"text": tables.Field(columns.text, tables.read_text)}
        pair = columns.pair or (PAIR if self.always_pairs else None)
        if pair:
            fields[PAIR] = tables.Field(pair, tables.read_text)
        return fields

    def rows(
        self, tokenizer: Tokenizer, table: tables.Table, length: int
    ) -> list[Row]:
        """A row of at most `length` tokens for each text or pair."""
        values = table.values
        return text_rows(tokenizer, values["text"], values.get(PAIR), length)


def _classifier(backbone, names, problem, dropout):
    return AlbertForSequenceClassification(
        backbone,
        num_labels=len(names) if names else 1,
        labels=names,
        problem=problem,
        dropout=dropout,
    )


class _ClassServing(Serving):
    """The label, its score, and the probabilities of all labels.

    `label` is string [B], `score` float32 [B], `probabilities` float32 [B, C],
    and `labels`, the names of these, string [B, C]. Where there are pairs,
    `pair` is the same function; where there are none, `classify` takes
    `inputs`, tf.Examples [B] with a `text`, as TensorFlow Serving does.
    """

    def signatures(self, graph):
        from keras_albert.tasks import classification_graph as graphs

        return graphs.serve_classes(graph)

    def answer(self, outputs, given):
        return outputs["label"], outputs["score"]


class Classification(Task):
    """One of several labels for each text, or pair of texts.

    Args:
        name: of the task.
        is_pair: whether each example is a pair of texts; if not, it is where
            a column of second texts is named.
        labels: the labels of a published task, in the order of the logits.
        metrics: names of scores, see `metrics.measure`, the best one first;
            accuracy, F1 of two labels, and Matthews when not given.
    """

    heads = {SINGLE_LABEL: AlbertForSequenceClassification}
    has_classes = True
    serving = _ClassServing()

    def __init__(
        self,
        name: str,
        is_pair: bool = False,
        labels: Names = None,
        metrics: Sequence[str] | None = None,
    ):
        super().__init__(name)
        self.texts = Texts(is_pair)
        self.labels = ClassNames(labels)
        self.metrics = metrics
        self.best = metrics[0] if metrics else "accuracy"

    def inputs(self, columns):
        return self.texts.inputs(columns)

    def label_reader(self, names):
        return known(tables.read_label, names)

    def features(self, tokenizer, table, names, length):
        target = None
        if LABEL in table.values:
            target = tables.label_index(
                table.values[LABEL], names, table.path, table.lines
            )
        return Features(self.texts.rows(tokenizer, table, length), target)

    def head(self, backbone, names, dropout):
        return _classifier(backbone, names, SINGLE_LABEL, dropout)

    def loss(self, names):
        return classes.class_loss()

    def scores(self, outputs, features, names):
        f1 = ["f1"] if len(names) == 2 else []
        used = self.metrics or ["accuracy", *f1, "matthews"]
        predicted = np.stack(outputs).argmax(-1)
        found = metrics.measure(used, features.target, predicted, names)
        remarks = classes.collapse(features.target, predicted, names, "example")
        return metrics.Scores(found.values, (*found.remarks, *remarks))

    def baseline(self, features):
        if self.best == "matthews":  # 0 for any constant answer
            return 0.0
        return classes.share_of_most_frequent(features.target)

    def decode(self, outputs, features, names):
        odds = special.softmax(np.stack(outputs), axis=-1)
        return [
            {
                "prediction": names[row.argmax()],
                "score": round(float(row.max()), 6),
            }
            for row in odds
        ]


class _NumberServing(Serving):
    """`score` float32 [B]: the number."""

    def signatures(self, graph):
        from keras_albert.tasks import classification_graph as graphs

        return graphs.serve_texts(graph, graphs.decode_number)

    def answer(self, outputs, given):
        return None, outputs["score"]


class Regression(Task):
    """A number for each text, or pair of texts.

    Args:
        name: of the task.
        is_pair: as in `Classification`.
    """

    heads = {REGRESSION: AlbertForSequenceClassification}
    labels = NoLabels(outputs=1)
    serving = _NumberServing()
    adds = frozenset({"prediction"})
    best = "pearson"

    def __init__(self, name: str, is_pair: bool = False):
        super().__init__(name)
        self.texts = Texts(is_pair)

    def inputs(self, columns):
        return self.texts.inputs(columns)

    def label_reader(self, names):
        return tables.read_number

    def features(self, tokenizer, table, names, length):
        target = None
        if LABEL in table.values:
            target = np.array(table.values[LABEL], "float32")[:, None]
        return Features(self.texts.rows(tokenizer, table, length), target)

    def head(self, backbone, names, dropout):
        return _classifier(backbone, names, REGRESSION, dropout)

    def loss(self, names):
        return WeightedMean(keras.losses.MeanSquaredError(reduction="none"))

    def scores(self, outputs, features, names):
        predicted, expected = np.stack(outputs)[:, 0], features.target[:, 0]
        scores = metrics.measure(["pearson", "spearman"], expected, predicted)
        error = float(np.sqrt(np.mean((expected - predicted) ** 2)))
        remarks = scores.remarks
        if metrics.is_constant(predicted) and not metrics.is_constant(expected):
            remarks += (
                metrics.collapsed(f"example is given {predicted[0]:.4g}"),
            )
        values = {**scores.values, "root_mean_squared_error": error}
        return metrics.Scores(values, remarks)

    def decode(self, outputs, features, names):
        return [{"prediction": round(float(row[0]), 6)} for row in outputs]


class _SeveralServing(Serving):
    """`probabilities` float32, `labels` string and `chosen` bool, [B, C]."""

    def signatures(self, graph):
        from keras_albert.tasks import classification_graph as graphs

        decode = graphs.decode_several(graph.use.labels)
        return graphs.serve_texts(graph, decode)

    def answer(self, outputs, given):
        labels = zip(outputs["labels"], outputs["chosen"], strict=True)
        chosen = [label for label, is_chosen in labels if is_chosen]
        return chosen, outputs["probabilities"]


class MultiLabel(Task):
    """Any number of labels for each text, or pair of texts."""

    heads = {MULTI_LABEL: AlbertForSequenceClassification}
    labels = ClassNames(nested=True, least=1)
    serving = _SeveralServing()
    best = "micro_f1"
    texts = Texts()

    def inputs(self, columns):
        return self.texts.inputs(columns)

    def label_reader(self, names):
        return known(tables.read_labels, names)

    def features(self, tokenizer, table, names, length):
        target = None
        if LABEL in table.values:
            target = np.zeros((len(table), len(names)), "float32")
            for row, labels in enumerate(table.values[LABEL]):
                lines = [table.lines[row]] * len(labels)
                chosen = tables.label_index(labels, names, table.path, lines)
                target[row, chosen] = 1
        return Features(self.texts.rows(tokenizer, table, length), target)

    def head(self, backbone, names, dropout):
        return _classifier(backbone, names, MULTI_LABEL, dropout)

    def loss(self, names):
        return WeightedMean(
            keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
        )

    def scores(self, outputs, features, names):
        chosen = np.stack(outputs) > 0
        scores = metrics.multilabel_scores(features.target, chosen)
        different = [
            len(np.unique(x, axis=0)) for x in (chosen, features.target)
        ]
        if different[0] > 1 or different[1] == 1:
            return scores
        labels = [names[i] for i in np.flatnonzero(chosen[0])]
        remark = metrics.collapsed(f"example is given the labels {labels}")
        return metrics.Scores(scores.values, (*scores.remarks, remark))

    def decode(self, outputs, features, names):
        decoded = []
        for row in special.expit(np.stack(outputs)):
            chosen = [names[i] for i in np.flatnonzero(row > 0.5)]
            odds = zip(names, row, strict=True)
            score = {name: round(float(p), 6) for name, p in odds}
            decoded.append({"prediction": chosen, "score": score})
        return decoded
