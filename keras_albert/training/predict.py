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
    if run.output is not None and run.output.exists():
        raise AlbertError(
            f"{run.output}: the file exists. Choose another output; nothing "
            "was changed."
        )
    loaded = ModelFolder.load(run.model)
    classifier = Classifier.of(loaded)
    table = read_table(
        run.data, TableColumns(**loaded.task["columns"]), need_label=False
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
    content = "".join(f"{line}\n" for line in lines).encode(
        "utf-8", errors="backslashreplace"
    )
    if run.output is None:
        sys.stdout.buffer.write(content)
        return
    unfinished = run.output.with_name(f"unfinished-{run.output.name}")
    unfinished.write_bytes(content)
    os.replace(unfinished, run.output)
