"""The command `whiten`: vectors that tell texts apart, without training."""

import itertools

import numpy as np

from keras_albert.data.tables import Field, check_table, read_parts, read_text
from keras_albert.distribution.backend import leave_gpu_to_backend
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import WhitenRun
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import print_skipped
from keras_albert.modeling.backbone import encoder_of
from keras_albert.modeling.config import POOLINGS
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.storage import check_free
from keras_albert.tasks.names import EMBEDDING, VECTOR_TASKS
from keras_albert.tasks.task_file import load_with_task
from keras_albert.text.model_inputs import text_rows
from keras_albert.text.unknown import check_readable, judged
from keras_albert.training.model_folder import ModelFolder

COMPARED = 1_000  # texts whose cosines with one another are averaged


def whiten(run: WhitenRun) -> None:
    """Computes and writes the model; nothing is written after an error."""
    leave_gpu_to_backend()
    check_free(run.output)
    check_table(run.data)
    loaded = load_with_task(run.model)
    task = loaded.task["task"]
    task = task if task in VECTOR_TASKS else EMBEDDING
    texts = _texts(run, Predictor.of(loaded, task=task))
    model = _source(run, loaded, texts)
    whitened = model.whitened(texts, run.size)
    Predictor(whitened, task=task).save(run.output)
    before, after = (
        _mean_cosine(each.encode(_evenly(texts, COMPARED)))
        for each in (model, whitened)
    )
    print(
        f"{len(texts):,} texts; the cosine of two of them was {before:.2f} on "
        f"average, and now is {after:.2f}; vectors of {whitened.size} numbers "
        f"-> {run.output}"
    )


def _texts(run: WhitenRun, predictor: Predictor) -> list[str]:
    """The different texts of the table, or some if there are too many."""
    fields = {name: Field(name, read_text) for name in run.columns}
    (table,) = read_parts(run.data, fields, run.skip_bad)
    print_skipped(table)
    texts = list(dict.fromkeys(itertools.chain(*table.values.values())))
    texts = _evenly(texts, run.texts)
    tokenizer = predictor.tokenizer
    rows = text_rows(tokenizer, texts, None, predictor.sequence_length)
    found = judged(tokenizer, rows, {"text": texts}, ["text"])
    check_readable(*found, run.data, run.any_text)
    return texts


def _evenly(texts: list[str], most: int) -> list[str]:
    """Up to `most` of the texts, evenly spread."""
    chosen = np.linspace(0, len(texts) - 1, min(len(texts), most)).astype(int)
    return [texts[index] for index in chosen]


def _source(
    run: WhitenRun, loaded: ModelFolder, texts: list[str]
) -> AlbertForTextEmbedding:
    """The model whose vectors are whitened."""
    model = loaded.model
    if isinstance(model, AlbertForTextEmbedding):
        if run.pooling not in (None, model.pooling):
            raise AlbertError(
                f"{run.model} makes vectors by {model.pooling} pooling. "
                f"Received: pooling={run.pooling!r}. Leave --pooling out, or "
                "give the model that it was made of."
            )
        return model
    pooling = run.pooling or POOLINGS[0]
    model = AlbertForTextEmbedding(encoder_of(model), pooling)
    if pooling == "idf":
        model.adapt(texts)
    return model


def _mean_cosine(vectors: np.ndarray) -> float:
    """The mean cosine of two different vectors of length 1, [N, D]."""
    count, total = len(vectors), vectors.sum(axis=0)
    mean = (total @ total - count) / (count * (count - 1))
    return round(float(mean), 2) + 0.0  # never "-0.00"
