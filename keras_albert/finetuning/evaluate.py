"""The command `evaluate`: scores a fine-tuned or a pretrained model."""

import dataclasses
import functools

import numpy as np

from keras_albert.corpus.shards import ShardSet
from keras_albert.data.batches import Features
from keras_albert.data.config import TableColumns
from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.data.saved_dataset import is_saved_dataset
from keras_albert.data.tables import Table, check_has_columns, naming_columns
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import EvaluateRun
from keras_albert.finetuning.exit_curve import (
    check_can_measure,
    curve_lines,
    draw_curve,
    exit_curve,
)
from keras_albert.finetuning.mistakes import (
    Mistake,
    check_can_rank,
    mistakes,
    mistakes_lines,
    write_mistakes,
)
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import (
    BAG_OF_WORDS,
    START,
    class_report_of,
    print_skipped,
    scores_beside,
    scores_lines,
    scores_report,
)
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.pooling import checked_dimensions
from keras_albert.pretraining.config import ExampleConfig
from keras_albert.pretraining.dataset import validation_dataset
from keras_albert.pretraining.model import compile_for_pretraining
from keras_albert.pretraining.report import held_out_report, report_lines
from keras_albert.storage import check_new_file
from keras_albert.tasks.config import EarlyExit, model_names
from keras_albert.tasks.infer import head_task
from keras_albert.tasks.metrics import report_text
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.task import Outputs
from keras_albert.tasks.task_file import PRETRAINING, load_models
from keras_albert.text.model_inputs import text_rows
from keras_albert.text.normalization import normalize
from keras_albert.training.model_folder import ModelFolder
from keras_albert.training.progress import progress_verbosity


@naming_columns("--columns.{}")
def evaluate(run: EvaluateRun) -> dict:
    """Prints and returns the scores of the model on `run.data`."""
    import_tensorflow()  # before it could open a GPU of the backend
    for path, suffix in ((run.errors_file, ".csv"), (run.exit_curve, ".png")):
        if path is not None:
            check_new_file(path, suffix)
    loaded = load_models(run.model, run.average)
    if loaded.task["task"] == PRETRAINING and run.task is None:
        return _evaluate_pretrained(loaded, run)
    # Every model gives vectors; they are measured where that is asked for.
    is_encoder = isinstance(loaded.model, AlbertBackbone)
    task = ALL_TASKS[run.task or head_task(loaded.model)]
    if task.is_learned and (run.task or not is_encoder):
        return _evaluate_finetuned(
            Predictor.of(loaded, **run.predictor_arguments), run
        )
    raise AlbertError(
        f"{model_names(run.model)} has no head that was fine-tuned for a task. "
        "Run `keras-albert finetune`, or use `ka.load` and `model.evaluate`. "
        "To score a pretrained model, give the folder that `pretrain` wrote."
    )


def _evaluate_finetuned(predictor: Predictor, run: EvaluateRun) -> dict:
    # Every option is checked before the first batch is computed, which may be
    # long after the start.
    if run.sentence_task is not None:
        raise AlbertError(
            "`sentence_task` measures a pretrained model, and "
            f"{model_names(run.model)} is fine-tuned. Received: "
            f"sentence_task={run.sentence_task!r}. Leave --sentence-task out."
        )
    if not run.data.is_dir() or is_saved_dataset(run.data):
        _check_unused(run, "a table", "split", "any_size")
    elif not predictor.definition.is_published:
        raise AlbertError(
            f"{model_names(run.model)} is a fine-tuned model: it is evaluated "
            f"on a table, but {run.data} is a folder. Name the file."
        )
    else:
        _check_unused(run, "a published task", "columns")
    if run.exit_curve is not None:
        check_can_measure(predictor)
    _check_vector_options(predictor, run)
    wants_mistakes = run.errors is not None or run.errors_file is not None
    if wants_mistakes:
        check_can_rank(predictor)
    # The outputs are computed once: all scores and files below use them.
    table = predictor.read_labelled(
        run.data, run.split, skip_bad=run.skip_bad, any_size=run.any_size
    )
    print_skipped(table)
    features = predictor.readable_features(table, run.any_text)
    predictor.warn_of_cut(features.cut, features.count)
    outputs = predictor.outputs(features, run.batch_size)
    report = scores_report(predictor.task, outputs, features, predictor.labels)
    if predictor.definition.makes_vectors:
        report |= _beside(predictor, run, table, features, outputs)
        if run.corpus is not None:
            print(f"also among {report['corpus']:,} texts of {run.corpus}")
    for line in scores_lines(report, examples=""):
        print(line)
    if predictor.early_exit is not None:
        # `layer_by_layer` has counted the layers while `outputs` was computed.
        computed = predictor.layer_by_layer
        report["layers"] = used = computed.layers / computed.rows
        count = predictor.model.config.num_hidden_layers
        print(f"early exit after {used:.2f} of {count} layers on average")
    if run.exit_curve is not None:
        # Computed anew, as the curve needs the outputs after every layer.
        points = exit_curve(predictor, features, run.batch_size)
        best = predictor.definition.best
        print("\n".join(curve_lines(points, best)))
        draw_curve(points, best, run.exit_curve)
        print(f"-> {run.exit_curve}")
    if predictor.definition.has_classes:
        of_classes = class_report_of(outputs, features, predictor.labels)
        report |= of_classes.as_dict()
        print(report_text(of_classes))
    if wants_mistakes:
        found = mistakes(predictor, table, features, outputs)
        _show_mistakes(run, found, table)
    return report


def _show_mistakes(
    run: EvaluateRun, found: list[Mistake], table: Table
) -> None:
    if run.errors is not None:
        print("\n".join(mistakes_lines(found, len(table), run.errors)))
    if run.errors_file is not None:
        write_mistakes(found, table, run.errors_file)
        print(f"{len(found):,} wrong predictions -> {run.errors_file}")


def _check_vector_options(predictor: Predictor, run: EvaluateRun) -> None:
    if run.corpus is not None and not predictor.definition.searches:
        raise AlbertError(
            "`corpus` is for the task embedding, in which a text is searched. "
            f"Received: task={predictor.task!r}. Leave --corpus out."
        )
    if not predictor.definition.makes_vectors:
        _check_unused(run, f"task={predictor.task}", "dimensions", "start")
        return
    if run.corpus_column is not None:
        check_has_columns(run.corpus, "corpus_column", run.corpus_column)
    for size in run.dimensions:
        checked_dimensions(size, predictor.model.size)


def _beside(
    predictor: Predictor,
    run: EvaluateRun,
    table: Table,
    features: Features,
    outputs: Outputs,
) -> dict:
    """Further scores of a model that computes vectors of texts.

    These are its scores among the texts of the table and of `run.corpus`; and,
    to compare them with: those of vectors cut to `run.dimensions`, of TF-IDF
    vectors, and of `run.start`, the model before fine-tuning.

    Args:
        predictor: the model.
        run: the settings of the command.
        table, features, outputs: the labelled examples, and the model's vectors
            of their texts.
    """
    task, others = predictor.definition, _further_texts(predictor, run, table)
    vectors = _vectors_of(predictor, run, others)
    values, of_words = task.scores_with_corpus(
        table, features, outputs, others, vectors
    )
    report = dict(values)
    report |= task.scores_of_sizes(outputs, features, run.dimensions, vectors)
    if run.corpus is not None:
        report["corpus"] = len(others)
    if of_words is not None:
        report |= scores_beside(BAG_OF_WORDS, of_words, task)
    if run.start is not None:
        start = Predictor.load(
            run.start, task=predictor.task, columns=predictor.columns
        )
        features = start.features(table)
        outputs = start.outputs(features, run.batch_size)
        vectors = _vectors_of(start, run, others)
        found = task.scores_among(outputs, features, vectors)
        report |= scores_beside(START, found.values, task)
    return report


def _further_texts(
    predictor: Predictor, run: EvaluateRun, table: Table
) -> list[str]:
    """The texts of `run.corpus` without those of the table; each text once.

    Texts are the same if the vocabulary sees no difference between them.
    """
    if run.corpus is None:
        return []
    column = run.corpus_column or predictor.columns.text
    reader = dataclasses.replace(predictor, columns=TableColumns(text=column))
    with naming_columns("--corpus-column"):
        corpus = reader.read(run.corpus, labelled=False, skip_bad=run.skip_bad)
    print_skipped(corpus)
    plain = functools.partial(normalize, **predictor.tokenizer.settings)
    known = {*map(plain, predictor.definition.texts(table))}
    known.add("")  # a blank line of a .txt file
    further: dict[str, str] = {}
    for text in corpus.values["text"]:
        if plain(text) not in known:
            further.setdefault(plain(text), text)
    return list(further.values())


def _vectors_of(
    predictor: Predictor, run: EvaluateRun, texts: list[str]
) -> np.ndarray | None:
    if not texts:
        return None
    length = predictor.sequence_length
    rows = text_rows(predictor.tokenizer, texts, None, length)
    return np.stack(predictor.outputs(Features(rows), run.batch_size))


def _evaluate_pretrained(loaded: ModelFolder, run: EvaluateRun) -> dict:
    if run.data.is_file():
        raise AlbertError(
            f"{run.model} is a pretrained model: it is evaluated on a folder "
            f"of token shards, but {run.data} is a file. Run `keras-albert "
            "finetune` for a classifier."
        )
    _check_unused(run, "token shards", "split", "any_size", "skip_bad")
    rule = (field.name for field in dataclasses.fields(EarlyExit))
    others = ("corpus", "dimensions", "start", "errors", "errors_file")
    others = (*others, "any_text", "labels", "columns")
    _check_unused(run, "a pretrained model", *rule, "exit_curve", *others)
    shards = ShardSet.open(run.data)
    shards.verify()
    difference = shards.tokenizer().difference_from(loaded.tokenizer)
    if difference:
        raise AlbertError(
            f"{run.data} was prepared with another vocabulary than "
            f"{run.model} has ({difference}). Prepare the text with `--vocab "
            f"{run.model}`."
        )
    report = {"held_out": _held_out(loaded, run, shards)}
    for line in report_lines(report, examples=""):
        print(line)
    return report


def _held_out(loaded: ModelFolder, run: EvaluateRun, shards: ShardSet) -> dict:
    examples = ExampleConfig(**loaded.task["examples"]).held_out()
    model = loaded.model
    learned, measured = model.sentence_task, run.sentence_task
    if measured and not learned:
        raise AlbertError(
            f"{run.model} was pretrained without a sentence task and has no "
            "head for one. Leave --sentence-task out."
        )
    if measured and measured != learned:
        examples = dataclasses.replace(examples, sentence_task=measured)
    batches = validation_dataset(shards, examples, batch_size=run.batch_size)

    # The model's head is named after the task it was trained for. To measure it
    # on another one, the labels of that task are given under the head's name.
    def with_own_name(targets):
        return {learned if k == measured else k: v for k, v in targets.items()}

    batches = batches.map(lambda x, *targets: (x, *map(with_own_name, targets)))
    compile_for_pretraining(model, "sgd")
    verbose = progress_verbosity()
    losses = model.evaluate(batches, return_dict=True, verbose=verbose)
    report = held_out_report(losses, batches)
    if not measured:
        return report
    return {
        name.replace(f"{learned}_", f"{measured}_"): value
        for name, value in report.items()
    }


def _check_unused(run: EvaluateRun, kind: str, *names: str) -> None:
    for name in names:
        if getattr(run, name) != getattr(EvaluateRun, name):
            raise AlbertError(
                f"`{name}` has no meaning for {kind}. Received: "
                f"{name}={getattr(run, name)!r} and {run.data}. "
                f"Leave --{name.replace('_', '-')} out."
            )
