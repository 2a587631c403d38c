"""What a model answers that was only pretrained: vectors, and masked words.

Nothing is learned here, so these rows have the part of `tasks.Task` that a
prediction needs and no more.

Letters: B texts, M masks of a text, K best pieces, S tokens, V vocabulary,
H hidden size.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from scipy import special

from keras_albert.data.batches import Features
from keras_albert.data.config import TableColumns
from keras_albert.data.tables import Field, Table, read_parts, read_text
from keras_albert.errors import AlbertError
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import FILL_MASK_CHOICES
from keras_albert.modeling.pretraining import MASK, Fill, filled, masked_ids
from keras_albert.tasks.names import EMBEDDING, FILL_MASK
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.text.model_inputs import Row, text_rows
from keras_albert.text.normalization import to_text
from keras_albert.text.special_tokens import MASK_ID
from keras_albert.text.tokenizer import Tokenizer

Outputs = list


def predict_on_batch(model, x: Mapping[str, np.ndarray]):
    """The outputs of the model itself: what most tasks compute."""
    return model.predict_on_batch(x)


@dataclasses.dataclass(frozen=True)
class PretrainedTask:
    """A row of PRETRAINED."""

    features: Callable[[Tokenizer, Table, int], Features]
    """tokenizer, table, tokens of the longest row -> examples"""
    compute: Callable
    """model, batch -> its outputs by name, or a single one"""
    decode: Callable[[Outputs, Features, None], list[dict[str, object]]]
    """the columns that a prediction adds, of each example"""
    answers: Callable[[Outputs, Features], object]
    """what `Predictor.predict` returns for the examples"""
    adds: frozenset[str]
    """the names of what `decode` gives"""
    has_classes: bool = False

    def inputs(self, columns: TableColumns) -> dict[str, Field]:
        """The fields that a prediction needs."""
        return {"text": Field(columns.text, read_text)}

    def fields(
        self, columns: TableColumns, labelled: bool, names: None = None
    ) -> dict[str, Field]:
        """`Task.fields`; AlbertError where labels are asked for."""
        if labelled:
            raise AlbertError(
                "labelled examples are for a fine-tuned model, and this one "
                "was only pretrained. Run `keras-albert finetune` first."
            )
        return self.inputs(columns)

    def parts(self, *arguments, **options) -> Iterator[Table]:
        """`read_parts`."""
        return read_parts(*arguments, **options)

    def read(
        self, path, columns: TableColumns, labelled: bool, skip_bad=False, *_
    ) -> Table:
        """`Task.read`: a whole file."""
        (table,) = self.parts(path, self.fields(columns, labelled), skip_bad)
        return table

    def examples(
        self, tokenizer: Tokenizer, table: Table, names, length: int, reading
    ) -> Features:
        """`Task.examples`."""
        return self.features(tokenizer, table, length)


# A vector for a text.


def _text_features(tokenizer, table, length) -> Features:
    return Features(text_rows(tokenizer, table.values["text"], None, length))


def _decode_vectors(outputs, features, names) -> list[dict[str, object]]:
    return [
        {"prediction": [round(float(x), 6) for x in vector]}
        for vector in outputs
    ]


# The pieces that "[MASK]" hides in a text.


def _masked_features(tokenizer, table, length) -> Features:
    rows = []
    texts = [*map(to_text, table.values["text"])]
    for line, text in zip(table.lines, texts, strict=True):
        ids = masked_ids(tokenizer, text)
        tokens, segments = tokenizer.pack(ids, None, length)
        written = text.count(MASK)
        if not written or tokens.count(MASK_ID) != written:
            raise AlbertError(
                f'{table.path}:{line}: each text needs "{MASK}" within the '
                f"first {length} tokens. Received: {text!r:.80}. Write one, or "
                "shorten the text."
            )
        rows.append(
            Row(np.array(tokens, "int32"), len(segments), len(ids) + 2 > length)
        )
    return Features(rows, source=texts)


def _best_pieces(model, x: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`pieces`, `scores` and `ids` [B, M, K], as the graph gives them."""
    if not isinstance(model, AlbertModel):  # the graph itself
        return model.predict_on_batch(x)
    is_mask = x["token_ids"] == MASK_ID
    most = int(is_mask.sum(axis=1).max())
    # A power of two, so that few shapes are compiled.
    positions = np.zeros((len(is_mask), 1 << (most - 1).bit_length()), "int32")
    for row, found in enumerate(is_mask):
        found = np.flatnonzero(found)
        positions[row, : len(found)] = found
    outputs = model.predict_on_batch({**x, "masked_positions": positions})
    logits = outputs["mlm"] if isinstance(outputs, dict) else outputs
    # The model may know more ids than the vocabulary has pieces.
    odds = special.softmax(np.asarray(logits), axis=-1)
    odds = odds[..., : model.tokenizer.vocab_size]
    ids = np.argsort(-odds, axis=-1)[..., :FILL_MASK_CHOICES]
    pieces = np.vectorize(model.tokenizer.id_to_piece, otypes=[object])
    return {
        "pieces": pieces(ids),
        "scores": np.take_along_axis(odds, ids, axis=-1),
        "ids": ids.astype("int32"),
    }


def _decode_fills(outputs, features, names) -> list[dict[str, object]]:
    decoded = []
    for row, output in zip(features.rows, outputs, strict=True):
        count = int((row.token_ids == MASK_ID).sum())
        decoded.append(
            {
                "prediction": output["pieces"][:count].tolist(),
                "score": np.round(
                    output["scores"][:count].astype("float64"), 6
                ).tolist(),
            }
        )
    return decoded


def _fills(outputs, features) -> list[list[list[Fill]]]:
    """As `model.fill_mask`."""
    answers = []
    for text, output in zip(features.source, outputs, strict=True):
        answers.append(
            [
                [
                    filled(text, number, piece, float(score))
                    for piece, score in zip(
                        output["pieces"][number],
                        output["scores"][number],
                        strict=True,
                    )
                ]
                for number in range(text.count(MASK))
            ]
        )
    return answers


PRETRAINED = {
    EMBEDDING: PretrainedTask(
        features=_text_features,
        compute=predict_on_batch,
        decode=_decode_vectors,
        answers=lambda outputs, features: np.stack(outputs),
        adds=frozenset({"prediction"}),
    ),
    FILL_MASK: PretrainedTask(
        features=_masked_features,
        compute=_best_pieces,
        decode=_decode_fills,
        answers=_fills,
        adds=frozenset({"prediction", "score"}),
    ),
}

USES = ALL_TASKS | PRETRAINED
"""everything that a Predictor answers, by the name of its task"""
