"""Labels for the texts of a file, in its order."""

import json
import os
import sys

from keras_albert.config import AlbertError, PredictRun, TableColumns
from keras_albert.data.tables import read_table
from keras_albert.training.folders import Classifier, ModelFolder


def predict(run: PredictRun) -> None:
    """Writes one JSON object a row: the row, `prediction` and `score`.

    Raises:
        AlbertError: the model or the data cannot be used, or the output file
            exists.
    """
    if run.output is None:
        sys.stdout.buffer.write(_predictions(run))
        return
    try:
        file = run.output.open("xb")  # claimed before the work
    except FileExistsError:
        raise AlbertError(
            f"{run.output}: the file exists. Choose another output; nothing "
            "was changed."
        ) from None
    try:
        with file:
            lines = _predictions(run)
            file.write(lines)
        count = lines.count(b"\n")
        print(f"{count:,} predictions -> {run.output}")
    except BaseException:
        os.unlink(run.output)
        raise


def _predictions(run: PredictRun) -> bytes:
    loaded = ModelFolder.load(run.model)
    classifier = Classifier.of(loaded)
    table = read_table(
        run.data, TableColumns(**loaded.task["columns"]), need_label=False
    )
    taken = {"prediction", "score"}.intersection(
        *map(dict.keys, table.rows[:1])
    )
    if taken:
        raise AlbertError(
            f"{run.data} has columns that would be replaced: "
            f"{', '.join(sorted(taken))}. Rename them."
        )
    probabilities = classifier.probabilities(
        table.texts, table.pairs, run.batch_size
    )
    lines = [
        json.dumps(
            {
                **row,
                "prediction": classifier.labels[p.argmax()],
                "score": round(float(p.max()), 6),
            },
            ensure_ascii=False,
        )
        for row, p in zip(table.rows, probabilities, strict=True)
    ]
    # A lone surrogate, which JSON may hold, becomes a JSON escape again.
    return "".join(f"{line}\n" for line in lines).encode(
        "utf-8", errors="backslashreplace"
    )
