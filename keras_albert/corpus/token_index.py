"""Corpus: looks up documents, sentences and tokens over all shards.

Documents, sentences and tokens are numbered consecutively through all shards.
Look-ups take arrays; they loop over the shards concerned, not over elements.
"""

from collections.abc import Iterable

import numpy as np

from keras_albert.corpus.shards import ShardSet


class Corpus:
    """Look-ups in the memory maps of K shards.

    `first_documents`, int64 [K + 1], has the number of the first document of
    each shard, and the number of all documents; `first_sentences` and
    `first_tokens` are the same for sentences and tokens.
    """

    def __init__(self, shards: ShardSet):
        self.shards = shards.shards
        self.first_documents = _starts(
            len(shard.documents) - 1 for shard in self.shards
        )
        self.first_sentences = _starts(
            len(shard.sentences) - 1 for shard in self.shards
        )
        self.first_tokens = _starts(len(shard.tokens) for shard in self.shards)

    @property
    def num_documents(self) -> int:
        """Number of documents in all shards."""
        return int(self.first_documents[-1])

    def token_offsets(self, sentences: np.ndarray) -> np.ndarray:
        """The number of the first token of each sentence, int64 of any shape.

        The index after the last sentence gives the number of all tokens.
        """
        offsets = np.empty_like(sentences)
        for shard, mine in _by_shard(self.first_sentences, sentences):
            local = sentences[mine] - self.first_sentences[shard]
            offsets[mine] = self.shards[shard].sentences[local]
            offsets[mine] += self.first_tokens[shard]
        return offsets

    def sentences_from(self, tokens: np.ndarray) -> np.ndarray:
        """The first sentence that begins at or after each token, int64 [R]."""
        found = np.empty_like(tokens)
        for shard, mine in _by_shard(self.first_tokens, tokens):
            local = tokens[mine] - self.first_tokens[shard]
            found[mine] = np.searchsorted(self.shards[shard].sentences, local)
            found[mine] += self.first_sentences[shard]
        return found

    def documents_of(self, sentences: np.ndarray) -> np.ndarray:
        """The bounds of the documents that sentences, int64 [R], belong to.

        Returns int64 [2, R]: the first sentence, and the one after the last.
        """
        return self.sentences_in(self.document_numbers(sentences))

    def sentences_in(self, numbers: np.ndarray) -> np.ndarray:
        """The bounds of documents, by their numbers, as in `documents_of`."""
        bounds = np.empty((2, len(numbers)), "int64")
        for shard, mine in _by_shard(self.first_documents, numbers):
            local = numbers[mine] - self.first_documents[shard]
            bounds[:, mine] = self.shards[shard].documents[[local, local + 1]]
            bounds[:, mine] += self.first_sentences[shard]
        return bounds

    def document_numbers(self, sentences: np.ndarray) -> np.ndarray:
        """The number of the document of each sentence, int64 [R]."""
        numbers = np.empty_like(sentences)
        for shard, mine in _by_shard(self.first_sentences, sentences):
            local = sentences[mine] - self.first_sentences[shard]
            after = np.searchsorted(
                self.shards[shard].documents, local, side="right"
            )
            numbers[mine] = after - 1 + self.first_documents[shard]
        return numbers

    def read(
        self, starts: np.ndarray, lengths: np.ndarray, width: int
    ) -> np.ndarray:
        """Reads two spans of tokens into each row, int32 [R, W], padded with 0.

        `starts` and `lengths` are int64 [R, 2], in tokens; `width` is W.
        """
        # Both arrays are treated as flat: `place` is the index in the result,
        # and `source` the index in the shard, of every token that is copied.
        text = np.zeros(len(starts) * width, "int32")
        places = np.zeros_like(starts)
        places[:, 0] = np.arange(len(starts)) * width
        places[:, 1] = places[:, 0] + lengths[:, 0]
        for shard, mine in _by_shard(self.first_tokens, starts):
            sizes, first = lengths[mine], self.first_tokens[shard]
            place = concatenated_ranges(places[mine], sizes)
            source = concatenated_ranges(starts[mine] - first, sizes)
            text[place] = self.shards[shard].tokens[source]
        return text.reshape(-1, width)


def concatenated_ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Concatenates the ranges starts[i] : starts[i] + sizes[i]."""
    skipped = starts - (np.cumsum(sizes) - sizes)
    return np.arange(sizes.sum()) + np.repeat(skipped, sizes)


def _starts(counts: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *counts], dtype="int64")


def _by_shard(firsts: np.ndarray, numbers: np.ndarray):
    """Yields each shard that has any of the numbers, with a mask of these."""
    shards = np.searchsorted(firsts, numbers, side="right") - 1
    # The number after the last one belongs to the last shard.
    shards = np.minimum(shards, len(firsts) - 2)
    for shard in np.unique(shards):
        yield shard, shards == shard
