"""The library peft computes the same with an adapter, in both directions.

Weights are random; see exchange.py.
"""

import shutil

import numpy as np
import pytest
from commands import edit_json, run, write_rows
from exchange import (
    arrays,
    assert_close,
    batch,
    heads_there,
    of_transformers,
    randomize_ours,
    randomize_theirs,
)
from small import EXCHANGED, marked

import keras_albert as ka
from keras_albert.checkpoints.transfer import weights_of

pytestmark = pytest.mark.on_torch
pytest.importorskip("torch", reason="peft runs on PyTorch")
transformers = pytest.importorskip("transformers", reason="not installed")
peft = pytest.importorskip("peft", reason="not installed")

CLASSES = {
    "classification": "AlbertForSequenceClassification",
    "tokens": "AlbertForTokenClassification",
    "choice": "AlbertForMultipleChoice",
    "qa": "AlbertForQuestionAnswering",
}
TABLES = {
    "classification": [{"text": f"a {w}", "label": w} for w in ("fox", "dog")],
    "tokens": [{"text": ["a", w], "label": ["O", w]} for w in ("fox", "dog")],
    "choice": [{"text": "a", "choices": ["fox", "dog"], "label": "B"}],
    "qa": [{"context": "a fox", "question": "who", "answers": ["fox"]}],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory, tiny_vocab):
    """An encoder with random weights, as a folder of each library."""
    folder = tmp_path_factory.mktemp("base")
    tokenizer = ka.Tokenizer(tiny_vocab)
    config = EXCHANGED.replace(
        vocab_size=tokenizer.vocab_size,
        num_hidden_groups=2,
        max_position_embeddings=40,
    )
    encoder = randomize_ours(ka.AlbertBackbone(config, tokenizer=tokenizer))
    encoder.save_to_preset(folder / "ours")
    ka.save_huggingface(encoder, folder / "theirs")
    return folder


def their_base(name, base, **settings):
    """A model of transformers with the base's encoder and a random head."""
    kind = getattr(transformers, name)
    return kind.from_pretrained(base / "theirs", **settings).eval()


def assert_same(ours, theirs, task):
    x = batch(choices=3 if task == "choice" else None)
    assert_close(arrays(ours(x)), heads_there(of_transformers(theirs, x)))


def with_base(adapter, folder):
    """An adapter, read with its base in another folder."""
    path, base = adapter / "adapter_config.json", str(folder)
    edit_json(path, base_model_name_or_path=base)
    return ka.load(adapter)


@pytest.mark.usefixtures("eagerly", "steps_alone")
@pytest.mark.filterwarnings("error:Found missing adapter keys")
@pytest.mark.filterwarnings("error:Unexpected keyword arguments")
@pytest.mark.parametrize(
    "task", ["classification", "qa", *marked("proof", "tokens", "choice")]
)
def test_written_here_and_read_there(base, tmp_path, task):
    table = write_rows(tmp_path / "table.jsonl", TABLES[task] * 4)
    run(
        "finetune",
        *("--any-text", "--warmup-share=0", "--learning-rate=0.1"),
        *("--lora-rank=3", "--steps=3", f"--validation={table}"),
        model=base / "ours",
        train=table,
        task=task,
        output=tmp_path / "model",
    )
    ours = ka.load(tmp_path / "model")
    labels = {"num_labels": getattr(ours, "num_labels", None) or 2}
    theirs = their_base(CLASSES[task], base, **labels)
    adapter = tmp_path / "model" / "adapter"
    adapted = peft.PeftModel.from_pretrained(theirs, adapter)
    # Not `adapted` itself: for questions it leaves the segments out.
    assert_same(ours, adapted.base_model, task)
    # The base may be in another format, and have another dropout.
    other = shutil.copytree(base / "theirs", tmp_path / "other")
    edit_json(other / "config.json", hidden_dropout_prob=0.3)
    again = with_base(adapter, other)
    assert_same(again, adapted.base_model, task)
    # That is for a base which says "gelu"; this one names its approximation.
    assert ka.load(adapter, gelu="erf").config == again.config


@pytest.mark.parametrize("task", [*CLASSES, "encoder"])
def test_written_there_and_read_here(base, tmp_path, task):
    name = CLASSES.get(task, "AlbertModel")
    settings = {"num_labels": 5} if task in ("classification", "tokens") else {}
    theirs = their_base(name, base, **settings)
    types = {"classification": "SEQ_CLS", "tokens": "TOKEN_CLS"}
    types |= {"qa": "QUESTION_ANS", "encoder": "FEATURE_EXTRACTION"}
    targets = ["query", "key", "value", "dense", "ffn", "ffn_output"]
    config = peft.LoraConfig(
        task_type=types.get(task),
        r=4,
        lora_alpha=6,
        rank_pattern={"ffn": 2},
        use_rslora=task == "qa",
        target_modules=targets,
        modules_to_save=["classifier"] if task == "choice" else None,
    )
    adapted = randomize_theirs(peft.get_peft_model(theirs, config), seed=1)
    adapted.save_pretrained(tmp_path / "adapter")
    for format_of_base in ("theirs", "ours"):
        ours = with_base(tmp_path / "adapter", base / format_of_base)
        assert_same(ours, adapted.base_model, task)
        if task != "encoder":
            assert type(ours).__name__ == name
            continue
        before = weights_of(ka.load(base / "ours"))
        after = weights_of(ours)
        changed = [k for k in before if not np.array_equal(before[k], after[k])]
        assert len(changed) == 2 * len(targets), "two groups"
