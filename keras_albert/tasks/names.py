"""Names of the tasks that a model is fine-tuned or used for."""

OWN_TASKS = (
    "classification",
    "pairs",
    "regression",
    "multilabel",
    "tokens",
    "choice",
    "qa",
)

BENCHMARK_TASKS = (
    "CoLA",
    "SST-2",
    "MRPC",
    "STS-B",
    "QQP",
    "MNLI",
    "QNLI",
    "RTE",
    "WNLI",
    "RACE",
    "SQuAD-1.1",
    "SQuAD-2.0",
)

FINETUNE_TASKS = OWN_TASKS + BENCHMARK_TASKS
# What a model is used for without fine-tuning: a vector for a text, and the
# pieces that may stand at "[MASK]".
EMBEDDING, FILL_MASK = PRETRAINED_TASKS = ("embedding", "fill_mask")
# The tasks whose contexts, of any length, are read in windows.
READING_TASKS = ("qa", "SQuAD-1.1", "SQuAD-2.0")
