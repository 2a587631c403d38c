"""Writes the model card (README.md) of a fine-tuned model.

Its sections follow Mitchell et al. 2019: details, training data, evaluation,
use and limits. It states only what the run knows.
"""

import math
from pathlib import Path

import keras

from keras_albert import __version__
from keras_albert.checkpoints.lora import ADAPTER_FOLDER
from keras_albert.finetuning.config import OWN_VALIDATION, FinetuneRun
from keras_albert.finetuning.report import (
    BAG_OF_WORDS,
    START,
    TEACHER,
    decision_lines,
)
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.storage import replacing
from keras_albert.tasks.config import CUT
from keras_albert.tasks.question_answering.config import ReadingConfig
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.training.run_folder import INPUTS

CARD_FILE = "README.md"
SHOWN_LABELS = 30
THIS_FOLDER = "this folder"  # where the model is, in the card's example
# What the Hub calls the formats, and what models are for.
_LIBRARIES = {"huggingface": "transformers", "kerashub": "keras-hub"}
_USES = {
    "AlbertForMaskedLM": "fill-mask",
    "AlbertForQuestionAnswering": "question-answering",
    "AlbertForQuestionAnsweringV2": "question-answering",
    "AlbertForSequenceClassification": "text-classification",
    "AlbertForTextEmbedding": "sentence-similarity",
    "AlbertForTokenClassification": "token-classification",
}


def card(
    run: FinetuneRun,
    report: dict,
    model: AlbertModel,
    labels: tuple[str, ...] | None,
    length: int,
    reading: ReadingConfig | None,
) -> str:
    """The card as Markdown.

    `run` has all settings that were chosen for it, and `report` the key "best"
    if rows were held out. `length` is the most tokens of a row.
    """
    start = f"`{_name(run.model)}`"
    if run.from_scratch:
        start = "random weights"
    elif Path(run.model).parent == Path(INPUTS.format(run.output)):
        start = "a model in memory"
    call, limit = ALL_TASKS[run.task].card(run.columns, length, reading)
    if run.long_texts != CUT:
        limit = (
            f"A text of more than {length:,} tokens is read in overlapping "
            f"windows, and the {run.long_texts} of their outputs is taken. "
            "Exported models cut it."
        )
    lines = [
        f"# ALBERT for {run.task}",
        "",
        f"Fine-tuned with keras-albert {__version__} on the {_backend()} "
        "backend.",
        "",
        "## Model",
        "",
        _size(model),
        *_vectors(model),
        f"- started from {start}",
        *_labels(labels or ()),
        "",
        "## Training",
        "",
        f"- {report['training_examples']:,} examples of `{_name(run.train)}`",
        *_left_out(report),
        f"- the model of step {report['step']:,} is kept, after "
        f"{report['epoch']:.1f} passes over the examples",
        f"- batches of {run.batch_size}, learning rate {run.learning_rate:g}, "
        f"seed {run.seed}; everything else is in `run.json`",
        *_extras(run),
        "",
        "## Evaluation",
        "",
        *_evaluation(run, report),
        "",
        "## Use",
        "",
        "```python",
        "import keras_albert as ka",
        "",
        f"print(ka.{call})".replace("MODEL", f'"{THIS_FOLDER}"'),
        "```",
        "",
        "## Limits",
        "",
        f"- {limit}",
        "- It has only seen texts like its training examples. Other kinds of "
        "text and other languages need examples of their own.",
        "- It repeats the decisions of those who made the examples, with their "
        "mistakes and prejudices.",
        "",
    ]
    return "\n".join(lines)


def hub_card(model: AlbertModel, to: str, target: str, text: str | None) -> str:
    """The card of a model in a repository of the Hub.

    `to` is its format there, one of FORMATS, and `target` such as
    `hf://organization/name`. `text` is the model's own card; None if it has
    none. It gets the fields by which the Hub finds models, unless it has them.
    """
    if text is None:
        text = "\n".join(
            [
                f"# {target.rpartition('/')[2]}",
                "",
                f"An ALBERT model, {type(model).__name__}, uploaded with "
                f"keras-albert {__version__}.",
                "",
                _size(model),
                *_labels(getattr(model, "labels", None) or ()),
                "",
                "```python",
                "import keras_albert as ka",
                "",
                f'model = ka.load("{THIS_FOLDER}")',
                "```",
                "",
                "What it was trained on, and how good it is, was not known "
                "when this card was written.",
                "",
            ]
        )
    text = text.replace(f'"{THIS_FOLDER}"', f'"{target}"')
    if text.startswith("---"):
        return text
    use = _USES.get(type(model).__name__, "feature-extraction")
    fields = f"library_name: {_LIBRARIES.get(to, to)}\npipeline_tag: {use}"
    return f"---\n{fields}\ntags: [albert, keras]\n---\n\n{text}"


def _size(model: AlbertModel) -> str:
    size = model.config
    # Adapters are merged in the folder.
    adapters = sum(
        math.prod(factor.shape)
        for leaf in model.leaves().values()
        if leaf.lora_enabled and isinstance(leaf, keras.layers.Dense)
        for factor in (leaf.lora_kernel_a, leaf.lora_kernel_b)
    )
    return (
        f"- {model.count_params() - adapters:,} parameters: "
        f"{size.num_hidden_layers} "
        f"layers of width {size.hidden_size}, {size.num_hidden_groups} "
        f"group(s) of shared weights, {size.vocab_size:,} pieces of vocabulary"
    )


def _vectors(model: AlbertModel) -> list[str]:
    if not isinstance(model, AlbertForTextEmbedding):
        return []
    kind = model.pooling.replace("_", " ")
    return [f"- vectors of {model.size:,} numbers, by {kind} pooling"]


def _labels(labels: tuple[str, ...]) -> list[str]:
    shown = ", ".join(f"`{name}`" for name in labels[:SHOWN_LABELS])
    more = ", ..." if len(labels) > SHOWN_LABELS else ""
    return [f"- {len(labels)} labels: {shown}{more}"] if labels else []


def _extras(run: FinetuneRun) -> list[str]:
    """Lines on the options of the run that changed the model."""
    lines = []
    if run.optimizer != FinetuneRun.optimizer:
        lines.append(f"- the optimizer was {run.optimizer}")
    if run.depth is not None:
        lines.append(f"- `--depth` gave it {run.depth} layers")
    if run.freeze is not None:
        lines.append(
            f"- `--freeze {run.freeze}` left those weights as they are"
        )
    if run.lora_rank is not None:
        lines.append(
            f"- only adapters (LoRA) of rank {run.lora_rank}, the pooler and "
            "the head were trained; the folder "
            f"`{ADAPTER_FOLDER}` of the run has them alone"
        )
    if run.teacher is not None:
        lines.append(
            "- it also learned from the predictions of the teacher "
            f"`{_name(run.teacher)}`, which have the weight "
            f"{run.teacher_share:g} in the loss"
        )
    if run.exits:
        lines.append(
            "- it has a classifier after every layer, and may stop before the "
            "last one: see `early_exit` of `ka.Predictor.load`"
        )
    return lines


def _left_out(report: dict) -> list[str]:
    count = report["skipped"]["train"]
    return [f"- {count:,} bad rows were left out"] if count else []


def _evaluation(run: FinetuneRun, report: dict) -> list[str]:
    if "best" not in report:
        return ["No rows were held out, so the model has not been evaluated."]
    own = run.validation in (None, OWN_VALIDATION)
    source = run.train if own else run.validation
    lines = [
        f"{report['count']:,} held-out examples of `{_name(source)}`. The step "
        f"to keep {_tuned(report)} chosen on them, so scores on new text may "
        "be a little lower.",
        "",
        "| score | value |",
        "|---|---|",
    ]
    skipped = {"baseline", "training_loss", "epoch", "threshold"}
    skipped |= {START, TEACHER}
    words = {BAG_OF_WORDS: f"{report['best']} of {report.get('of_words')}"}
    lines += [
        f"| {words.get(name, name.replace('_', ' '))} | {value:.4f} |"
        for name, value in report.items()
        if isinstance(value, float) and name not in skipped
    ]
    if report["baseline"] is not None:
        lines.append(
            f"| {report['best']} of always {report['constant']} | "
            f"{report['baseline']:.4f} |"
        )
    for name, what in ((TEACHER, "of the teacher"), (START, "at the start")):
        if report.get(name) is not None:
            lines.append(f"| {report['best']} {what} | {report[name]:.4f} |")
    if remarks := [*report["remarks"], *decision_lines(report)]:
        lines += ["", *(f"- {remark}" for remark in remarks)]
    return lines


def _tuned(report: dict) -> str:
    limit, also = report.get("threshold"), []
    if isinstance(limit, float):
        also.append(f'the limit for "no answer" ({limit:.4g})')
    if "calibration" in report:
        also.append("the temperature")
    if isinstance(limit, dict):
        also.append("the thresholds")
    return f"and {' and '.join(also)} were" if also else "was"


def write_card(folder: Path, text: str) -> None:
    """Writes the card into a model's folder."""
    with replacing(folder / CARD_FILE) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _name(source: str | Path) -> str:
    """The last part of a path, since a card may be published."""
    text = str(source)
    name = text if "://" in text else Path(text).resolve().name
    # The bytes of a file's name need not be UTF-8, those of a card must be.
    return name.encode(errors="replace").decode()


def _backend() -> str:
    names = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
    name = keras.backend.backend()
    return names.get(name, name)
