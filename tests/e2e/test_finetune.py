"""Every fine-tuning task through the commands a user types."""

import collections
import dataclasses
import json
import random
import re
import shutil
import signal

import numpy as np
import pytest
from commands import (
    log_of,
    read_json,
    refused,
    report_of,
    rows_of,
    run,
    training_of,
    write_rows,
)
from scipy.special import log_softmax
from small import numpy, same_weights, signalled

import keras_albert as ka
from keras_albert.finetuning import run as finetuning
from keras_albert.finetuning.config import FinetuneRun, PredictRun
from keras_albert.finetuning.data import read_tables
from keras_albert.finetuning.predict import predict, without_nan
from keras_albert.modeling.classification import PROBLEMS
from keras_albert.tasks.names import (
    BENCHMARK_TASKS,
    FINETUNE_TASKS,
    OWN_TASKS,
    PRETRAINED_TASKS,
    READING_TASKS,
    TEXT_TASKS,
    VECTOR_TASKS,
)
from keras_albert.tasks.question_answering.metrics import score_v2
from keras_albert.tasks.question_answering.squad import read_squad
from keras_albert.tasks.registry import ALL_TASKS, BENCHMARKS
from keras_albert.training.loop import Diverged
from keras_albert.training.model_folder import ModelFolder
from keras_albert.training.optimizer import Lamb, Muon

ANIMALS, PLACES = ("fox", "dog", "hens"), ("village", "barn", "London")
EXAMPLES, HELD_OUT = 120, 40
# Those that learn vectors are in test_embeddings.py.
LABELLED_TASKS = [name for name in OWN_TASKS if name not in VECTOR_TASKS]
# With these every task is learned from any seed.
LEARNING = "--batch-size=8 --epochs=10 --learning-rate=0.002 --warmup-share=0.2"


def example(task, rng):
    """A row that a bag of words can learn."""
    animals = [rng.choice(ANIMALS) for _ in range(rng.randint(0, 3))]
    places = [rng.choice(PLACES) for _ in range(rng.randint(0, 3))]
    words = [*animals, *places, "the"]
    rng.shuffle(words)
    text = " ".join(words)
    if task == "classification":
        label = "animal" if len(animals) > len(places) else "place"
        return {"text": text, "label": label}
    if task == "pairs":
        pair = " ".join(rng.choices(ANIMALS + PLACES, k=2))
        first = rng.choice(ANIMALS + PLACES)
        label = "animal" if first in ANIMALS else "place"
        return {"text": first, "pair": pair, "label": label}
    if task == "regression":
        return {"text": text, "label": len(animals)}
    if task == "multilabel":
        return {"text": text, "label": sorted(set(animals))}
    if task == "tokens":
        kinds = {"the": "O"} | dict.fromkeys(ANIMALS, "B-ANIMAL")
        labels = [kinds.get(word, "B-PLACE") for word in words]
        return {"text": words, "label": labels}
    if task == "qa":
        return question(rng)
    choices = [rng.choice(ANIMALS), rng.choice(PLACES)]
    rng.shuffle(choices)
    right = next(i for i, word in enumerate(choices) if word in ANIMALS)
    return {"text": text, "choices": choices, "label": "AB"[right]}


def question(rng, may_be_impossible=False):
    """A context with an animal and a place, and a question for one of them."""
    animal, place = rng.choice(ANIMALS), rng.choice(PLACES)
    words = ["the", animal, "near", place]
    asked, answer = rng.choice([("who", animal), ("where", place)])
    answers = [answer]
    if may_be_impossible and rng.random() < 0.5:
        words.remove(answer)
        answers = []
    rng.shuffle(words)
    return {"question": asked, "context": " ".join(words), "answers": answers}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pretrained_folder):
    """A model that was never trained, and a table of each task."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "pretrained").symlink_to(pretrained_folder)
    for task in LABELLED_TASKS:
        rng = random.Random(0)
        for part, count in (("train", EXAMPLES), ("held", HELD_OUT)):
            rows = [example(task, rng) for _ in range(count)]
            write_rows(folder / f"{task}.{part}.jsonl", rows)
    return folder


def settings(folder, table, output):
    """What `finetune` is told of the model and of the table."""
    train = folder / f"{table}.train.jsonl"
    return {"model": folder / "pretrained", "train": train, "output": output}


def finetune(folder, task, output, *options):
    held_out = f"--validation={folder / task}.held.jsonl"
    options = *LEARNING.split(), "--classifier-dropout=0", held_out, *options
    run("finetune", *options, task=task, **settings(folder, task, output))
    return report_of(output)


def test_every_task_has_a_name():
    """The tables of names, which need no Keras, agree with the tasks."""
    assert tuple(ALL_TASKS) == FINETUNE_TASKS + PRETRAINED_TASKS
    learned = [name for name, task in ALL_TASKS.items() if task.is_learned]
    assert tuple(learned) == FINETUNE_TASKS == OWN_TASKS + BENCHMARK_TASKS
    assert tuple(BENCHMARKS) == BENCHMARK_TASKS
    reading = [name for name, task in ALL_TASKS.items() if task.reads_contexts]
    assert tuple(reading) == READING_TASKS
    of_texts = [
        name for name in learned if ALL_TASKS[name].heads.keys() <= {*PROBLEMS}
    ]
    assert tuple(of_texts) == TEXT_TASKS


def cases():
    """Tasks, and whether they are trained until they have learned something.

    Heads and losses are tested on each backend elsewhere; what commands do
    beside them is NumPy's.
    """
    for task in LABELLED_TASKS:
        quick = task in ("classification", "tokens")
        learned = pytest.mark.on_torch if quick else pytest.mark.proof
        yield pytest.param(task, True, marks=learned, id=f"{task} learned")
        if not quick:
            yield pytest.param(task, False, marks=pytest.mark.on_torch)


@pytest.mark.filterwarnings("error:Gradients do not exist")
@pytest.mark.parametrize(("task", "learns"), list(cases()))
def test_trained_evaluated_predicted(
    folder, tmp_path, task, learns, capsys, monkeypatch, request
):
    output = tmp_path / "model"
    if not learns:
        request.getfixturevalue("eagerly")
    # With seed 0 the regression does not learn on JAX within these steps.
    options = ("--validate-every=75", "--seed=1") if learns else ("--steps=2",)
    report = finetune(folder, task, output, *options)
    best = report["best"]
    if learns:
        assert report[best] > (60 if task == "qa" else 0.6), report
        assert report["baseline"] is None or report[best] > report["baseline"]
    request.getfixturevalue("eagerly")
    held_out = folder / f"{task}.held.jsonl"
    told = {"model": output, "data": held_out}
    assert f"{report[best]:.3f}" in run("evaluate", **told)
    answers = tmp_path / "answers.jsonl"
    run("predict", **told, output=answers)
    rows = rows_of(answers.read_text())
    given = rows_of(held_out.read_text())
    assert [
        {name: row[name] for name in before}
        for row, before in zip(rows, given, strict=True)
    ] == given, "the same rows in the same order"
    if task == "classification":
        right = [row["prediction"] == row["label"] for row in rows]
        assert np.mean(right) == pytest.approx(report["accuracy"])
    if task == "regression":  # JSON has no NaN; a bad row is counted
        odd = tmp_path / "odd.jsonl"
        odd.write_text('{"text": "a", "more": [NaN, 1e999]}\n{"text": 3}\n')
        capsys.readouterr()
        run("predict", "--skip-bad", model=output, data=odd)
        said = capsys.readouterr()
        assert '"more": [null, null]' in said.out
        assert "1 bad rows are left out:" in said.err
    # In parts, too.
    monkeypatch.setattr("keras_albert.finetuning.predict.PREDICTED_AT_ONCE", 7)
    streamed = rows_of(run("predict", **told))
    for row, again in zip(rows, streamed, strict=True):
        # Another batch may round a number in another way.
        assert again.keys() == row.keys()
        expected = row["prediction"]
        if task == "regression":
            expected = pytest.approx(expected, abs=1e-5)
        assert again["prediction"] == expected
    limit = "is read in parts" if task == "tokens" else "is cut after"
    assert limit in (output / "README.md").read_text()
    predictor = ka.Predictor.load(output)
    texts = [row.get("text") or row["context"] for row in given]
    names = {"pair": "pairs", "choices": "choices", "question": "questions"}
    more = {
        name: [row[field] for row in given]
        for field, name in names.items()
        if field in given[0]
    }
    expected = [row["prediction"] for row in rows]
    assert predictor.predict(texts, **more) == expected
    if task == "tokens":  # a text is split, as in a table
        assert predictor.predict([" ".join(texts[0])]) == expected[:1]
        assert predictor.predict(["", " \n"]) == [[], []]
    if task == "choice":
        with pytest.raises(ka.AlbertError, match="each of choices` must be"):
            predictor.predict(texts, choices=["ab"] * len(texts))
    assert predictor.predict([], **{name: [] for name in more}) == []


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["O O"], "", "two or more different labels"),
        (
            [f"{i} {i + 1}" for i in range(0, 30, 2)],
            "",
            "30 different labels in 30 words",
        ),
        (["O P"], "--columns.pair=b", "`columns.pair` has no meaning for the"),
        (["O P"], "--warmup-steps=99 --steps=4", "`warmup_steps`"),
        (["O P"], "--warmup-steps=9", "`warmup_steps` needs `steps`"),
    ],
)
def test_nothing_is_left_of_a_mistake(
    folder, tmp_path, capsys, labels, options, message
):
    rows = [{"text": "a b", "label": label} for label in labels]
    write_rows(tmp_path / "a.train.jsonl", rows)
    told = settings(tmp_path, "a", tmp_path / "model")
    told |= {"task": "tokens", "model": folder / "pretrained"}
    assert message in refused(capsys, "finetune", *options.split(), **told)
    assert not (tmp_path / "model").exists()


def finetune_alone(folder, output, *options, train="classification"):
    """Fine-tunes without a file to validate on."""
    told = settings(folder, train, output)
    run("finetune", "--learning-rate=0.002", *options, **told)
    return report_of(output)


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_all_seeds_have_one_start(folder, tmp_path, capsys):
    """The pretrained model is another one after the first seed.

    So is that of an interrupted run.
    """
    start, output = tmp_path / "start", tmp_path / "model"
    shutil.copytree(folder / "pretrained", start)
    told = settings(folder, "classification", output) | {"model": start}
    options = "--seeds=2", "--steps=1", "--validation=none"
    run("finetune", *options, **told)
    alone = told | {"output": tmp_path / "alone", "steps": 3}
    with signalled(signal.SIGINT, step=2), pytest.raises(SystemExit):
        run("finetune", "--validation=none", **alone)
    shutil.rmtree(output / "seed-1")
    model = ka.load(start)
    model.set_weights([weight + 1 for weight in model.get_weights()])
    model.save(start / "model.keras")
    report = json.loads((output / "report.json").read_text())
    (output / "report.json").unlink()
    said = refused(capsys, "finetune", *options, **told)
    changed = f"{start}, which has changed since"
    assert f"seed-0 is finished, and started from {changed}" in said
    # So does a run that is finished.
    (output / "report.json").write_text(json.dumps(report))
    said = refused(capsys, "finetune", *options, **told)
    assert f"{output} is finished, and started from {changed}" in said
    teacher = tmp_path / "teacher"
    shutil.copytree(output / "seed-0", teacher)
    told |= {"output": tmp_path / "taught", "teacher": teacher}
    run("finetune", *options, **told)
    shutil.rmtree(told["output"] / "seed-1")
    (told["output"] / "report.json").unlink()
    model = ka.load(teacher)
    model.set_weights([weight + 1 for weight in model.get_weights()])
    model.save(teacher / "model.keras")
    said = refused(capsys, "finetune", *options, **told)
    assert f"seed-0 is finished, and was taught by {teacher}, which" in said
    said = refused(capsys, "finetune", "--validation=none", **alone)
    assert "the run was begun with another model (" in said


def training(folder, table, output, *options):
    """What `finetune` would train, with nothing held out."""
    given = settings(folder, table, output)
    options = "--validation=none", *options
    return training_of(lambda: run("finetune", *options, **given))


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_a_head_that_finds_answers_is_trained_further(folder, tmp_path, capsys):
    """If the new questions need a head of its kind; else it is dropped."""
    (tmp_path / "pretrained").symlink_to(folder / "pretrained")
    row = {"question": "who", "context": "a fox", "answers": ["fox"]}
    write_rows(tmp_path / "all.train.jsonl", [row])
    write_rows(tmp_path / "some.train.jsonl", [row, row | {"answers": []}])
    options = "--task=qa", "--validation=none", "--steps=1"
    heads = {"all": ["span"], "some": ["start", "end_dense", "end", "answer"]}
    starts = {}
    for name in heads:
        run("finetune", *options, **settings(tmp_path, name, tmp_path / name))
        starts[name] = ka.load(tmp_path / name)
    starts["some"].beam = 3
    starts["some"].save(tmp_path / "some" / "model.keras")

    def begun(start, table, *more):
        capsys.readouterr()
        told = settings(tmp_path, table, tmp_path / "out")
        told |= {"model": tmp_path / start, "seed": 7}
        found = training_of(lambda: run("finetune", *options, *more, **told))
        shutil.rmtree(tmp_path / "out")
        return found.content.model, capsys.readouterr().out

    for name, layers in heads.items():
        for more in ("--depth=3", "--precision=mixed_bfloat16"):
            model, said = begun(name, name, more)
            assert f"{tmp_path / name} is trained further" in said
            for layer in layers:
                kernel = getattr(starts[name], layer).kernel
                np.testing.assert_array_equal(
                    numpy(getattr(model, layer).kernel), numpy(kernel)
                )
        other = "some" if name == "all" else "all"
        with pytest.MonkeyPatch.context() as patch:  # it is not even read
            patch.setattr("keras_albert.finetuning.model.load", None)
            model, said = begun(name, other)
        assert "it is dropped, and a new one is trained for qa" in said
        assert type(model) is type(starts[other])
    assert begun("some", "some")[0].beam == 3
    model, said = begun("all", "all", "--from-scratch")
    assert "trained further" not in said and "dropped" not in said
    kernels = model.span.kernel, starts["all"].span.kernel
    assert not np.array_equal(*map(numpy, kernels))


def test_seeds_share_the_head_that_they_start_from(folder, tmp_path, capsys):
    """The first seed leaves it as it was, and it is a part of the start."""
    (tmp_path / "pretrained").symlink_to(folder / "pretrained")
    row = {"question": "who", "context": "a fox", "answers": ["fox"]}
    write_rows(tmp_path / "a.train.jsonl", [row] * 8)
    options = "--task=qa", "--validation=none", "--steps=1", "--batch-size=8"
    run("finetune", *options, **settings(tmp_path, "a", tmp_path / "start"))
    told = settings(tmp_path, "a", tmp_path / "out")
    told |= {"model": tmp_path / "start"}
    # So small a rate changes nothing that can be seen.
    options += "--seeds=2", "--learning-rate=1e-12", "--optimizer=muon"
    run("finetune", *options, **told)
    card = (tmp_path / "out" / "seed-0" / "README.md").read_text()
    assert "- the optimizer was muon\n" in card
    start = ka.load(tmp_path / "start")
    for seed in ("seed-0", "seed-1"):
        found = ka.load(tmp_path / "out" / seed)
        kernels = numpy(found.span.kernel), numpy(start.span.kernel)
        np.testing.assert_allclose(*kernels, atol=1e-6)
    start.span.kernel.assign(numpy(start.span.kernel) + 1)
    start.save(tmp_path / "start" / "model.keras")
    shutil.rmtree(tmp_path / "out" / "seed-1")
    (tmp_path / "out" / "report.json").unlink()
    said = refused(capsys, "finetune", *options, **told)
    assert "which has changed since" in said


@pytest.mark.on_torch
def test_class_weights_reach_the_loss(folder, tmp_path):
    """One place among three animals: 4 / (2 x 1), and 4 / (2 x 3)."""
    rows = [{"text": word, "label": "animal"} for word in ANIMALS]
    rows.append({"text": "barn", "label": "place"})
    write_rows(tmp_path / "few.train.jsonl", rows)
    (tmp_path / "pretrained").symlink_to(folder / "pretrained")
    options = "--class-weights", "--batch-size=4"
    found = training(tmp_path, "few", tmp_path / "model", *options)
    ((x, y, weight),) = found.batches_from(0).take(1).as_numpy_iterator()
    assert sorted(y) == [0, 0, 0, 1]
    expected = np.where(y == 1, 2, 2 / 3)
    np.testing.assert_allclose(weight, expected, rtol=1e-6)
    # The loss of the batch is the mean with these weights.
    model = found.content.model
    logits = model.predict_on_batch(x)
    odds = log_softmax(logits, axis=-1)[range(4), y]
    loss = model.test_on_batch(x, y, weight)
    assert loss == pytest.approx(-(expected @ odds) / 4, abs=1e-5)
    # Alone in a batch, too, an example has the weight of its label.
    for row in range(4):
        one = {name: value[row : row + 1] for name, value in x.items()}
        loss = model.test_on_batch(one, y[row : row + 1], weight[row : row + 1])
        assert loss == pytest.approx(-expected[row] * odds[row], abs=1e-5)


@pytest.mark.on_torch
def test_the_optimizer_of_fine_tuning(folder, tmp_path):
    """AdamW, as the reference's optimization.py sets it."""
    options = "--steps=40", "--learning-rate=0.002", "--warmup-share=0.25"
    options += ("--classifier-dropout=0.3",)
    found = training(folder, "classification", tmp_path / "a", *options)
    model = found.content.model
    assert model.dropout.rate == 0.3
    optimizer = model.optimizer
    assert type(optimizer) is Lamb and optimizer.layer_adaptation is False
    assert optimizer.decay_rate == 0.01 and optimizer.global_clipnorm == 1
    optimizer.build(model.trainable_variables)
    rates = []
    for step in (0, 5, 10, 25):
        optimizer.iterations.assign(step)
        rates.append(float(numpy(optimizer.learning_rate)))
    # A quarter of the steps is the warm-up; then it falls in a line to 0.
    expected = [0, 0.001, 0.0015, 0.00075]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-9)


@pytest.mark.on_torch
def test_the_optimizer_that_is_asked_for(folder, tmp_path):
    options = "--steps=40", "--learning-rate=0.002", "--optimizer=muon"
    found = training(folder, "classification", tmp_path / "a", *options)
    optimizer = found.content.model.optimizer
    assert type(optimizer) is Muon
    assert optimizer.layer_adaptation is False
    assert optimizer.decay_rate == 0.01 and optimizer.global_clipnorm == 1
    optimizer.build(found.content.model.trainable_variables)
    optimizer.iterations.assign(10)  # a quarter of the steps
    assert float(numpy(optimizer.learning_rate)) == pytest.approx(0.0015)


@pytest.mark.on_torch
def test_the_options_reach_the_run(folder, tmp_path):
    """The seed draws the head and the order; data and model are known."""
    options = "--steps=8", "--warmup-steps=4", "--learning-rate=0.002"
    runs = [
        training(
            *(folder, "classification", tmp_path / str(seed), *options),
            *("--checkpoint-every=2", f"--seed={seed}"),
        )
        for seed in (0, 1)
    ]
    names = {"backend", "config", "train", "validation", "model"}
    for each in runs:
        assert each.origin.keys() == names and each.origin["train"]
        assert each.timetable.checkpoint_every == 2
    first = [
        next(each.batches_from(0).as_numpy_iterator())[0]["token_ids"]
        for each in runs
    ]
    assert first[0].tolist() != first[1].tolist()
    kernels = [numpy(each.content.model.classifier.kernel) for each in runs]
    assert not np.array_equal(*kernels)
    model = runs[0].content.model
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(2)
    rate = float(numpy(model.optimizer.learning_rate))
    assert rate == pytest.approx(0.001)


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_seeds_that_diverge(folder, tmp_path, monkeypatch, capsys):
    """The others go on; of none, there is nothing to report."""
    once, bad = finetuning._finetune_once, {1}

    def diverging(one, *arguments):
        if one.seed in bad:
            raise Diverged.at(1, "the loss is nan")
        return once(one, *arguments)

    monkeypatch.setattr(finetuning, "_finetune_once", diverging)
    options = "--seeds=2", "--steps=1", "--validation=none"
    run(
        "finetune",
        *options,
        **settings(folder, "classification", tmp_path / "a"),
    )
    report = report_of(tmp_path / "a")
    assert (report["seeds"], report["diverged"]) == ([0], [1])
    bad.add(0)
    told = settings(folder, "classification", tmp_path / "b")
    said = refused(capsys, "finetune", *options, **told)
    assert "every one of the 2 runs diverged. Lower --learning-rate" in said
    assert not (tmp_path / "b").exists()


@pytest.mark.any_backend
def test_each_label_is_held_out(tmp_path):
    """Also a rare one: a tenth of the rows of each."""
    counts = {"a": 200, "b": 35, "c": 10}
    rows = [
        {"text": f"{label} {n}", "label": label}
        for label, count in counts.items()
        for n in range(count)
    ]
    table = write_rows(tmp_path / "rows.jsonl", rows)
    tables = read_tables(FinetuneRun("m", table, tmp_path / "out"))
    held_out = collections.Counter(tables.held_out.values["label"])
    assert held_out == {"a": 20, "b": 4, "c": 1}


@pytest.mark.on_torch
def test_refused_before_the_first_seed(folder, tmp_path, capsys):
    """Nothing is left that would refuse the corrected command."""
    rows = [{"text": "fox", "pair": "hen", "label": n / 9} for n in range(9)]
    write_rows(tmp_path / "pairs.train.jsonl", rows)
    (tmp_path / "pretrained").symlink_to(folder / "pretrained")
    given = settings(tmp_path, "pairs", tmp_path / "out")
    options = "--task=similarity", "--seeds=2", "--validation=none"
    said = refused(
        capsys, "finetune", *options, "--embedding.dimensions=999", **given
    )
    assert "999" in said and not (tmp_path / "out").exists()


@pytest.mark.on_torch
def test_windows_and_answers_reach_the_reading(folder, tmp_path):
    """7 tokens of the question; each window begins 5 tokens after another."""
    context = " ".join(["fox", *map(str, range(30))])
    row = {"question": "where is it " * 5, "context": context}
    write_rows(tmp_path / "long.train.jsonl", [row | {"answers": ["fox"]}])
    (tmp_path / "pretrained").symlink_to(folder / "pretrained")
    options = "--task=qa", "--windows.stride=5", "--windows.query-length=7"
    options += "--answers.n-best=3", "--answers.answer-length=4"
    found = training(tmp_path, "long", tmp_path / "model", *options)
    reading = found.content.task["reading"]
    assert reading["windows"]["stride"] == 5
    assert reading["windows"]["query_length"] == 7
    assert reading["answers"] == {"n_best": 3, "answer_length": 4}
    ((x, *_),) = found.batches_from(0).take(1).as_numpy_iterator()
    full = x["padding_mask"].all(axis=1)
    begins = x["segment_ids"][full].argmax(axis=1)
    assert set(begins) == {1 + 7 + 1}  # after [CLS], the question and [SEP]
    contexts = [tuple(ids[9:-1]) for ids in x["token_ids"][full]]
    follow = [a[5:] == b[:-5] for a in contexts for b in contexts]
    assert sum(follow) == len(contexts) - 1 > 1


@pytest.mark.on_torch
def test_remat_and_precision_reach_the_model(folder, tmp_path):
    options = "--remat", "--precision=mixed_bfloat16"
    found = training(folder, "classification", tmp_path / "model", *options)
    encoder = found.content.model.backbone.encoder
    assert encoder.remat and encoder.compute_dtype == "bfloat16"


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_a_tenth_is_held_out(folder, tmp_path, capsys):
    """Both seeds hold out the same rows; the first one was interrupted."""
    output = tmp_path / "model"
    options = "--seeds=2", "--steps=3", "--batch-size=16"
    with signalled(signal.SIGINT, step=2), pytest.raises(SystemExit):
        finetune_alone(folder, output, *options)
    capsys.readouterr()
    report = finetune_alone(folder, output, *options)
    said = capsys.readouterr().out
    assert "going on from step 2 of 3" in said
    line = f"12 of the 120 rows of {folder}/classification.train.jsonl are held"
    assert said.count(line) == 2
    assert report["count"] == 12
    seeds = [report_of(output / f"seed-{i}") for i in (0, 1)]
    assert seeds[0]["made_of"] == seeds[1]["made_of"] == report["made_of"]
    for seed in seeds:
        assert seed["split"] == {"training_rows": 108, "held_out_rows": 12}
        assert sum(each["count"] for each in seed["classes"]) == 12
        right = np.trace(seed["confusion"])
        assert right / 12 == pytest.approx(seed["accuracy"])
    card = (output / "seed-0" / "README.md").read_text()
    assert "12 held-out examples of `classification.train.jsonl`" in card
    # A finished run may outlive its table.
    table = folder / "classification.train.jsonl"
    table.rename(tmp_path / "elsewhere")
    finetune_alone(folder, output, *options)
    (tmp_path / "elsewhere").rename(table)
    assert "and it is finished" in capsys.readouterr().out
    # What a process that was killed at its end has left is removed.
    left = output / "seed-0" / "checkpoints"
    left.mkdir()
    finetune_alone(folder, output / "seed-0", *options[1:])
    assert "and it is finished" in capsys.readouterr().out
    assert not left.exists()


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_nothing_is_held_out(folder, tmp_path, capsys):
    """The command also says that a model has learned nothing."""
    output = tmp_path / "model"
    report = finetune_alone(
        folder, output, "--validation=none", "--steps=2", "--learning-rate=0.3"
    )
    said = capsys.readouterr().out
    for words in (
        "chosen for 120 rows and a model of width 24: --batch-size 16",
        "nothing was held out",
        "on training rows, not on new ones: accuracy 0.",
        "no better than guessing",
        "the training has collapsed, or has not begun to learn",
    ):
        assert words in said
    assert report["chosen"] == {"batch_size": 16}
    scores = report["on_training_rows"]
    assert scores["count"] == 120 and scores["accuracy"] <= scores["baseline"]
    assert "accuracy" not in report and "split" not in report
    few = tmp_path / "few.train.jsonl"
    rows = (folder / "classification.train.jsonl").read_text().splitlines()
    few.write_text("\n".join(rows[:40]))
    told = settings(folder, "few", tmp_path / "b") | {"train": few}
    said = run("finetune", "--steps=1", **told)
    assert f"nothing is held out: {few} has 40 rows, fewer than 50" in said
    told["output"] = tmp_path / "c"
    said = refused(capsys, "finetune", "--patience=2", **told)
    assert "too few rows to hold any out (40)" in said


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_predictions_of_a_text_file(folder, tmp_path, capsys, small_disk):
    """Each line has a prediction; a full disk leaves no file."""
    output = tmp_path / "model"
    finetune_alone(folder, output, "--steps=1")
    lines = ["the fox", "", "the barn", " ", "a dog", ""]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    answers = tmp_path / "answers.jsonl"
    told = {"model": output, "data": tmp_path / "a.txt", "output": answers}
    capsys.readouterr()
    run("predict", **told)
    said = capsys.readouterr().err
    assert "2 blank lines: each is predicted as an empty text" in said
    rows = rows_of(answers.read_text())
    texts = ["the fox", "", "the barn", "", "a dog"]
    assert [row["text"] for row in rows] == texts
    empty = ka.Predictor.load(output).predict([""])
    assert [rows[1]["prediction"], rows[3]["prediction"]] == empty * 2
    answers.unlink()
    with small_disk(100):
        error = refused(capsys, "predict", **told)
    assert f"error: {answers}: cannot be written (File too la" in error
    told["output"] = tmp_path / "answers.jsonl.gz"
    assert "a file that ends in .jsonl" in refused(capsys, "predict", **told)
    assert not [*tmp_path.glob("*answers*")]


@pytest.fixture(scope="module")
def squad(tmp_path_factory):
    """Small files of SQuAD 2.0."""
    folder = tmp_path_factory.mktemp("squad")
    rng = random.Random(0)
    for part, count in (("train", EXAMPLES), ("dev", HELD_OUT)):
        paragraphs = []
        for i in range(count):
            row = question(rng, may_be_impossible=True)
            answers = [
                {"text": text, "answer_start": row["context"].index(text)}
                for text in row["answers"]
            ]
            item = {
                "id": f"{part}{i}",
                "question": row["question"],
                "answers": answers,
                "is_impossible": not answers,
            }
            paragraphs.append({"context": row["context"], "qas": [item]})
        (folder / f"{part}-v2.0.json").write_text(
            json.dumps({"data": [{"paragraphs": paragraphs}]})
        )
    return folder


@pytest.mark.on_torch
def test_questions_without_an_answer(folder, squad, tmp_path, small_disk):
    """SQuAD 2.0's files: its head, a threshold, and what its scorer takes."""
    output, dev = tmp_path / "model", squad / "dev-v2.0.json"
    run(
        *("finetune", "--task=SQuAD-2.0", "--any-size", "--batch-size=8"),
        *("--epochs=10", "--learning-rate=0.003", "--validate-every=75"),
        **settings(folder, "none", output) | {"train": squad},
    )
    report = report_of(output)
    assert report["f1"] > max(60, report["baseline"] + 5), report
    task = read_json(output / "task.json")
    assert task["reading"]["threshold"] == report["threshold"] != 0
    assert task["labels"] == ["answer", "no answer"]
    limit = f'and the limit for "no answer" ({report["threshold"]:.4g}) were'
    assert limit in (output / "README.md").read_text()
    said = run("evaluate", model=output, data=dev)
    assert f"f1 {report['f1']:.3f}, " in said
    files = {
        name: tmp_path / f"{name}.json"
        for name in ("output", "n_best_output", "null_odds_output")
    }
    again = tmp_path / "again.json"
    with pytest.raises(ka.AlbertError, match="two outputs have the same path"):
        predict(PredictRun(output, dev, output=again, n_best_output=again))
    # The second file is the first one that does not fit: none is left.
    with small_disk(8192), pytest.raises(ka.AlbertError, match=r"n_best.*Make"):
        predict(PredictRun(output, dev, **files))
    run("predict", model=output, data=dev, **files)
    texts, best, odds = map(read_json, files.values())
    assert files["output"].stat().st_size < 8192
    # Without --output the answers are printed, and nothing else is.
    said = run("predict", model=output, data=dev, n_best_output=again)
    assert json.loads(said) == texts and read_json(again) == best
    questions = read_squad(dev)
    assert list(texts) == list(odds) == list(best) == [q.id for q in questions]
    scores = score_v2(questions, texts)
    assert scores["f1"] == pytest.approx(report["f1"], abs=1e-3)
    for name, text in texts.items():
        refused = odds[name] > report["threshold"] or not best[name]
        assert text == ("" if refused else best[name][0]["text"])
    predictor = ka.Predictor.load(output)
    assert predictor.predict(
        [q.context for q in questions], questions=[q.text for q in questions]
    ) == list(texts.values())
    with pytest.raises(ka.AlbertError, match=r"number or None.*'often'"):
        predictor.with_threshold("often")
    # With nothing held out, no threshold is chosen, nor measured with.
    rows = [
        {"context": q.context, "question": q.text, "answers": q.answers[:1]}
        for q in questions
    ]
    table = tmp_path / "rows.jsonl"
    table.write_text("\n".join(json.dumps(row, default=vars) for row in rows))
    output = tmp_path / "none"
    run(
        *("finetune", "--task=qa", "--validation=none", "--steps=2"),
        **settings(folder, "none", output) | {"train": table},
    )
    task = read_json(output / "task.json")
    found = report_of(output)["on_training_rows"]
    assert found["threshold"] == task["reading"]["threshold"] == 0


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_early_exit(folder, tmp_path, capsys, monkeypatch):
    """A rule on the command line, in Python and in a saved folder is the same.

    The scores are those of the layers that test_early_exit.py checks.
    """
    output, held_out = tmp_path / "model", folder / "classification.held.jsonl"
    pretrained = ModelFolder.load(folder / "pretrained")
    config = pretrained.model.config.replace(num_hidden_layers=2)
    deeper = ka.AlbertForPretraining(ka.AlbertBackbone(config))
    (tmp_path / "deeper").mkdir()
    dataclasses.replace(pretrained, model=deeper).save(tmp_path / "deeper")
    finetune(
        folder,
        *("classification", output, "--exits=shared", "--steps=2"),
        f"--model={tmp_path}/deeper",
    )
    card = (output / "README.md").read_text()
    assert "- it has a classifier after every layer, and may stop" in card
    monkeypatch.setattr("keras_albert.finetuning.exit_curve.TIMES", 1)
    curve = tmp_path / "curve.png"
    told = {"model": output, "data": held_out}
    out = run("evaluate", **told, layers=1, exit_curve=curve)
    assert "early exit after 1.00 of 2 layers on average" in out
    accuracy = re.search(r"^accuracy ([\d.]+)", out)[1]
    assert re.search(rf"^layers +1 +{accuracy} +1\.00 +\d", out, re.M)
    assert re.search(r"^patience +1 +\S+ +2\.00 +\d", out, re.M)
    assert len(re.findall(r"^(patience|confidence|layers) ", out, re.M)) == 9
    assert curve.read_bytes().startswith(b"\x89PNG")
    rule = ka.EarlyExit(layers=1)
    predictor = ka.Predictor.load(output, early_exit=rule)
    answers = tmp_path / "answers.jsonl"
    run("predict", **told, layers=1, output=answers)
    rows = rows_of(answers.read_text())
    found = predictor.predict([row["text"] for row in rows])
    assert [row["prediction"] for row in rows] == found
    predictor.save(tmp_path / "saved")
    assert ka.Predictor.load(tmp_path / "saved").early_exit == rule
    without = ka.Predictor.load(tmp_path / "saved", early_exit=None)
    assert without.early_exit is None
    for wrong, words in (
        (["--patience=1", "--layers=1"], "exactly one of patience"),
        (["--layers=3"], "has 2 layers. Received: layers=3"),
        ([f"--exit-curve={tmp_path}/none/x.png"], "there is no folder"),
    ):
        assert words in refused(capsys, "evaluate", *wrong, **told)
    told = settings(folder, "tokens", tmp_path / "none") | {"task": "tokens"}
    said = refused(capsys, "finetune", "--exits=own", **told)
    assert "Received: task='tokens'. Leave --exits out" in said


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_an_interrupted_run_goes_on(folder, tmp_path, capsys):
    """It ends as if it had not been interrupted, in its second epoch.

    The order of the rows is the same, too, and those that are held out.
    """
    outputs = tmp_path / "whole", tmp_path / "interrupted"
    options = "--task=tokens", "--batch-size=60", "--steps=4"

    def tokens(output):
        finetune_alone(folder, output, *options, train="tokens")

    tokens(outputs[0])
    with signalled(signal.SIGTERM, step=3), pytest.raises(SystemExit) as stop:
        tokens(outputs[1])
    assert stop.value.code == 0
    assert not (outputs[1] / "report.json").exists()
    tokens(outputs[1])
    assert "going on from step 3 of 4" in capsys.readouterr().out
    assert not (outputs[1] / "checkpoints").exists()
    reports = [report_of(each) for each in outputs]
    for each in reports:
        # Measured values, which differ; of a part of a run there is no energy.
        del each["cost"]["minutes"], each["cost"]["joules"]
    assert reports[0] == reports[1]
    assert same_weights(*map(ka.load, outputs))


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_the_best_model_is_kept_and_the_run_ends_early(folder, tmp_path):
    report = finetune(
        folder,
        *("classification", tmp_path / "model", "--patience=1"),
        *("--batch-size=60", "--learning-rate=0.1", "--epochs=4"),
    )
    rows = log_of(tmp_path / "model")
    # Of two equal accuracies, the one with the lower loss is better.
    scores = [
        (float(row["val_accuracy"]), -float(row["val_loss"])) for row in rows
    ]
    best = scores.index(max(scores))
    assert report["epoch"] == best + 1
    assert report["accuracy"] == pytest.approx(scores[best][0])
    assert len(rows) == min(best + 2, 4)


def test_a_map_of_parquet_without_nan():
    """It is a list of tuples, which JSON writes as lists."""
    row = {"m": [("k", float("nan")), ("l", 1.5)], "s": {"x": [float("inf")]}}
    expected = {"m": [["k", None], ["l", 1.5]], "s": {"x": [None]}}
    assert without_nan(row) == expected
