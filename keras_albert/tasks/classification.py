"""One label, several labels, or a number for a text or a pair of texts.

Letters: C labels.
"""

import abc
from collections.abc import Callable, Sequence

import keras
import numpy as np
from scipy import special

from keras_albert.data import tables
from keras_albert.data.batches import Features
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.tasks import bag_of_words, classes, decisions, metrics
from keras_albert.tasks.labels import LABEL, ClassNames, Names, NoLabels, known
from keras_albert.tasks.serving import Serving
from keras_albert.tasks.task import PAIR, LearnedTask
from keras_albert.text.model_inputs import text_rows, window_rows
from keras_albert.training.losses import DistillationLoss, WeightedMean

# The values of `AlbertForSequenceClassification.problem`.
SINGLE_LABEL = "single_label"
MULTI_LABEL = "multi_label"
REGRESSION = "regression"
# Share of a window that the next one repeats: every token is in the middle half
# of some window, but for those at the ends of the text.
OVERLAP = 0.5


class _TextTask(LearnedTask):
    """Abstract: a task that predicts something of a text or a pair of texts.

    With `is_pair`, or if a column of second texts is named, each example is a
    pair.
    """

    problem: str

    def __init__(self, name: str, is_pair: bool = False):
        super().__init__(name)
        self.heads = {self.problem: AlbertForSequenceClassification}
        self.is_pair = is_pair

    def inputs(self, columns):
        fields = {"text": tables.Field(columns.text, tables.read_text)}
        pair = columns.pair or (PAIR if self.is_pair else None)
        if pair:
            fields[PAIR] = tables.Field(pair, tables.read_text)
        return fields

    def features(self, tokenizer, table, names, length):
        values = table.values
        rows = text_rows(tokenizer, values["text"], values.get(PAIR), length)
        return Features(
            rows, self.targets(table, names) if LABEL in values else None
        )

    def windows(self, tokenizer, table, names, length, pooling):
        texts = table.values["text"]
        rows, owners = window_rows(tokenizer, texts, length, OVERLAP)
        return Features(
            rows,
            self.targets(table, names) if LABEL in table.values else None,
            source=np.bincount(owners).tolist(),
            pooling=pooling,
        )

    def pooled(self, outputs, features):
        ends = np.cumsum(features.source)[:-1]
        return [
            decisions.pooled_logits(each, features.pooling, self.problem)
            for each in np.split(np.stack(outputs), ends)
        ]

    @abc.abstractmethod
    def targets(self, table: tables.Table, names: Names) -> np.ndarray:
        """The labels of a table as targets of the loss."""

    def linear_outputs(self, train, held_out, names):
        texts, others = (
            [table.values[n] for n in ("text", PAIR) if n in table.values]
            for table in (train, held_out)
        )
        target = self.targets(train, names)
        return bag_of_words.linear_outputs(
            lambda x, y: self.fit_linear(x, y, names), texts, target, others
        )

    @abc.abstractmethod
    def fit_linear(self, x, y: np.ndarray, names: Names) -> Callable:
        """Fits the linear model of words with which the model is compared.

        `x` are the features of `bag_of_words.linear_outputs`, a sparse matrix
        [N, F], and `y` is the target of the rows. Returns a function from
        features to outputs.
        """

    def distilled(
        self, names: Names, share: float, temperature: float
    ) -> keras.losses.Loss:
        """The loss with which a model learns from a teacher's logits, too.

        `share` is the part of the teacher in the loss, and `temperature`
        divides the logits of both, see `DistillationLoss`.
        """
        labels = self.loss(names).loss
        return WeightedMean(
            DistillationLoss(labels, self.problem, share, temperature)
        )

    def head(self, backbone, names, options):
        return AlbertForSequenceClassification(
            backbone,
            num_labels=len(names) if names else 1,
            labels=names,
            problem=self.problem,
            dropout=options.dropout,
            exits=options.exits,
        )


class _ClassServing(Serving):
    """The signatures of an exported model that gives texts one label each.

    They return the label, its score, and the probabilities of all labels:
    `label` is string [B], `score` float32 [B], `probabilities` float32 [B, C],
    and `labels`, the names of all labels, string [B, C]. For pairs of texts,
    `pair` is the same function; for single texts, `classify` takes `inputs`,
    tf.Examples [B] with a `text`, as usual in TensorFlow Serving.
    """

    def signatures(self, graph):
        from keras_albert.tasks import classification_graph as graphs

        return graphs.serve_classes(graph)

    def answer(self, outputs, given):
        return outputs["label"], outputs["score"]


class Classification(_TextTask):
    """One of several labels for each text, or pair of texts.

    `labels` are those of a published task, in the order of the logits.
    `metrics` are names of scores, see `metrics.measure`, the best one first; by
    default accuracy, F1 if there are two labels, and Matthews.
    """

    problem = SINGLE_LABEL
    has_classes = True
    serving = _ClassServing()

    def __init__(
        self,
        name: str,
        is_pair: bool = False,
        labels: Names = None,
        metrics: Sequence[str] | None = None,
    ):
        super().__init__(name, is_pair)
        self.labels = ClassNames(labels)
        self.metrics = metrics
        self.best = metrics[0] if metrics else "accuracy"

    def label_reader(self, names):
        return known(tables.read_label, names)

    def targets(self, table, names):
        labels = table.values[LABEL]
        return tables.label_index(labels, names, table.path, table.lines)

    def fit_linear(self, x, y, names):
        return bag_of_words.fit_classes(x, y, len(names))

    def loss(self, names):
        return classes.class_loss()

    def scores(self, outputs, features, names):
        f1 = ["f1"] if len(names) == 2 else []
        used = self.metrics or ["accuracy", *f1, "matthews"]
        predicted = self._predicted(outputs, features)
        found = metrics.measure(used, features.target, predicted, names)
        remarks = ()
        # A threshold may give one answer to all, though the model does not.
        if metrics.is_constant(np.stack(outputs).argmax(-1)):
            remarks = classes.collapse(
                features.target, predicted, names, "example"
            )
        return metrics.Scores(found.values, (*found.remarks, *remarks))

    def thresholds(self, names):
        return int(len(names) == 2 and self.labels.fixed is None)

    def tuned(self, outputs, features):
        second = special.softmax(np.stack(outputs), axis=-1)[:, 1]
        return (decisions.best_threshold(second, features.target == 1),)

    def _predicted(self, outputs, features):
        return decisions.chosen_class(np.stack(outputs), features.threshold)

    def wrongness(self, outputs, features):
        predicted = self._predicted(outputs, features)
        return classes.probabilities_of_wrong(
            np.stack(outputs), features.target, predicted
        )

    def baseline(self, features):
        if self.best == "matthews":  # 0 for any constant answer
            return 0.0
        return classes.share_of_most_frequent(features.target)

    def decode(self, outputs, features, names):
        probabilities = special.softmax(np.stack(outputs), axis=-1)
        predicted = self._predicted(outputs, features)
        return [
            {"prediction": names[label], "score": round(float(row[label]), 6)}
            for row, label in zip(probabilities, predicted, strict=True)
        ]


class _NumberServing(Serving):
    """The signature of an exported model that predicts a number of a text.

    It returns the number as `score`, float32 [B].
    """

    def signatures(self, graph):
        from keras_albert.tasks import classification_graph as graphs

        return graphs.serve_texts(graph, graphs.decode_number)

    def answer(self, outputs, given):
        return None, outputs["score"]


class Regression(_TextTask):
    """A number for each text, or pair of texts."""

    problem = REGRESSION
    labels = NoLabels(outputs=1)
    serving = _NumberServing()
    adds = frozenset({"prediction"})
    best = "pearson"

    def label_reader(self, names):
        return tables.read_number

    def targets(self, table, names):
        return np.array(table.values[LABEL], "float32")[:, None]

    def fit_linear(self, x, y, names):
        return bag_of_words.fit_number(x, y)

    def loss(self, names):
        return WeightedMean(keras.losses.MeanSquaredError(reduction="none"))

    def scores(self, outputs, features, names):
        predicted, expected = np.stack(outputs)[:, 0], features.target[:, 0]
        scores = metrics.measure(["pearson", "spearman"], expected, predicted)
        error = float(np.sqrt(np.mean((expected - predicted) ** 2)))
        remarks = scores.remarks
        if metrics.is_constant(predicted) and not metrics.is_constant(expected):
            remark = metrics.collapsed(f"example is given {predicted[0]:.4g}")
            remarks = (*remarks, remark)
        values = {**scores.values, "root_mean_squared_error": error}
        return metrics.Scores(values, remarks)

    def wrongness(self, outputs, features):
        return np.abs(np.stack(outputs) - features.target)[:, 0]

    def decode(self, outputs, features, names):
        return [{"prediction": round(float(row[0]), 6)} for row in outputs]


class _SeveralServing(Serving):
    """The signature of an exported model that gives texts any number of labels.

    It returns `probabilities` float32, `labels` string, the names of all
    labels, and `chosen` bool, all of them [B, C].
    """

    def signatures(self, graph):
        from keras_albert.tasks import classification_graph as graphs

        predictor = graph.predictor
        decode = graphs.decode_several(predictor.labels, predictor.threshold)
        return graphs.serve_texts(graph, decode)

    def answer(self, outputs, given):
        labels = zip(outputs["labels"], outputs["chosen"], strict=True)
        chosen = [label for label, is_chosen in labels if is_chosen]
        return chosen, outputs["probabilities"]


class MultiLabel(_TextTask):
    """Any number of labels for each text, or pair of texts."""

    problem = MULTI_LABEL
    labels = ClassNames(nested=True, least=1)
    serving = _SeveralServing()
    best = "micro_f1"

    def label_reader(self, names):
        return known(tables.read_labels, names)

    def targets(self, table, names):
        target = np.zeros((len(table), len(names)), "float32")
        for row, labels in enumerate(table.values[LABEL]):
            lines = [table.lines[row]] * len(labels)
            chosen = tables.label_index(labels, names, table.path, lines)
            target[row, chosen] = 1
        return target

    def fit_linear(self, x, y, names):
        return bag_of_words.fit_several(x, y)

    def loss(self, names):
        return classes.decision_loss()

    def scores(self, outputs, features, names):
        chosen = self._predicted(outputs, features)
        scores = metrics.multilabel_scores(features.target, chosen)
        # A threshold may give one answer to all, though the model does not.
        given = np.stack(outputs) > 0
        varies, varies_with_thresholds, targets_vary = (
            len(np.unique(rows, axis=0)) > 1
            for rows in (given, chosen, features.target)
        )
        if varies or varies_with_thresholds or not targets_vary:
            return scores
        labels = [names[i] for i in np.flatnonzero(chosen[0])]
        remark = metrics.collapsed(f"example is given the labels {labels}")
        return metrics.Scores(scores.values, (*scores.remarks, remark))

    def thresholds(self, names):
        return len(names)

    def tuned(self, outputs, features):
        return decisions.best_thresholds(np.stack(outputs), features.target)

    def _predicted(self, outputs, features):
        return decisions.chosen_labels(np.stack(outputs), features.threshold)

    def wrongness(self, outputs, features):
        probabilities = special.expit(np.stack(outputs))
        chosen = self._predicted(outputs, features)
        is_wrong = chosen != features.target
        return np.where(
            is_wrong, np.where(chosen, probabilities, 1 - probabilities), 0
        ).max(1)

    def decode(self, outputs, features, names):
        decoded = []
        probabilities = special.expit(np.stack(outputs))
        predicted = self._predicted(outputs, features)
        for row, is_chosen in zip(probabilities, predicted, strict=True):
            chosen = [names[i] for i in np.flatnonzero(is_chosen)]
            named = zip(names, row, strict=True)
            score = {name: round(float(p), 6) for name, p in named}
            decoded.append({"prediction": chosen, "score": score})
        return decoded
