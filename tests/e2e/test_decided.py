"""Thresholds, temperatures and windows, in all that is made of a model."""

import json
import random
import re
from unittest.mock import Mock

import numpy as np
import pytest
from commands import (
    refused,
    report_of,
    rows_of,
    run,
    table_of,
    write_rows,
)
from scipy.special import expit, softmax
from small import TEXT_CONFIG, marked, numpy

import keras_albert as ka
from keras_albert.exports.load import load_exported
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.tasks.decisions import (
    best_threshold,
    best_thresholds,
    calibrated,
)

pytestmark = pytest.mark.usefixtures("eagerly")
LABELS = ("fox", "hens")


def example(task, rng):
    words = rng.choices(["fox", "dog", "hens", "tea", "barn"], k=3)
    labels = [label for label in LABELS if label in words]
    text = " ".join(words)
    if task == "multilabel":
        return {"text": text, "label": labels}
    # A tenth of the labels is wrong, and "yes" is rare.
    is_fox = ("fox" in words) != (rng.random() < 0.1)
    return {"text": text, "label": "yes" if is_fox else "no"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_vocab):
    """A model of two layers that was never trained, and tables."""
    folder, rng = tmp_path_factory.mktemp("decisions"), random.Random(0)
    config = TEXT_CONFIG.replace(num_hidden_layers=2)
    backbone = ka.AlbertBackbone(config, tokenizer=ka.Tokenizer(tiny_vocab))
    backbone.save_to_preset(folder / "pretrained")
    for task in ("classification", "multilabel"):
        for part, count in (("train", 64), ("held", 60)):
            rows = [example(task, rng) for _ in range(count)]
            write_rows(folder / f"{task}.{part}.jsonl", rows)
    return folder


def told(folder, task, output):
    return {
        "model": folder / "pretrained",
        "train": folder / f"{task}.train.jsonl",
        "validation": folder / f"{task}.held.jsonl",
        "task": task,
        "output": output,
    }


def finetune(folder, task, output, *options, steps=12):
    options = *options, "--batch-size=16", "--learning-rate=5e-3"
    options += (f"--steps={steps}",)
    run("finetune", *options, **told(folder, task, output))


def held(folder, task):
    """The held-out texts and labels."""
    rows = rows_of((folder / f"{task}.held.jsonl").read_text())
    return [row["text"] for row in rows], [row["label"] for row in rows]


def probabilities(predictor, texts):
    """Those of the second label, or of all labels."""
    if predictor.task == "classification":
        return predictor.probabilities(texts)[:, 1]
    features = predictor._features_of({"text": texts})
    return expit(predictor.outputs(features))


@pytest.mark.on_torch
@pytest.mark.parametrize("task", ["classification", "multilabel"])
def test_thresholds(folder, tmp_path, task, capsys):
    """Each seed has its own, and an ensemble their mean."""
    output, score = tmp_path / "seeds", "f1"
    finetune(folder, task, output, "--tune-threshold", "--seeds=2", steps=4)
    said = capsys.readouterr().out
    assert said.count("chosen on the same held-out rows") == 2
    texts, labels = held(folder, task)
    limits, seeds = [], (output / "seed-0", output / "seed-1")
    # A model of words has thresholds of its own, whatever the network's are.
    assert len({report_of(seed)["bag_of_words"] for seed in seeds}) == 1
    for seed in seeds:
        predictor, report = ka.Predictor.load(seed), report_of(seed)
        odds = probabilities(predictor, texts)
        if task == "classification":
            expected = np.array([label == "yes" for label in labels])
            wanted = (best_threshold(odds, expected),)
            chosen = [*np.where(odds > wanted[0], "yes", "no")]
            names = ["yes"]
        else:
            target = np.array([[n in row for n in LABELS] for row in labels])
            wanted = best_thresholds(np.log(odds / (1 - odds)), target)
            names, score = [*LABELS], "macro_f1"
            chosen = [
                [n for n, p, t in zip(names, row, wanted, strict=True) if p > t]
                for row in odds
            ]
        assert predictor.threshold == pytest.approx(wanted, abs=1e-5)
        assert report["threshold"] == dict(
            zip(names, predictor.threshold, strict=True)
        )
        assert f"{names[-1]} {predictor.threshold[-1]:.3f}" in said
        card = (seed / "README.md").read_text()
        assert "and the thresholds were chosen on them" in card
        assert f"{names[-1]} {predictor.threshold[-1]:.3f} (with 0.5: " in card
        # What the report says, and how it was without.
        table = folder / f"{task}.held.jsonl"
        assert report[score] >= report["untuned"][score]
        for each, known in (
            (predictor, report),
            (predictor.with_threshold([0.5] * len(wanted)), report["untuned"]),
        ):
            for name, value in each.evaluate(table).items():
                assert known[name] == pytest.approx(value), name
            assert (probabilities(each, texts) == odds).all()
        # What the commands say is what the thresholds say.
        assert predictor.predict(texts) == chosen
        rows = rows_of(run("predict", model=seed, data=table))
        assert [row["prediction"] for row in rows] == chosen
        limits.append(predictor.threshold)
    errors = {"errors": 99, "errors_file": tmp_path / "wrong.csv"}
    said = run("evaluate", model=seed, data=table, **errors)
    assert f"{report[score]:.3f}" in said
    wrong = [
        tuple(each if isinstance(each, str) else "|".join(each) for each in two)
        for two in zip(labels, chosen, strict=True)
        if two[0] != two[1]
    ]
    assert f"{len(wrong)} of 60 examples have a wrong prediction" in said
    written = table_of(errors["errors_file"])
    found = [(row["expected"], row["prediction"]) for row in written]
    assert sorted(found) == sorted(wrong)
    if task == "multilabel":  # some have two labels, with their probabilities
        assert any("|" in "".join(two) for two in wrong)
        assert {*json.loads(written[0]["score"])} == {*LABELS}
    assert limits[0] != limits[1]
    for average in ("predictions", "weights"):
        both = ka.Predictor.load(output, average=average)
        assert both.threshold == pytest.approx(np.mean(limits, axis=0))
    # One that was not tuned counts as 0.5. Other formats have no threshold.
    with_half = ka.Predictor.load(
        output / "seed-0", threshold=[0.5] * len(wanted)
    )
    with_half.save(tmp_path / "half")
    both = ka.Predictor.load([tmp_path / "half", seed])
    assert both.threshold == pytest.approx((np.array(limits[1]) + 0.5) / 2)
    there = tmp_path / "transformers"
    said = run("convert", input=seed, output=there, to="huggingface")
    shown = ", ".join(f"{each:.4g}" for each in limits[1])
    assert f"were left out ({shown})" in said


@pytest.mark.on_torch
def test_calibrated(folder, tmp_path, capsys):
    """The saved weights have the temperature, and thresholds come after it."""
    plain, output = tmp_path / "plain", tmp_path / "calibrated"
    options = "classification", output, "--calibrate", "--tune-threshold"
    finetune(folder, "classification", plain, "--exits=own")
    finetune(folder, *options, "--exits=own")
    said, report = capsys.readouterr().out, report_of(output)
    texts, labels = held(folder, "classification")
    before, after = map(ka.Predictor.load, (plain, output))
    features = before._features_of({"text": texts})
    logits = np.stack(before.outputs(features))
    target = np.array([label == "yes" for label in labels]).astype(int)
    known = calibrated(logits, target, seed=0)
    assert abs(known.temperature - 1) > 0.01
    for name, value in report["calibration"].items():
        assert value == pytest.approx(getattr(known, name), abs=1e-5), name
    assert f"temperature {known.temperature:.3f}" in said
    assert f"{known.error_after:.3f} after (each half" in said
    x, _, _ = features.batch(np.arange(4), 4, 16)
    every_exit = [
        numpy(each.model(x, return_exits=True)) for each in (before, after)
    ]
    every_exit[0] /= known.temperature
    np.testing.assert_allclose(*every_exit, atol=1e-5)
    wanted = best_threshold(probabilities(after, texts), target)
    assert after.threshold == pytest.approx((wanted,), abs=1e-5)
    cards = [(each / "README.md").read_text() for each in (plain, output)]
    assert "step to keep was chosen" in cards[0]
    assert "keep and the temperature and the thresholds were chosen" in cards[1]
    assert f"{known.error_after:.3f} after (each half" in cards[1]
    # The finished run says the same again, and is not calibrated twice.
    weights = (output / "model.keras").read_bytes()
    finetune(folder, *options, "--exits=own")
    assert f"{known.error_after:.3f} after (each" in capsys.readouterr().out
    assert (output / "model.keras").read_bytes() == weights


@pytest.mark.on_torch
def test_calibrated_once(folder, tmp_path, monkeypatch):
    """A run that is killed just before the model is replaced, or just after."""
    options = "classification", tmp_path / "killed", "--calibrate"
    for place in ("decide.ModelFolder", "run.write_report"):
        with monkeypatch.context() as patch:
            stop = Mock(side_effect=KeyboardInterrupt)
            patch.setattr(f"keras_albert.finetuning.{place}", stop)
            with pytest.raises(SystemExit) as ended:
                finetune(folder, *options, steps=4)
            assert ended.value.code == 130 and stop.called
    finetune(folder, *options, steps=4)
    other = tmp_path / "other"
    finetune(folder, "classification", other, "--calibrate", steps=4)
    reports = [report_of(tmp_path / name) for name in ("killed", "other")]
    assert reports[0]["calibration"] == reports[1]["calibration"]
    assert not (tmp_path / "killed/checkpoints").exists()
    weights = [
        weights_checksum(ka.Predictor.load(tmp_path / name).model)
        for name in ("killed", "other")
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "task",
    [
        *marked("on_torch", "classification", "regression"),
        pytest.param(
            "exported", marks=[pytest.mark.any_backend, pytest.mark.proof]
        ),
    ],
)
def test_long_texts(folder, tmp_path, task, few_signatures):
    """A text is read in windows, in training and by every command.

    A teacher's logits are those of the text, for each of its windows.
    """
    exported = task == "exported"
    task = "classification" if exported else task
    output, length, how = tmp_path / "model", 10, "mean"
    # Half of them: op by op, each window takes a while.
    rows = rows_of((folder / "classification.held.jsonl").read_text())[::2]
    for number, row in enumerate(rows):
        row["text"] = " ".join([row["text"]] * (1 + number % 3))
        if task == "regression":
            row["label"], how = row["text"].count("fox"), "max"
    table = write_rows(tmp_path / "long.jsonl", rows)
    texts = [row["text"] for row in rows]
    given = told(folder, task, output) | {"long_texts": how}
    given |= {"train": table, "validation": table, "sequence_length": length}
    given |= {"steps": 4, "batch_size": 16, "learning_rate": 5e-3}
    more = ["--tune-threshold"] if task == "classification" else []
    said = run("finetune", *more, **given)
    predictor, report = ka.Predictor.load(output), report_of(output)
    tokenizer, room = predictor.tokenizer, length - 2

    def windows(text):
        ids = tokenizer.encode(text)
        starts = range(0, max(len(ids) - room, 0) + room // 2, room // 2)
        return [
            tokenizer.pack(ids[s : s + room], None, length)[0] for s in starts
        ]

    def logits(text):
        rows = [
            {"token_ids": np.array([row], "int32")} for row in windows(text)
        ]
        return np.concatenate([numpy(predictor.model(x)) for x in rows])

    count = sum(len(windows(text)) for text in texts)
    assert count > 1.5 * len(texts)
    assert f"read in {count} rows of 10 tokens" in said
    assert report["training_examples"] == report["count"] == len(texts)
    some = texts[::5]  # by hand only these
    if task == "classification":
        expected = [
            softmax(logits(text), axis=-1).mean(axis=0) for text in some
        ]
        found = predictor.probabilities(texts)
        (limit,) = predictor.threshold
        chosen = [*np.where(found[:, 1] > limit, "yes", "no")]
        assert predictor.predict(texts) == chosen
    else:
        expected = [logits(text).max(axis=0)[0] for text in some]
        found = predictor.predict(texts)
    np.testing.assert_allclose(found[::5], expected, atol=1e-5)
    for name, value in predictor.evaluate(table).items():
        # Two texts with nearly the same number may change places in the order.
        near = 1e-3 if name == "spearman" else 1e-4
        assert report[name] == pytest.approx(value, abs=near), name
    rows = rows_of(run("predict", model=output, data=table))
    answers = [row["prediction"] for row in rows]
    assert answers == pytest.approx(predictor.predict(texts), abs=1e-5)
    assert "windows, and the " + how in (output / "README.md").read_text()
    if task == "regression":
        student = given | {"output": tmp_path / "student", "teacher": output}
        run("finetune", **student)
        of_teacher = report_of(tmp_path / "student")["teacher"]
        assert of_teacher == pytest.approx(report["pearson"], abs=1e-4)
    if not exported:
        return
    # An exported model cuts, and says so.
    served = tmp_path / "served"
    few_signatures("serving_default", "token_ids")  # which --data compares
    said = run("export", model=output, output=served, data=table)
    assert "texts of more than 10 tokens are cut in it" in said
    assert "serving_default: 100.00% of the texts" in said
    cut = ka.Predictor.load(output, long_texts="cut")
    features = cut._features_of({"text": texts})
    assert features.cut > 10
    np.testing.assert_allclose(
        np.stack(load_exported(served).outputs(features)),
        np.stack(cut.outputs(features)),
        atol=1e-5,
    )
    run("check", served, output, table)


# Options, and what is said of them.
REFUSED = {
    "--tune-threshold --task=tokens": r"multilabel\. .*task='tokens'\. Leave",
    "--tune-threshold --task=SST-2 --validation=auto": (
        r"multilabel\. .*task='SST-2'"
    ),
    "--calibrate --task=multilabel": "pairs. .*'multilabel'. Leave",
    "--calibrate --task=regression": "Leave --calibrate out",
    "--tune-threshold --validation=none": "needs held-out examples. Give",
    "--calibrate --validation=auto": "too few rows .* any out .4.. Give",
    "--tune-threshold": "two labels with --task classification. .*: 3 labels",
    "--calibrate --validation=one.jsonl": "Received: one row of .*one.jsonl",
    "--long-texts=mean --task=pairs": "'mean' for task='pairs'. Leave --long",
    "--long-texts=mean --columns.pair=b": "'mean' for pairs of texts. Leave",
    "--long-texts=mean --exits=own": "`exits` is for texts of one window",
    "--calibrate --long-texts=mean": "Give --long-texts max, or leave",
}


@pytest.mark.on_torch
@pytest.mark.parametrize(("options", "message"), REFUSED.items())
def test_refused(folder, tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    rows = [{"text": "fox", "label": each} for each in ("no", "yes", "?", "no")]
    write_rows(tmp_path / "few.jsonl", rows)
    write_rows(tmp_path / "one.jsonl", rows[:1])
    given = told(folder, "classification", tmp_path / "out")
    given |= {"train": "few.jsonl", "validation": "few.jsonl"}
    said = refused(capsys, "finetune", *options.split(), **given)
    assert re.search(message, said), said
    assert not (tmp_path / "out").exists()
