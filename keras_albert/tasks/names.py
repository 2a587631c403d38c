"""Names of the tasks that a model is fine-tuned or used for."""

EMBEDDING, SIMILARITY = VECTOR_TASKS = ("embedding", "similarity")
# The tasks whose answers are one label of a table's own.
ONE_LABEL_TASKS = ("classification", "pairs")
_OTHERS = ("regression", "multilabel", "tokens", "choice", "qa")
OWN_TASKS = (*ONE_LABEL_TASKS, *_OTHERS, *VECTOR_TASKS)

_GLUE = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")
_SQUAD = ("SQuAD-1.1", "SQuAD-2.0")
BENCHMARK_TASKS = (*_GLUE, "RACE", *_SQUAD)

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
TEXT_TASKS = tuple(
    name
    for name in FINETUNE_TASKS
    if name not in ("tokens", "choice", "RACE", *READING_TASKS, *VECTOR_TASKS)
)
