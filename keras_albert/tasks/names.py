"""Names of the tasks that a model is fine-tuned or used for."""

EMBEDDING, SIMILARITY = VECTOR_TASKS = ("embedding", "similarity")
# The tasks whose answers are one label of a table's own.
ONE_LABEL_TASKS = ("classification", "pairs")
_OTHERS = ("regression", "multilabel", "tokens", "choice", "qa")
OWN_TASKS = (*ONE_LABEL_TASKS, *_OTHERS, *VECTOR_TASKS)

_GLUE_OF_PAIRS = ("MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")
GLUE_TASKS = ("CoLA", "SST-2", *_GLUE_OF_PAIRS)
_GLUE_OF_LABELS = tuple(task for task in GLUE_TASKS if task != "STS-B")
_SQUAD = ("SQuAD-1.1", "SQuAD-2.0")
BENCHMARK_TASKS = (*GLUE_TASKS, "RACE", *_SQUAD)

FINETUNE_TASKS = OWN_TASKS + BENCHMARK_TASKS
# What a model is used for without fine-tuning: the pieces that may stand at
# "[MASK]". (It also gives vectors, which are poor without fine-tuning.)
(FILL_MASK,) = PRETRAINED_TASKS = ("fill_mask",)
# The tasks whose contexts, of any length, are read in windows.
READING_TASKS = ("qa", *_SQUAD)
# The tasks whose answers are one label of a table's own, or several.
DECISION_TASKS = (*ONE_LABEL_TASKS, "multilabel")
# The tasks that read long texts in windows, if they are single texts.
LONG_TEXT_TASKS = ("classification", "regression", "multilabel")
# Tasks with one output for a text or pair: for early exits and teachers.
TEXT_TASKS = (*ONE_LABEL_TASKS, "regression", "multilabel", *GLUE_TASKS)

# The options of `finetune` that only some tasks take, and these tasks. The
# options whose names begin with `embedding.` are those of `embedding`.
TASK_OPTIONS = {
    "windows": READING_TASKS,
    "answers": READING_TASKS,
    "embedding": VECTOR_TASKS,
    "embedding.symmetric": (EMBEDDING,),
    "embedding.loss": (SIMILARITY,),
    "embedding.score_range": (SIMILARITY,),
    "tune_threshold": DECISION_TASKS,
    "calibrate": ONE_LABEL_TASKS,
    "class_weights": ONE_LABEL_TASKS + _GLUE_OF_LABELS,
    "exits": TEXT_TASKS,
    "teacher": TEXT_TASKS,
    # Numbers of a teacher are compared as they are.
    "temperature": tuple(
        task for task in TEXT_TASKS if task not in ("regression", "STS-B")
    ),
    "any_size": BENCHMARK_TASKS,
    "columns": OWN_TASKS,
    # Vectors and the answers of SQuAD 1.1 are computed without dropout.
    "classifier_dropout": tuple(
        task
        for task in FINETUNE_TASKS
        if task not in (*VECTOR_TASKS, "SQuAD-1.1")
    ),
}
