"""What several files of this folder begin with."""

import pytest

import keras_albert as ka


@pytest.fixture(scope="session")
def tokenizer(tiny_vocab):
    return ka.Tokenizer(tiny_vocab)
