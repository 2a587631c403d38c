"""What the original's tokenizer made."""

import json

import pytest

import keras_albert as ka


@pytest.fixture(scope="session")
def tokenizer(data_folder):
    """With the released vocabulary."""
    return ka.Tokenizer(data_folder / "vocab" / "30k-clean.model")


@pytest.fixture(scope="session")
def golden(data_folder):
    """260 texts, their pieces and ids."""
    file = data_folder / "golden" / "tokenization_raw.jsonl"
    rows = [*map(json.loads, file.read_text("utf-8").splitlines())]
    assert len(rows) == 260
    return rows
