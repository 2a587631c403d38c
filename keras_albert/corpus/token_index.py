"""The shards of a folder as one long row of tokens.

Documents, sentences and tokens are numbered through all shards. Look-ups take
arrays and loop over the shards that they touch, never over their elements.
"""

from collections.abc import Iterable

import numpy as np

from keras_albert.corpus.shards import ShardSet


class Corpus:
    """Look-ups in the memory maps of a `ShardSet`.

    Attributes:
        shards: tuple of K `Shard`.
        first_documents, first_sentences, first_tokens: int64 [K + 1], the
            number of the first one in each shard, then the count of all.
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
        """Documents in all shards."""
        return int(self.first_documents[-1])

    def token_offsets(self, sentences: np.ndarray) -> np.ndarray:
        """int64, any shape: the first token of each sentence.

        The number of all sentences gives the number of all tokens.
        """
        offsets = np.empty_like(sentences)
        for shard, mine in _by_shard(self.first_sentences, sentences):
            local = sentences[mine] - self.first_sentences[shard]
            offsets[mine] = self.shards[shard].sentences[local]
            offsets[mine] += self.first_tokens[shard]
        return offsets

    def sentences_from(self, tokens: np.ndarray) -> np.ndarray:
        """int64 [R]: the first sentence that begins at or after each token."""
        found = np.empty_like(tokens)
        for shard, mine in _by_shard(self.first_tokens, tokens):
            local = tokens[mine] - self.first_tokens[shard]
            found[mine] = np.searchsorted(self.shards[shard].sentences, local)
            found[mine] += self.first_sentences[shard]
        return found

    def documents_of(self, sentences: np.ndarray) -> np.ndarray:
        """Sentences at which the document of each begins and ends.

        Args:
            sentences: int64 [R].

        Returns:
            int64 [2, R].
        """
        bounds = np.empty((2, len(sentences)), "int64")
        for shard, mine in _by_shard(self.first_sentences, sentences):
            first = self.first_sentences[shard]
            documents = self.shards[shard].documents
            after = np.searchsorted(
                documents, sentences[mine] - first, side="right"
            )
            bounds[:, mine] = documents[[after - 1, after]] + first
        return bounds

    def read(
        self, starts: np.ndarray, lengths: np.ndarray, width: int
    ) -> np.ndarray:
        """Rows of two spans of tokens, one after the other, then zeros.

        Args:
            starts, lengths: int64 [R, 2], tokens.
            width: W, at least the longest row's sum of lengths.

        Returns:
            int32 [R, W].
        """
        text = np.zeros(len(starts) * width, "int32")
        places = np.zeros_like(starts)
        places[:, 0] = np.arange(len(starts)) * width
        places[:, 1] = places[:, 0] + lengths[:, 0]
        for shard, mine in _by_shard(self.first_tokens, starts):
            sizes, shift = lengths[mine], starts[mine] - places[mine]
            skipped = places[mine] - (np.cumsum(sizes) - sizes)
            place = np.arange(sizes.sum()) + np.repeat(skipped, sizes)
            source = place + np.repeat(shift - self.first_tokens[shard], sizes)
            text[place] = self.shards[shard].tokens[source]
        return text.reshape(-1, width)


def _starts(counts: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *counts], dtype="int64")


def _by_shard(firsts: np.ndarray, numbers: np.ndarray):
    """(shard, mask of the numbers that lie in it), for each that has any."""
    shards = np.searchsorted(firsts, numbers, side="right") - 1
    shards = np.minimum(shards, len(firsts) - 2)  # the end of the last one
    for shard in np.unique(shards):
        yield shard, shards == shard
