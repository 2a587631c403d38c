"""A vector for each text, and the similarity of two texts.

Letters: N examples, T texts of an example, D size of the vectors.
"""

import abc
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
from scipy import sparse

from keras_albert.data.bad_rows import place_of
from keras_albert.data.batches import Features
from keras_albert.data.frames import Frame
from keras_albert.data.tables import (
    Field,
    Table,
    read_number,
    read_parts,
    read_text,
    read_text_or_texts,
)
from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.config import IDF_FIRST_LAST, POOLINGS
from keras_albert.modeling.ensemble import AlbertEnsemble
from keras_albert.modeling.pooling import (
    inverse_document_frequencies,
)
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.tasks import bag_of_words, metrics
from keras_albert.tasks.config import HeadOptions
from keras_albert.tasks.labels import LABEL
from keras_albert.tasks.serving import Serving
from keras_albert.tasks.task import PAIR, LearnedTask
from keras_albert.tasks.vector_scores import cosines, search_scores
from keras_albert.text.model_inputs import text_rows
from keras_albert.text.normalization import normalize
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.training.embedding_losses import (
    CosineLoss,
    MultipleNegativesRanking,
)

VECTOR = "a vector for a text"  # what the head predicts
NEGATIVE = "negative"  # the field of the first texts that do not match


class _VectorTask(LearnedTask):
    """A task whose model computes a vector for each text."""

    heads = {VECTOR: (AlbertForTextEmbedding, AlbertBackbone)}
    of_words = "the cosine of TF-IDF vectors"
    measures_start = True
    compares_all_scores = True
    makes_vectors = True
    use: str  # a call of the model, for the model card

    def reads_pairs(self, columns):
        return False  # each text has a row of its own

    def features(self, tokenizer, table, names, length):
        columns = _texts_of(table)
        rows = text_rows(
            tokenizer,
            # the texts of an example, one after another
            [text for texts in zip(*columns, strict=True) for text in texts],
            None,
            length,
        )
        several = len(columns) if len(columns) > 1 else None
        target = self.target_of(tokenizer, table)
        return Features(rows, target, choices=several)

    @abc.abstractmethod
    def target_of(
        self, tokenizer: Tokenizer, table: Table
    ) -> np.ndarray | None:
        """The targets of the loss for the vectors of a table, if it has any."""

    def head(self, backbone, names, options):
        """A model that computes vectors, with a fresh projection, if any.

        The projection reads pooled vectors without dropout.
        """
        embedding = options.embedding
        model = AlbertForTextEmbedding(
            backbone,
            embedding.pooling or POOLINGS[0],
            embedding.projection,
            options.max_tokens,
            embedding.normalize,
        )
        model.rows_at_once = embedding.rows_at_once
        too_long = [size for size in embedding.dimensions if size > model.size]
        if too_long:
            raise AlbertError(
                f"`embedding.dimensions` must be at most {model.size}, the "
                f"size of the vectors. Received: {too_long[0]}."
            )
        return model

    def continued(self, names):
        return AlbertForTextEmbedding

    def continued_options(self, options, source, name):
        given, projection = options.embedding, source.projection
        poolings = {source.pooling, given.pooling or source.pooling}
        if projection and len(poolings) > 1 and IDF_FIRST_LAST in poolings:
            raise AlbertError(
                f"{name} has a projection of vectors by {source.pooling} "
                f"pooling. Received: embedding.pooling={given.pooling!r}. "
                "Leave --embedding.pooling out, or start from a model without "
                "projection."
            )
        embedding = dataclasses.replace(
            given,
            pooling=given.pooling or source.pooling,
            projection=given.projection or (projection and projection.units),
            normalize=given.normalize or source.normalize,
        )
        most = options.max_tokens or source.max_tokens
        return dataclasses.replace(
            options, embedding=embedding, max_tokens=most
        )

    def describe_head(self, options):
        size = options.embedding.projection
        projection = f"projection to {size}" if size else "no projection"
        return f"the head ({options.embedding.pooling} pooling, {projection})"

    def head_is_learned(self, options):
        embedding = options.embedding
        return (
            embedding.projection is not None
            or embedding.pooling == "weighted_layers"
        )

    def start_head(self, model, source, rows):
        """Copies what both heads have; counts the weights of pieces if needed.

        Arrays are copied: a step of training on JAX gives up those of its
        model.
        """
        old, new = getattr(source, "projection", None), model.projection
        if old is not None and new is not None and old.units == new.units:
            new.set_weights(old.get_weights())
        old, new = getattr(source, "layer_weights", None), model.layer_weights
        if old is not None and new is not None and old.shape == new.shape:
            new.assign(keras.ops.convert_to_numpy(old))
        old, new = getattr(source, "token_weights", None), model.token_weights
        if new is not None:
            new.assign(
                inverse_document_frequencies(rows, model.config.vocab_size)
                if old is None
                else keras.ops.convert_to_numpy(old)
            )

    def model_of(self, model):
        if isinstance(model, AlbertEnsemble):
            raise AlbertError(
                "vectors of different models cannot be averaged. Received: "
                f"{len(model.members)} models. Give one of them."
            )
        if isinstance(model, AlbertForTextEmbedding):
            return model
        return AlbertForTextEmbedding(getattr(model, "backbone", model))

    def fits(self, model):
        return True

    def card(self, columns, length, reading):
        _, limit = super().card(columns, length, reading)
        return f"load(MODEL).{self.use}", limit

    def loss(self, names):
        return self.training_loss(names, HeadOptions())

    @abc.abstractmethod
    def training_loss(self, names, options):
        """The loss with the options of a run."""

    def texts(self, table: Table) -> list[str]:
        """All texts of a table."""
        return [text for column in _texts_of(table) for text in column]

    def scores_with_corpus(
        self, table: Table, features: Features, outputs, others=(), vectors=None
    ) -> tuple[dict[str, float], dict[str, float] | None]:
        """Scores with more texts to choose from, by the model and by TF-IDF.

        Args:
            table, features, outputs: the labelled examples, and the model's
                vectors of their texts.
            others: M further texts, among which a partner must be found, too.
            vectors: the model's vectors of `others`, [M, D].

        Returns:
            the scores of the model's vectors, and those of TF-IDF vectors of
            the same texts; the latter are None if the texts have no words.
        """
        of_words = word_vectors([[*self.texts(table), *others]], table, others)
        if of_words is not None:
            rows, sparse_vectors = of_words
            found = self.scores_among(
                rows, features, sparse_vectors if len(others) else None
            )
            of_words = found.values
        return self.scores_among(outputs, features, vectors).values, of_words

    def scores_of_sizes(
        self, outputs, features, sizes: Sequence[int], others=None
    ) -> dict[str, float]:
        """The score `best` of vectors of which only the first numbers are kept.

        `sizes` says how many numbers are kept; there is a score for each size.
        `others` are the vectors of further texts, see `scores_among`.
        """
        scores = {}
        for size in sizes:
            cut = [vectors[..., :size] for vectors in outputs]
            of_others = None if others is None else others[:, :size]
            values = self.scores_among(cut, features, of_others).values
            scores[f"{self.best}_of_{size}_numbers"] = values[self.best]
        return scores

    def scores_among(self, outputs, features, others) -> metrics.Scores:
        """The scores of the vectors `outputs`.

        `others`, vectors [M, D] of further texts to choose from, or None, only
        count in tasks in which texts are searched.
        """
        return self.scores(outputs, features, None)

    def held_out_loss(self, outputs, features, names):
        return {}  # it would depend on which rows share a batch

    def linear_outputs(self, train, held_out, names):
        """TF-IDF vectors of the held-out texts, as sparse rows [T, D].

        Frequencies of words are counted in the held-out texts themselves, as
        by `evaluate`, which knows no others.
        """
        found = word_vectors(_texts_of(held_out), held_out)
        return None if found is None else found[0]


def _texts_of(table: Table) -> list[Sequence[str]]:
    """The columns of a table that hold texts: the text, its partner, others.

    A column of lists of texts counts as several columns.
    """
    columns: list[Sequence[str]] = []
    for name, values in table.values.items():
        if values and isinstance(values[0], list):
            columns += zip(*values, strict=True)
        elif name != LABEL:
            columns.append(values)
    return columns


def _plain_pairs(
    table: Table, tokenizer: Tokenizer
) -> tuple[list[str], list[str]]:
    """The texts and their partners, as the vocabulary distinguishes them."""
    texts, partners = (
        [normalize(text, **tokenizer.settings) for text in table.values[name]]
        for name in ("text", PAIR)
    )
    return texts, partners


def word_vectors(
    texts: Sequence[Sequence[str]], table: Table, others: Sequence[str] = ()
) -> tuple[list, sparse.csr_matrix] | None:
    """TF-IDF vectors of the texts of a table, and of further texts.

    Args:
        texts: columns of texts from which the frequencies of words are counted.
        table: the table whose texts get vectors.
        others: M further texts that get vectors.

    Returns:
        for each row of the table a sparse matrix [T, D], and one of `others`,
        [M, D]; None if `texts` have no words.
    """
    columns = _texts_of(table)
    found = bag_of_words.vectors(texts, [*columns, others or [""]])
    if found is None:
        return None
    *columns, others = found
    return [
        sparse.vstack([column[row] for column in columns], "csr")
        for row in range(len(table))
    ], others


class _VectorServing(Serving):
    """The signature of an exported model that computes vectors of texts.

    It takes `text`, string [B], and returns `embedding`, float32 [B, D].
    """

    output = "embedding"

    def signatures(self, graph):
        return {"serving_default": graph.embed}

    def answer(self, outputs, given):
        return None, outputs["embedding"]


class Embedding(_VectorTask):
    """A vector for each text, learned from texts that belong together.

    An example is a text with a partner, and perhaps with texts that do not
    match; or a text alone, whose partner is the text itself: the model computes
    it twice, with different dropout masks (SimCSE, Gao et al. 2021,
    arXiv:2104.08821). All models of this package give vectors, too.
    """

    serving = _VectorServing()
    searches = True
    use = 'encode(["a text", "another text"])'
    adds = frozenset({"prediction"})
    best = "mrr"

    def inputs(self, columns):
        return {"text": Field(columns.text, read_text)}

    def can_measure(self, columns):
        return columns.pair is not None  # a text alone always finds itself

    def fields(self, columns, labelled, names=None):
        fields = self.inputs(columns)
        if labelled:
            fields[PAIR] = Field(columns.pair or columns.text, read_text)
            for number, column in enumerate(columns.negative, start=1):
                name = NEGATIVE if number == 1 else f"{NEGATIVE} {number}"
                fields[name] = Field(column, read_text_or_texts)
        return fields

    def parts(
        self,
        path: str | Path | Frame,
        fields: Mapping[str, Field],
        skip_bad: bool = False,
        rows_per_part: int | None = None,
    ) -> Iterator[Table]:
        """Reads a file as `read_parts` does, and counts the negatives of rows.

        Raises AlbertError for a row with another number of negatives in a
        column than the first one has.
        """
        counts: dict[str, int | None] = {}

        def complete(row: dict, values: dict) -> dict:
            for name in [n for n in values if n.startswith(NEGATIVE)]:
                # None for a text alone, which is no list of one text.
                texts = values[name]
                count = len(texts) if isinstance(texts, list) else None
                if counts.setdefault(name, count) != count:
                    raise AlbertError(
                        f"the {name} in column `{fields[name].column}` must "
                        "have as many texts as in the first row, "
                        f"{counts[name] or 'one that is no list'}. Received: "
                        f"{texts!r:.60}. Give all rows the same number."
                    )
            return values

        return read_parts(path, fields, skip_bad, rows_per_part, complete)

    def target_of(self, tokenizer, table):
        """A number for each text, the same for equal texts: int32 [N, T].

        White space makes no difference, nor do case and accents if the
        vocabulary drops them.
        """
        columns = _texts_of(table)
        if len(columns) == 1:
            return None
        numbers: dict[str, int] = {}

        def number_of(text: str) -> int:
            plain = normalize(text, **tokenizer.settings)
            return numbers.setdefault(plain, len(numbers))

        texts = zip(*columns, strict=True)
        return np.array([[*map(number_of, each)] for each in texts], "int32")

    def training_loss(self, names, options):
        embedding = options.embedding
        return MultipleNegativesRanking(
            embedding.temperature, embedding.symmetric, embedding.dimensions
        )

    def check_training(self, train, options, tokenizer, dropout):
        texts, partners = _plain_pairs(train, tokenizer)
        same = texts == partners
        if len(texts) == 1:
            raise AlbertError(
                f"{train.path}: expected two rows or more, since the texts of "
                "other rows are the negatives. Received: 1. Add rows."
            )
        if len({*itertools.chain(*_texts_of(train)[1:])}) == 1:
            raise AlbertError(
                f"{train.path}: all partners are equal, so that there is "
                "nothing to choose from. Give different ones."
            )
        if len(set(texts)) == 1:
            raise AlbertError(
                f"{train.path}: all texts are equal, and none is a negative "
                "for another. Give different ones."
            )
        if same and not dropout:
            raise AlbertError(
                f"{train.path}: every text is its own partner, and without "
                "dropout both of its vectors are equal. Give --dropout 0.1, or "
                "name the column of the partners with --columns.pair."
            )

    def scores(self, outputs, features, names):
        return self.scores_among(outputs, features, None)

    def scores_among(self, outputs, features, others):
        """Scores of searching each text's partner among other texts.

        The other texts are the partners and negatives of all examples, and
        further texts, whose vectors are `others`: [M, D], or None.
        """
        values = search_scores(outputs, features.target, others)
        remarks = ()
        if (features.target[:, 0] == features.target[:, 1]).all():
            remarks = (
                "every text is its own partner, which any model finds: measure "
                "on pairs with `keras-albert evaluate`, and name the column of "
                "the partners with --columns.pair",
            )
        return metrics.Scores(values, remarks)

    def decode(self, outputs, features, names):
        # Of several texts of an example, the first is the text itself.
        vectors = [x if x.ndim == 1 else x[0] for x in outputs]
        return [
            {"prediction": [round(float(x), 6) for x in vector]}
            for vector in vectors
        ]

    def answers(self, outputs, features, names):
        """The vectors, float32 [N, D]."""
        return np.stack(outputs)

    def no_answers(self, model):
        # The size of an exported model's vectors is not known.
        return np.zeros((0, getattr(model, "size", 0)), "float32")


class _SimilarityServing(Serving):
    """The signature of an exported model that compares two texts.

    It takes `text` and `pair`, string [B], and returns `score`, float32 [B],
    the cosine of their vectors.
    """

    output = "embedding"

    def signatures(self, graph):
        from keras_albert.tasks.similarity_graph import serve_similarity

        return {"serving_default": serve_similarity(graph)}

    def answer(self, outputs, given):
        return None, outputs["score"]


class Similarity(_VectorTask):
    """The cosine of the vectors of two texts, learned from scores of pairs."""

    serving = _SimilarityServing()
    use = 'similarity(["a text"], ["another text"])'
    adds = frozenset({"prediction"})
    best = "spearman"

    def inputs(self, columns):
        return {
            "text": Field(columns.text, read_text),
            PAIR: Field(columns.pair or PAIR, read_text),
        }

    def label_reader(self, names):
        return read_number

    def target_of(self, tokenizer, table):
        """The given similarity of each pair of texts, float32 [N, 1]."""
        if LABEL not in table.values:
            return None
        return np.array(table.values[LABEL], "float32")[:, None]

    def training_loss(self, names, options):
        embedding = options.embedding
        return CosineLoss(
            embedding.loss,
            embedding.temperature,
            embedding.score_range or (0.0, 1.0),
            embedding.dimensions,
        )

    def check_training(self, train, options, tokenizer, dropout):
        texts, partners = _plain_pairs(train, tokenizer)
        if len(set(train.values[LABEL])) == 1:
            raise AlbertError(
                f"{train.path}: all scores are {train.values[LABEL][0]:g}: "
                "there is no order to learn. Give pairs of several scores."
            )
        if texts == partners:
            raise AlbertError(
                f"{train.path}: both texts of every pair are equal, so that "
                "their cosine is 1 in any model. Give pairs of different texts."
            )

    def check_target(self, table, options):
        if not options.embedding.score_range:
            return
        lowest, highest = options.embedding.score_range
        for score, line in zip(table.values[LABEL], table.lines, strict=True):
            if not lowest <= score <= highest:
                raise AlbertError(
                    f"{place_of(table.path, line)}: the score must be from "
                    f"{lowest:g} to {highest:g} (--embedding.score-range). "
                    f"Received: {score:g}."
                )

    def scores(self, outputs, features, names):
        expected = features.target[:, 0]
        # The vectors of a text differ by rounding. Pairs of equal texts must
        # have equal cosines, as Spearman's coefficient compares their order.
        found = np.round(cosines(outputs), 6)
        return metrics.measure(["spearman", "pearson"], expected, found)

    def decode(self, outputs, features, names):
        return [
            {"prediction": round(float(cosine), 6)}
            for cosine in cosines(outputs)
        ]
