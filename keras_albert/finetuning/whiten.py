"""The command `whiten`: vectors that tell texts apart, without training."""

import itertools

import numpy as np

from keras_albert.data.tables import (
    Field,
    MissingColumn,
    check_table,
    read_parts,
    read_text,
)
from keras_albert.distribution.backend import leave_gpu_to_backend
from keras_albert.errors import AlbertError
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import print_skipped
from keras_albert.finetuning.vectors_config import WhitenRun
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.storage import check_free
from keras_albert.tasks.names import EMBEDDING, VECTOR_TASKS
from keras_albert.tasks.task_file import load_with_task
from keras_albert.text.model_inputs import text_rows
from keras_albert.text.unknown import check_readable, judged


def whiten(run: WhitenRun) -> None:
    """Computes and writes the model; nothing is written after an error."""
    leave_gpu_to_backend()
    check_free(run.output)
    check_table(run.data)
    loaded = load_with_task(run.model)
    task = loaded.task["task"]
    task = task if task in VECTOR_TASKS else EMBEDDING
    source = Predictor.of(loaded, task=task)
    texts = _texts(run, source)
    model = source.model
    if run.pooling not in (None, model.pooling):
        if isinstance(loaded.model, AlbertForTextEmbedding):
            raise AlbertError(
                f"{run.model} makes vectors by {model.pooling} pooling. "
                f"Received: pooling={run.pooling!r}. Leave --pooling out, or "
                "give the pretrained model that it was made from."
            )
        model = AlbertForTextEmbedding(model.backbone, run.pooling)
        if run.pooling == "idf":
            model.adapt(texts)
    print(f"{run.model} reads {len(texts):,} texts", flush=True)
    whitened = model.whitened(texts, run.dimensions)
    Predictor(whitened, task=task).save(run.output)
    print(f"vectors with {whitened.size} dimensions -> {run.output}")


def _texts(run: WhitenRun, predictor: Predictor) -> list[str]:
    """The different texts of the table, or some if there are too many."""
    fields = {name: Field(name, read_text) for name in run.columns}
    try:
        (table,) = read_parts(run.data, fields, run.skip_bad)
    except MissingColumn as error:
        raise AlbertError(
            f"{error} Or name the columns of the texts with --columns."
        ) from None
    print_skipped(table)
    texts = dict.fromkeys(itertools.chain(*table.values.values()))
    texts.pop("", None)  # the blank lines of a .txt file
    texts = _evenly(list(texts), run.max_texts)
    tokenizer = predictor.tokenizer
    rows = text_rows(tokenizer, texts, None, predictor.sequence_length)
    found = judged(tokenizer, rows, {"text": texts}, ["text"])
    check_readable(*found, run.data, run.any_text)
    return texts


def _evenly(texts: list[str], most: int) -> list[str]:
    """Up to `most` of the texts, evenly spread."""
    chosen = np.linspace(0, len(texts) - 1, min(len(texts), most)).astype(int)
    return [texts[index] for index in chosen]
