"""Compares a SavedModel's answers to texts with its answers to token ids.

The ids come from the Python tokenizer. The comparison therefore covers the
tokenizer in the graph, and the decoding of outputs to answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError
from keras_albert.exports.load import Exported, is_numeric
from keras_albert.finetuning.predictor import Predictor
from keras_albert.tasks.serving import Answer

SIGNATURES = ("serving_default", "pair")
TEXTS_PER_CALL = 32  # texts that a signature is called with
# Largest difference of scores, which are computed with the same weights, but in
# rows of another length, by the data type of the computation.
TEXT_TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
# Smallest share of equal answers. A text may have two segmentations of equal
# probability, and versions of SentencePiece may choose different ones.
LEAST_SAME_TEXTS = 0.99

# the share of rows with equal answers, by the name of the signature
Shares = dict[str, float]


def compare_texts(
    exported: Predictor, table: Table, answers: Sequence[Mapping], compute: str
) -> Shares:
    """The share of rows with equal answers to texts and to ids.

    `answers` are the result of `exported.decode` for the ids; further rows of
    the table are ignored. `compute` is the data type in which the export
    computes, see `TEXT_TOLERANCES`. The result has a share for each signature;
    it is empty for formats that only take ids.
    """
    serving = exported.definition.serving
    rows = [
        (given, _expected(answer))
        for given, answer in zip(_given(exported, table), answers, strict=False)
        if given is not None
    ]
    shares = {}
    for signature in SIGNATURES:
        if signature in exported.model.signatures and rows:
            asked = _outputs_of_texts(exported.model, signature, rows)
            same = [
                _alike(
                    serving.answer(outputs, given),
                    expected,
                    TEXT_TOLERANCES[compute],
                )
                for outputs, (given, expected) in zip(asked, rows, strict=True)
            ]
            shares[signature] = float(np.mean(same))
    return shares


def text_lines(shares: Shares) -> list[str]:
    """The lines that the commands print about these shares."""
    return [
        f"{signature}: {share:.2%} of the texts get the same answer as their "
        "token ids"
        for signature, share in shares.items()
    ]


def check_same_texts(shares: Shares, folder: Path) -> None:
    """Raises AlbertError if a signature answers too many rows differently."""
    for signature, share in shares.items():
        if share < LEAST_SAME_TEXTS:
            raise AlbertError(
                f"{folder}: {signature} gives {share:.2%} of the texts the "
                "same answer as their token ids, less than "
                f"{LEAST_SAME_TEXTS:.0%}: the graph tokenizes differently from "
                "Python. Export the model again with the packages of "
                "constraints.txt, or tokenize outside and use `token_ids`."
            )


def _given(exported: Predictor, table: Table) -> Iterator[Mapping | None]:
    """The inputs of each row; None if a served model cannot take them."""
    names = exported.definition.inputs(exported.columns)
    for row in range(len(table)):
        given = {name: table.values[name][row] for name in names}
        yield exported.definition.serving.texts(given)


def _outputs_of_texts(
    model: Exported, signature: str, rows: Sequence
) -> Iterator[dict]:
    for start in range(0, len(rows), TEXTS_PER_CALL):
        part = [given for given, _ in rows[start : start + TEXTS_PER_CALL]]
        inputs = {name: [given[name] for given in part] for name in part[0]}
        outputs = model.call_signature(signature, inputs)
        for values in zip(*outputs.values(), strict=True):
            yield dict(zip(outputs, values, strict=True))


def _expected(answer: Mapping) -> Answer:
    prediction, score = answer["prediction"], answer.get("score", 0)
    if is_numeric(prediction):
        return None, prediction
    return prediction, [*score.values()] if isinstance(score, dict) else score


def _alike(found: Answer, expected: Answer, tolerance: float) -> bool:
    return found[0] == expected[0] and np.allclose(
        found[1], expected[1], tolerance, tolerance
    )
