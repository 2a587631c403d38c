"""A model learns from a teacher: the loss by hand, and the command."""

import shutil
import signal

import keras
import numpy as np
import pytest
from commands import read_json, refused, report_of, run, training_of, write_rows
from scipy import special
from small import (
    add_noise,
    numpy,
    op_by_op,
    pretraining_batch,
    signalled,
    with_dropout,
)

import keras_albert as ka
from keras_albert.data.batches import Features
from keras_albert.distribution.devices import Devices
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.teacher import Teacher, with_teacher
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.pretraining.flops import flops_per_example
from keras_albert.pretraining.model import compile_for_pretraining
from keras_albert.pretraining.teacher import masked_logits_of
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.training.losses import (
    DistillationLoss,
    MaskedLMDistillationLoss,
)
from keras_albert.training.model_folder import ModelFolder

TEACHER = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, 1.0]], "float32")
STUDENT = np.array([[1.0, 0.5, -2.0], [0.0, 0.0, 4.0]], "float32")


def distilled(task, labels, teacher, student, share, temperature=2.0):
    loss = ALL_TASKS[task].distilled(("a", "b", "c"), share, temperature)
    y = np.concatenate([labels, teacher], axis=1).astype("float32")
    weight = np.array([1.0, 3.0], "float32")
    return float(numpy(loss(y, student, weight)))


def test_the_divergence_by_hand():
    """Rows have the weights 1 and 3, and count as two.

    The labels have no part in it.
    """
    labels = np.array([[0], [2]])
    p, q = (special.softmax(x / 2, axis=-1) for x in (TEACHER, STUDENT))
    each = 4 * (p * np.log(p / q)).sum(-1)
    found = distilled("classification", labels, TEACHER, STUDENT, 1.0)
    assert found == pytest.approx(each @ [0.5, 1.5], rel=1e-6)
    # Half of the loss is that of the labels.
    of_labels = -special.log_softmax(STUDENT, axis=-1)[[0, 1], [0, 2]]
    found = distilled("classification", labels, TEACHER, STUDENT, 0.5)
    expected = (each + of_labels) / 2
    assert found == pytest.approx(expected @ [0.5, 1.5], rel=1e-6)
    # Of a student with the teacher's logits nothing is left.
    same = distilled("classification", labels, TEACHER, TEACHER, 1.0)
    assert same == pytest.approx(0, abs=1e-6)


def test_several_labels_and_numbers_by_hand():
    p, q = (special.expit(x / 2) for x in (TEACHER, STUDENT))
    each = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    expected = 4 * each.mean(-1) @ [0.5, 1.5]
    labels = np.zeros((2, 3))
    found = distilled("multilabel", labels, TEACHER, STUDENT, 1.0)
    assert found == pytest.approx(expected, abs=1e-6)
    numbers = [each[:, :1] for each in (TEACHER, STUDENT)]
    found = distilled("regression", np.array([[1.0], [4.0]]), *numbers, 0.25)
    by_hand = 0.75 * np.array([0, 16]) + 0.25 * np.array([1, 0])
    assert found == pytest.approx(by_hand @ [0.5, 1.5], abs=1e-6)


def test_the_loss_of_certain_teachers_is_finite():
    loss = DistillationLoss(
        keras.losses.BinaryCrossentropy(from_logits=True, reduction="none"),
        "multi_label",
        share=1.0,
        temperature=1.0,
    )
    y = np.array([[1.0, 0.0, 500.0, -500.0]], "float32")
    found = float(numpy(loss(y, np.array([[-300.0, 300.0]], "float32")))[0])
    assert found == pytest.approx(300)


def test_windows_have_the_logits_of_their_text():
    """Three texts; the second one is read in two windows."""
    target = np.array([5, 6, 6, 7])
    examples = Features([None] * 4, target, source=np.array([1, 2, 1]))
    logits = [np.array([n, n + 0.5]) for n in range(3)]
    found = with_teacher(examples, logits).target
    expected = [[5, 0, 0.5], [6, 1, 1.5], [6, 1, 1.5], [7, 2, 2.5]]
    np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pretrained_folder, steps_alone):
    """A teacher with two layers and three seeds, and a table of two labels."""
    folder = tmp_path_factory.mktemp("distill")
    rows = [
        {"text": f"the {word}", "label": label}
        for word, label in (("fox", "animal"), ("barn", "place")) * 30
    ]
    write_rows(folder / "rows.jsonl", rows)
    other = {"animal": "place", "place": "animal"}
    wrong = [{**row, "label": other[row["label"]]} for row in rows]
    write_rows(folder / "wrong.jsonl", wrong)
    with op_by_op():
        options = "--seeds=2", "--steps=20"
        finetune(folder, pretrained_folder, "teacher", *options)
    return folder


def told(folder, model, output, train="rows"):
    paths = {"model": model, "output": folder / output}
    paths |= {"train": folder / f"{train}.jsonl"}
    paths |= {"validation": folder / "rows.jsonl"}
    return paths | {"batch_size": 10, "learning_rate": 0.004}


def finetune(folder, model, output, *options, train="rows"):
    given = told(folder, model, output, train)
    run("finetune", "--validate-every=30", *options, **given)
    return report_of(folder / output)


@pytest.mark.on_torch
def test_a_student(folder, pretrained_folder, capsys):
    """It learns from the teacher alone: all of its labels are wrong.

    It has more layers than the teacher.
    """
    teacher = f"--teacher={folder}/teacher"
    report = finetune(
        folder,
        pretrained_folder,
        "student",
        *(teacher, "--teacher-share=1", "--depth=2", "--steps=30"),
        train="wrong",
    )
    card = (folder / "student" / "README.md").read_text()
    assert "the teacher `teacher`, which have the weight 1" in card
    assert "accuracy of the teacher | 1.0" in card
    assert "- `--depth` gave it 2 layers" in card
    of_teacher = ka.Predictor.load(folder / "teacher")
    expected = of_teacher.evaluate(folder / "rows.jsonl")["accuracy"]
    assert report["teacher"] == pytest.approx(expected)
    assert f"; the teacher: {expected:.3f}" in capsys.readouterr().out
    assert report["accuracy"] == pytest.approx(expected)
    student = ModelFolder.load(folder / "student").model
    assert student.config.num_hidden_layers == 2
    texts = ["the fox", "the barn"]
    found = ka.Predictor.load(folder / "student").probabilities(texts)
    of_labels = np.eye(2)
    # The student is as unsure as its teacher is.
    wanted = of_teacher.probabilities(texts)
    assert abs(found - wanted).max() < abs(wanted - of_labels).max()


@pytest.mark.on_torch
def test_what_cannot_teach(folder, pretrained_folder, tmp_path, capsys):
    train, teacher = folder / "rows.jsonl", str(folder / "teacher")
    for options, words in (
        (["--temperature=3"], "`temperature` needs a teacher"),
        (
            ["--teacher", teacher, "--task=regression", "--temperature=3"],
            "`temperature` is for classification",
        ),
        (["--exits=own", "--depth=1"], "give another --depth"),
        (["--teacher="], "must name a model"),
        (["--teacher", teacher, "--teacher-share=1.5"], "at most 1"),
        (["--teacher", teacher, "--task=tokens"], "Leave --teacher out"),
        (["--teacher", str(pretrained_folder)], "which was trained for"),
    ):
        given = told(folder, pretrained_folder, "none")
        assert words in refused(capsys, "finetune", *options, **given)
    run = FinetuneRun(str(pretrained_folder), train, tmp_path, teacher=teacher)
    with pytest.raises(ka.AlbertError, match=r"place, x\. Received: .*teacher"):
        Teacher(run, ("place", "x"))


@pytest.mark.on_torch
def test_a_teacher_uses_all_of_its_layers(folder, pretrained_folder, tmp_path):
    """Whatever the rule of early exit that is stored with it."""
    backbone, tokenizer = ka.load_pretrained(pretrained_folder)
    labels = ("animal", "place")
    deeper = backbone.config.replace(num_hidden_layers=2)
    model = ka.AlbertForSequenceClassification(
        ka.AlbertBackbone(deeper), labels=labels, exits="own"
    )
    add_noise(model, seed=3)
    rows = folder / "rows.jsonl"
    found = []
    for name, rule in (("all", None), ("one", ka.EarlyExit(layers=1))):
        predictor = ka.Predictor(model, tokenizer=tokenizer, early_exit=rule)
        predictor.save(tmp_path / name)
        run = FinetuneRun(
            pretrained_folder, rows, tmp_path, teacher=str(tmp_path / name)
        )
        table = predictor.read(rows, labelled=True)
        found.append(np.stack(Teacher(run, labels).outputs(table)))
    one_layer = np.stack(predictor.outputs(predictor.features(table)))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)
    assert np.abs(one_layer - found[0]).max() > 1e-3


@pytest.mark.on_torch
def test_a_teacher_with_a_threshold(folder, pretrained_folder, tmp_path):
    """Its score is that of its own threshold, whatever the labels' order.

    Its logits are put into the order of the student's labels.
    """
    teacher, rows = tmp_path / "teacher", folder / "rows.jsonl"
    untuned = ka.Predictor.load(folder / "teacher" / "seed-0")
    probabilities = untuned.probabilities(["the fox", "the barn"])[:, 1]
    # Above both, so that "place", the second label, is never predicted.
    predictor = untuned.with_threshold((max(probabilities) + 1) / 2)
    predictor.save(teacher)
    assert predictor.evaluate(rows)["accuracy"] == 0.5
    options = f"--teacher={teacher}", "--steps=1"
    report = finetune(folder, pretrained_folder, "tuned", *options)
    assert report["teacher"] == 0.5
    run = FinetuneRun(pretrained_folder, rows, tmp_path, teacher=str(teacher))
    features = predictor.features(predictor.read(rows, labelled=True))
    for names, second in ((("animal", "place"), 0), (("place", "animal"), 1)):
        # Both texts are "animal": never the second label, or always.
        of_names = Teacher(run, names)
        (limit,) = of_names.deciding(features).threshold
        logits = np.stack(of_names.outputs(predictor.read(rows, True)))
        probabilities = special.softmax(logits, axis=-1)[:, 1]
        assert (probabilities > limit).mean() == second


def test_a_pretraining_step_by_hand():
    """Masked pieces of weight 0 have no part; validation has no teacher.

    Both are computed in graphs, as the command's steps are.
    """
    config = with_dropout(0.0, num_hidden_layers=2)
    pieces = config.vocab_size
    wider = config.replace(vocab_size=pieces + 3)  # rows without a piece
    student, teacher = (
        add_noise(ka.AlbertForPretraining(ka.AlbertBackbone(each)), seed)
        for each, seed in ((config, 1), (wider, 2))
    )
    count = len(student.weights)
    student.teacher = masked_logits_of(teacher, pieces)
    loss = MaskedLMDistillationLoss(share=0.25, temperature=2.0)
    compile_for_pretraining(student, keras.optimizers.SGD(0.0), loss)
    x, y, weight = pretraining_batch()
    logits = {name: numpy(value) for name, value in student(x).items()}
    of_teacher = numpy(teacher(x)["mlm"])[..., :pieces]
    labels, rows = y["mlm"], weight["mlm"]
    log_probabilities = special.log_softmax(logits["mlm"], axis=-1)
    of_labels = np.take_along_axis(log_probabilities, labels[..., None], -1)
    of_labels = -of_labels[..., 0]
    p, q = (
        special.softmax(each / 2, axis=-1)
        for each in (of_teacher, logits["mlm"])
    )
    divergence = 4 * (p * np.log(p / q)).sum(-1)
    sop = -special.log_softmax(logits["sop"], axis=-1)[
        range(3), y["sop"]
    ].mean()
    for train, share in ((True, 0.25), (False, 0.0)):
        each = (1 - share) * of_labels + share * divergence
        expected = (each * rows).sum() / rows.sum() + sop
        step = student.train_on_batch if train else student.test_on_batch
        found = step(x, y, weight, return_dict=True)["loss"]
        assert float(found) == pytest.approx(expected, abs=1e-4)
        student.reset_metrics()
    assert len(student.weights) == count, "the teacher is no part of it"


@pytest.fixture(scope="module")
def pretrain(folder, pretrained_folder):
    """pretrain(output, *options) makes two steps with a model of two layers."""
    text, shards = folder / "text.txt", folder / "shards"
    text.write_text("the fox\na barn\n" * 20)
    run("prepare", input=text, vocab=pretrained_folder, output=shards)
    config = folder / "config.json"
    pretrained = ModelFolder.load(pretrained_folder).model
    pretrained.config.replace(num_hidden_layers=2).to_json(config)

    def pretrain(output, *options):
        few = "--steps=2", "--warmup-steps=1", "--validate-every=2"
        sizes = "--batch-size=4", "--examples.sequence-length=32"
        paths = {"data": shards, "config": config, "output": folder / output}
        run("pretrain", *few, *sizes, *options, **paths)
        return report_of(folder / output)

    return pretrain


@pytest.mark.on_torch
def test_pretraining_with_a_teacher(
    folder, pretrained_folder, pretrain, capsys
):
    teacher = ["--teacher", str(pretrained_folder)]
    taught = pretrain("taught", *teacher)
    with op_by_op():
        alone = pretrain("alone")
    assert taught["training_loss"] != alone["training_loss"]
    # A forward pass is a third of a training step.
    begun = read_json(folder / "taught" / "run.json")
    examples = ka.ExampleConfig(**begun["examples"])
    teacher_config = ModelFolder.load(pretrained_folder).model.config
    rows = begun["steps"] * begun["batch_size"]
    of_teacher = rows * flops_per_example(teacher_config, examples) / 3
    difference = taught["cost"]["flops"] - alone["cost"]["flops"]
    assert difference == pytest.approx(of_teacher)
    student = ModelFolder.load(folder / "taught").model
    assert student.config.num_hidden_layers == 2 and student.teacher is None
    assert len(student.weights) == len(
        ModelFolder.load(folder / "alone").model.weights
    )
    capsys.readouterr()
    for options, words in (
        (["--teacher-share=0.7"], "`teacher_share` needs a teacher"),
        (["--teacher", str(folder / "teacher" / "seed-0")], "predict masked"),
        ([*teacher, "--examples.sequence-length=64"], "takes 40 tokens"),
    ):
        with pytest.raises(SystemExit):
            pretrain("none", *options)
        assert words in capsys.readouterr().err


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_another_teacher_is_another_run(
    folder, pretrained_folder, pretrain, monkeypatch
):
    """A run is known by the weights of its teacher, whatever its folder.

    They are also what several processes compare.
    """
    compared = []
    monkeypatch.setattr(
        Devices,
        "check_same_models",
        lambda devices, checksums: compared.append(checksums),
    )

    def teacher_of(train, teacher):
        output, option = f"{train.__name__}-{teacher.name}", "--teacher"
        given = training_of(lambda: train(output, f"{option}={teacher}"))
        assert compared[-1]["teacher"] == given.origin["teacher"]
        return given.origin["teacher"]

    def tune(output, *options):
        finetune(folder, pretrained_folder, output, *options)

    other = folder / "other"
    loaded = ModelFolder.load(pretrained_folder)
    add_noise(loaded.model, seed=5)
    other.mkdir()
    loaded.save(other)
    for train, teachers in (
        (tune, [folder / "teacher" / f"seed-{seed}" for seed in (0, 1)]),
        (pretrain, [pretrained_folder, other]),
    ):
        found = [teacher_of(train, each) for each in teachers]
        assert found == [
            weights_checksum(ModelFolder.load(each).model) for each in teachers
        ]
        assert found[0] != found[1]


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(
    ("option", "what"),
    [("teacher", "was taught by"), ("warm_start", "started from")],
)
def test_pretraining_with_a_model_that_has_changed(
    folder, pretrained_folder, pretrain, capsys, tmp_path, option, what
):
    """A finished run says so, and so does an interrupted one."""
    model = tmp_path / "model"
    shutil.copytree(pretrained_folder, model)
    given = f"--{option.replace('_', '-')}={model}"
    done = f"done-{option}"
    report = pretrain(done, given)
    assert pretrain(done, given) == report, "the model is the same"
    with signalled(signal.SIGINT, step=1), pytest.raises(SystemExit):
        pretrain(f"cut-{option}", given)
    loaded = ModelFolder.load(model)
    add_noise(loaded.model, seed=5)
    loaded.save(model)
    capsys.readouterr()
    for output, expected in (
        (done, f"{done} is finished, and {what} {model}, which has changed"),
        (f"cut-{option}", f"the run was begun with another {option} ("),
    ):
        with pytest.raises(SystemExit):
            pretrain(output, given)
        assert expected in capsys.readouterr().err
    (model / "model.keras").write_bytes(b"no model")
    with pytest.raises(SystemExit):
        pretrain(done, given)
    assert f"{model}, which cannot be compared" in capsys.readouterr().err
    shutil.rmtree(model)
    assert pretrain(done, given) == report, "a run may outlive its model"


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_share_and_temperature_of_the_commands(
    folder, pretrained_folder, pretrain
):
    """The loss that a run minimizes is that of its options."""
    options = "--teacher-share=0.25", "--temperature=3"
    teacher = f"--teacher={folder}/teacher"
    tuned = training_of(
        lambda: finetune(folder, pretrained_folder, "o", teacher, *options)
    )
    y = np.concatenate([[[0], [1]], TEACHER[:, :2]], axis=1).astype("float32")
    p, q = (special.softmax(x[:, :2] / 3, -1) for x in (TEACHER, STUDENT))
    of_labels = -special.log_softmax(STUDENT[:, :2], -1)[[0, 1], [0, 1]]
    each = 0.75 * of_labels + 0.25 * 9 * (p * np.log(p / q)).sum(-1)
    found = tuned.content.model.loss(y, STUDENT[:, :2])
    assert float(numpy(found)) == pytest.approx(each.mean(), abs=1e-6)
    teacher = f"--teacher={pretrained_folder}"
    pretrained = training_of(lambda: pretrain("p", teacher, *options))
    loss = pretrained.content.model.loss["mlm"]
    found = float(numpy(loss(y, STUDENT[:, :2])))
    assert found == pytest.approx(each.mean(), abs=1e-5)
