"""`make demo` in small: every step of it."""

import itertools
import json
import os
import shlex
from pathlib import Path

import pytest
from commands import output_of, report_of, run

pytestmark = pytest.mark.any_backend

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.usefixtures("eagerly")
def test_demo(tmp_path, monkeypatch, capfd, few_signatures):
    """What loads TensorFlow runs in this process, which has imported it."""

    def here(command, options, *flags):
        if command in ("vocab", "prepare"):
            alone(command, options, *flags)
            return
        run(command, *itertools.chain(*options.items()), *flags)

    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    import demo

    alone = demo.albert
    monkeypatch.setitem(demo.MODEL, "num_hidden_layers", 1)
    for option, value in (
        *(("--steps", 4), ("--warmup-steps", 2), ("--batch-size", 4)),
        *(("--validate-every", 2), ("--validation-steps", 2)),
    ):
        monkeypatch.setitem(demo.PRETRAIN, option, value)
    monkeypatch.setattr(demo, "albert", here)
    few_signatures("serving_default")  # which is asked
    few = {"--steps": 4, "--sequence-length": 16}
    monkeypatch.setattr(demo, "FINETUNE", few)
    demo.main(tmp_path / "demo")
    out = capfd.readouterr().out
    report = report_of(tmp_path / "demo/finetuned")
    assert report["count"] > 100 and report["labels"] > 8
    # The served strings are answered as the model that was exported answers.
    answers = (tmp_path / "demo/answers.tsv").read_text().splitlines()[1:]
    assert len(answers) == report["count"]
    right = sum(row.split("\t")[1] == row.split("\t")[2] for row in answers)
    assert right / len(answers) == pytest.approx(report["accuracy"])
    assert f"{right} of {len(answers)} right" in out
    assert out.count("    -> ") == demo.SHOWN_PASSAGES
    half = {"accuracy": 0.5, "count": 100}
    more = {"accuracy": 0.8, "count": 100}
    assert "by +0.300 (standard error 0.064): pretraining helped" in (
        demo.verdict(more, half)
    )
    assert "does not show" in demo.verdict(half, half)
    assert f"chapter of a passage {report['accuracy']:19.3f}" in out
    assert f"{tmp_path / 'demo' / 'pretrained' / 'curves.png'}: " in out
    # The next commands can be typed as they stand.
    question, predict = out.splitlines()[-2:]
    output_of("sh", "-c", question)
    program, *arguments = shlex.split(predict)
    assert os.access(program, os.X_OK)
    answer = json.loads(run(*arguments))
    assert answer["text"] == "Which command sets a breakpoint?"
    # No held-out sentence was trained on, and a second demo may start.
    text = tmp_path / "demo" / "text"
    train, held_out = (
        set((text / f"{name}.txt").read_text().splitlines()) - {""}
        for name in ("train", "held_out")
    )
    assert len(train) > 5000 and len(held_out) > 500
    assert not train & held_out
    assert (tmp_path / "demo" / ".keras_albert_demo").is_file()


def test_a_folder_of_the_user_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import demo

    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "thesis.txt").write_text("mine")
    with pytest.raises(SystemExit, match="not of a demo"):
        demo.main(tmp_path)
    assert (tmp_path / "text" / "thesis.txt").read_text() == "mine"
