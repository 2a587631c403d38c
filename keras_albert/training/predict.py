"""Predictions for the rows of a file, in its order."""

import json
import os
import sys
from collections.abc import Iterator

from keras_albert.config import AlbertError, PredictRun
from keras_albert.training.folders import Predictor


def predict(run: PredictRun) -> None:
    """Writes one JSON object a row: the row with what is predicted.

    Raises:
        AlbertError: the model or the data cannot be used, or the output file
            exists.
    """
    if run.output is None:
        for line in _predictions(run):
            sys.stdout.buffer.write(line)
        return
    try:
        file = run.output.open("xb")  # claimed before the work
    except FileExistsError:
        raise AlbertError(
            f"{run.output}: the file exists. Choose another output; nothing "
            "was changed."
        ) from None
    try:
        count = 0
        with file:
            for line in _predictions(run):
                file.write(line)
                count += 1
        print(f"{count:,} predictions -> {run.output}")
    except BaseException:
        os.unlink(run.output)
        raise


def _predictions(run: PredictRun) -> Iterator[bytes]:
    predictor = Predictor.load(run.model)
    table = predictor.read(run.data, labelled=False)
    features = predictor.features(table)
    outputs = predictor.outputs(features, run.batch_size)
    added = predictor.decode(outputs, features)
    taken = table.rows[0].keys() & added[0].keys()
    if taken:
        raise AlbertError(
            f"{run.data} has columns that would be replaced: "
            f"{', '.join(sorted(taken))}. Rename them."
        )
    for row, columns in zip(table.rows, added, strict=True):
        line = json.dumps({**row, **columns}, ensure_ascii=False)
        # A lone surrogate, which JSON may hold, becomes a JSON escape again.
        yield f"{line}\n".encode("utf-8", errors="backslashreplace")
