"""What a pretraining run checks and reports, without running."""

import dataclasses
import functools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import keras
import numpy as np
import pytest
from commands import run, training_of
from small import TEXT_CONFIG, numpy

from keras_albert.corpus.config import PrepareRun
from keras_albert.corpus.prepare import prepare
from keras_albert.corpus.shards import ShardSet
from keras_albert.distribution.devices import OneDevice
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import EvaluateRun
from keras_albert.finetuning.evaluate import _evaluate_pretrained
from keras_albert.modeling.config import VARIANTS
from keras_albert.pretraining import run as pretrain
from keras_albert.pretraining.config import ExampleConfig, PretrainRun
from keras_albert.storage import MANIFEST_FILE, checksum
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.training.config import OptimizerConfig
from keras_albert.training.optimizer import Muon
from keras_albert.training.run_folder import MADE_OF, check_made_of

pytestmark = pytest.mark.any_backend
RUN = PretrainRun(data=Path("shards"), output=Path("out"), warm_start="old")


@pytest.fixture(scope="module")
def vocabularies(tiny_vocab, tmp_path_factory):
    """Of the same size: name -> folder; and shards made with each."""
    folder = tmp_path_factory.mktemp("vocabularies")
    (folder / "a.txt").write_text("two hens\nnothing\n")
    model = (tiny_vocab / "spiece.model").read_bytes()
    made = {}
    for name, lower_case, keep_accents, end in (
        ("ours", True, False, b""),
        ("cased", False, False, b""),
        ("accents", True, True, b""),
        # A protobuf file followed by a field that nobody knows.
        ("others", True, False, b"\xf8\x7f\x01"),
    ):
        made[name] = folder / name
        tokenizer = Tokenizer.from_bytes(model + end, lower_case, keep_accents)
        tokenizer.save(made[name])
        shards = made[name] / "shards"
        prepare(PrepareRun((folder / "a.txt",), made[name], shards, workers=1))
    return made


def test_the_options_reach_the_run(vocabularies, tmp_path):
    """So do the checksums by which an interrupted run knows its shards."""
    shards = vocabularies["ours"] / "shards"
    sizes = {"vocab_size": ShardSet.open(shards).vocab_size}
    TEXT_CONFIG.replace(**sizes).to_json(tmp_path / "config.json")
    optimizer = "--optimizer.optimizer=muon", "--optimizer.learning-rate=0.002"
    optimizer += "--optimizer.beta-1=0.8", "--optimizer.ema-momentum=0.5"
    steps = "--steps=8", "--warmup-steps=4", "--validate-every=4"
    more = "--keep-checkpoints=7", "--batch-size=2", "--validation-steps=1"
    training = training_of(
        lambda: run(
            "pretrain",
            *(*optimizer, *steps, *more, "--examples.sequence-length=16"),
            data=shards,
            validation=shards,
            config=tmp_path / "config.json",
            output=tmp_path / "run",
        )
    )
    names = {"backend", "config", "data", "validation"}
    assert training.origin.keys() == names
    of_shards = checksum(shards / MANIFEST_FILE)
    assert training.origin["data"] == of_shards
    assert training.origin["validation"] == of_shards
    assert training.timetable.keep_checkpoints == 7
    model = training.content.model
    assert type(model.optimizer) is Muon and model.optimizer.beta_1 == 0.8
    assert model.optimizer.use_ema and model.optimizer.ema_momentum == 0.5
    model.optimizer.build(model.trainable_variables)
    rates = []
    for step in (0, 2, 4, 6):
        model.optimizer.iterations.assign(step)
        rates.append(float(numpy(model.optimizer.learning_rate)))
    assert rates == pytest.approx([0, 0.001, 0.001, 0.0005])


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ("others", "other pieces"),
        ("cased", "lower_case=False instead of True"),
        ("accents", "keep_accents=True instead of False"),
    ],
)
def test_another_vocabulary(vocabularies, other, difference):
    """Its tokens would stand for other pieces, or for other spellings.

    Its shards are no other tokens here, as the text has neither capitals nor
    accents; the manifest, by which a run that goes on knows them, differs.
    """
    folders = [vocabularies[name] / "shards" for name in ("ours", other)]
    shards, others = map(ShardSet.open, folders)
    config = VARIANTS["base_v2"].replace(vocab_size=shards.vocab_size)
    run = dataclasses.replace(RUN, validation=Path("held-out"))
    pretrain._check_fit(run, config, shards, shards, None)
    theirs = SimpleNamespace(tokenizer=others.tokenizer())
    ours = SimpleNamespace(tokenizer=shards.tokenizer())
    evaluation = EvaluateRun(Path("model"), folders[1])
    for check, message in (
        (
            lambda: pretrain._check_fit(run, config, shards, others, None),
            "held-out was prepared with another vocabulary than ",
        ),
        (
            lambda: pretrain._check_fit(run, config, shards, None, theirs),
            "old has another vocabulary than shards",
        ),
        (lambda: _evaluate_pretrained(ours, evaluation), "--vocab model"),
    ):
        with pytest.raises(AlbertError, match=message) as error:
            check()
        assert difference in str(error.value)
    for file in folders[0].glob("*.npy"):
        assert file.read_bytes() == (folders[1] / file.name).read_bytes()
    one, another = ((each / MANIFEST_FILE).read_bytes() for each in folders)
    assert one != another


def test_held_out_text_of_one_document(vocabularies):
    """It has no other document, as `run.examples` needs."""
    shards = ShardSet.open(vocabularies["ours"] / "shards")
    config = VARIANTS["base_v2"].replace(vocab_size=shards.vocab_size)
    run = dataclasses.replace(
        RUN,
        validation=Path("held-out"),
        examples=ExampleConfig(sentence_task="nsp"),
    )
    with pytest.raises(AlbertError, match=r"held-out: .*'nsp' pairs two"):
        pretrain._check_fit(run, config, shards, shards, None)


def test_a_finished_run_knows_its_shards(vocabularies):
    """Of others it is another run; it may outlive its own."""
    folders = [vocabularies[name] / "shards" for name in ("ours", "cased")]
    run = dataclasses.replace(RUN, data=folders[0], validation=folders[1])
    report = {MADE_OF: pretrain._checksums(run)}

    def check(run):
        sources = [run.data, run.validation]
        made_of = functools.partial(pretrain._checksums, run)
        check_made_of(run.output, report, sources, made_of)

    check(run)
    other = dataclasses.replace(run, validation=folders[0])
    with pytest.raises(AlbertError, match=r"have changed.*another output"):
        check(other)
    check(dataclasses.replace(run, data=Path("gone")))


def test_held_out_examples_do_not_depend_on_share_and_seed(vocabularies):
    """Otherwise models could not be compared."""
    shards = ShardSet.open(vocabularies["ours"] / "shards")

    def labels(share, seed=0):
        examples = ExampleConfig(16, masked_lm_prob=share, sentence_task="none")
        run = dataclasses.replace(
            RUN, examples=examples, batch_size=2, seed=seed
        )
        inputs = SimpleNamespace(held_out=shards)
        batches = pretrain._Inputs.held_out_batches(inputs, run)
        return [y["mlm"] for _, y, _ in batches.as_numpy_iterator()]

    np.testing.assert_array_equal(labels(0.15), labels(0.6))
    np.testing.assert_array_equal(labels(0.15), labels(0.15, seed=5))


def test_steps_of_several_parts(tmp_path, tiny_vocab):
    """Short rows come first; a step that is gone on from has all its parts."""
    (tmp_path / "a.txt").write_text("two hens\nnothing\nthe old barn\n\n" * 9)
    folder = tmp_path / "shards"
    prepare(PrepareRun((tmp_path / "a.txt",), tiny_vocab, folder, workers=1))
    examples = ExampleConfig(24, sentence_task="none")
    run = dataclasses.replace(
        RUN,
        examples=examples,
        batch_size=4,
        accumulate=2,
        steps=3,
        warmup_steps=0,
        short_length=12,
        short_steps=1,
        validation_steps=2,
    )
    shards = ShardSet.open(folder)
    inputs = SimpleNamespace(shards=shards, held_out=shards)

    def batches(step, **changes):
        changed = dataclasses.replace(run, **changes)
        found = pretrain._Inputs.batches_from(
            inputs, step, changed, OneDevice()
        )
        return [x["token_ids"] for x, _, _ in found.as_numpy_iterator()]

    shapes = [ids.shape for ids in batches(0)]
    assert shapes == [(2, 12)] * 2 + [(2, 24)] * 4
    for here, there in zip(batches(2), batches(0)[4:], strict=True):
        np.testing.assert_array_equal(here, there)
    others = zip(batches(0), batches(0, seed=5), strict=True)
    assert not any(np.array_equal(*each) for each in others)
    held_out = pretrain._Inputs.held_out_batches(inputs, run)
    assert held_out.cardinality() == 4


def test_the_seed_is_set_before_the_model_is_made(monkeypatch):
    calls = Mock()
    calls.make.side_effect = AlbertError("made")
    monkeypatch.setattr(keras.utils, "set_random_seed", calls.seed)
    monkeypatch.setattr(pretrain, "_compiled_model", calls.make)
    with pytest.raises(AlbertError, match="made"):
        pretrain._train(dataclasses.replace(RUN, seed=5), Mock(), None, None)
    assert calls.mock_calls[0] == call.seed(5)
    assert len(calls.mock_calls) == 2


@pytest.mark.parametrize(
    ("replicas", "count", "model_parallel"), [(2, 1, 1), (1, 2, 1), (1, 1, 2)]
)
def test_a_teacher_works_on_one_device(replicas, count, model_parallel):
    run = SimpleNamespace(teacher="a", model_parallel=model_parallel)
    devices = SimpleNamespace(replicas=replicas, count=count)
    with pytest.raises(AlbertError, match="`teacher` works on one device"):
        pretrain._teacher_of(run, None, devices)


NOVELS = Path(__file__).parents[2] / "examples" / "novels"


def test_the_report_of_the_novels_can_be_read():
    """It is of a run before the model of the lowest loss was kept."""
    report = json.loads((NOVELS / "report.json").read_text())
    masked, order = pretrain.report_lines(report)
    assert "masked-LM accuracy      0.310" in masked
    assert "sentence-order accuracy 0.637" in order and "868 pairs" in order


@pytest.mark.parametrize(
    ("folder", "number", "end"),
    [("glue", r"(-?[\d.]+ \+- [\d.]+)", ""), ("reading", r"([\d.]+)", r"\n")],
)
def test_tables_of_the_novels_are_those_of_the_reports(folder, number, end):
    rows = re.findall(
        rf"\| (\S+) \(([\d,]+)\) \| ([\w ]+) \| {number} \| {number} \|{end}",
        (NOVELS / "README.md").read_text(),
    )
    assert len(rows) == 5
    for task, count, score, *shown in rows:
        for start, text in zip(("scratch", "pretrained"), shown, strict=True):
            path = NOVELS / folder / f"{task}-{start}.json"
            report = json.loads(path.read_text())
            assert report["count"] == int(count.replace(",", ""))
            name = score.lower().replace(" ", "_")
            if folder == "glue":
                found = report["scores"][name]
                mean, spread = found["mean"], found["standard_deviation"]
                assert text == f"{100 * mean:.1f} +- {100 * spread:.1f}"
                assert len(report["seeds"]) == 3 and not report["diverged"]
            else:
                percent = 1 if task.startswith("SQuAD") else 100
                assert text == f"{percent * report[name]:.1f}"
                assert report["from_scratch"] == (start == "scratch")


def test_every_held_out_example_counts_alike(monkeypatch):
    """Keras's own loss is the mean of the batches, also of the last one."""
    found = {"loss": 9.0, "mlm_cross_entropy": 2.0, "sop_cross_entropy": 0.5}
    monkeypatch.setattr(pretrain, "evaluate_until", lambda *_: found)
    measured = pretrain._held_out(None, None, None, None)
    assert measured == found | {"loss": 2.5}


def test_advice_is_for_models_of_released_size():
    """0.00176 x sqrt(32 / 4096) = 0.000156."""
    base = VARIANTS["base_v2"]
    small = PretrainRun(data=Path("s"), output=Path("o"), batch_size=32)
    assert "=0.000156" in pretrain.learning_rate_advice(small, base)
    assert pretrain.learning_rate_advice(RUN, base) is None, "the paper's batch"
    tiny = base.replace(hidden_size=192)
    assert pretrain.learning_rate_advice(small, tiny) is None
    packing = SimpleNamespace(examples_per_row=4)  # 128 examples a step
    assert "=0.000311" in pretrain.learning_rate_advice(small, base, packing)
    adamw = dataclasses.replace(small, optimizer=OptimizerConfig("adamw"))
    assert pretrain.learning_rate_advice(adamw, base) is None


def test_advice_on_memory():
    """Base, 8 x 128 tokens: 0.681 GB (docs/concepts.md), 16 times as many."""
    base = VARIANTS["base_v2"]
    examples = ExampleConfig(sequence_length=128)
    run = PretrainRun(Path("s"), Path("o"), batch_size=128, examples=examples)
    assert "keeps 11 GB" in pretrain.memory_advice(run, base, 1)
    assert "keeps 5 GB" in pretrain.memory_advice(run, base, 2)
    assert pretrain.memory_advice(run, base, 4) is None
    for fits in ({"remat": True}, {"accumulate": 4}):
        other = dataclasses.replace(run, **fits)
        assert pretrain.memory_advice(other, base, 1) is None


def test_the_best_constant_guess_is_the_more_frequent_label():
    """Three of four pairs are labelled 1; a fifth does not count."""

    y = {"mlm": np.array([[7, 7], [7, 9]]), "sop": np.array([1, 1, 0, 1, 0])}
    weight = {"mlm": np.ones((2, 2)), "sop": np.array([1, 1, 1, 1, 0])}
    batches = SimpleNamespace(as_numpy_iterator=lambda: [(None, y, weight)])
    names = "mlm_accuracy mlm_cross_entropy sop_accuracy sop_cross_entropy"
    measured = dict.fromkeys(names.split(), 0.5)
    report = pretrain.held_out_report(measured, batches)
    assert report["sop_baseline"] == 0.75 and report["sop_count"] == 4
    assert report["mlm_baseline"] == 0.75 and report["mlm_count"] == 4
    _, line = pretrain.report_lines({"held_out": report})
    assert "0.750" in line and "+-0.424" in line, "1.96 sqrt(3/16 / 4)"
    last = {"held_out": report, "steps": 3000, "kept_step": 3000}
    assert len(pretrain.report_lines(last)) == 2
    earlier = {**last, "kept_step": 2000}
    *_, line = pretrain.report_lines(earlier)
    assert "step 2,000 of 3,000, whose held-out loss is the lowest" in line
