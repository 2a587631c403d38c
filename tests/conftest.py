"""Shared fixtures. One backend a process: set KERAS_BACKEND."""

import gc
import importlib.util
import os
import random
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# PyTorch must precede TensorFlow in a process, and the comparisons with
# transformers need it on every backend: two seconds, where it is installed.
if importlib.util.find_spec("torch") is not None:
    import torch  # noqa: F401


def pytest_collection_finish():
    """Keras collects garbage for each layer that it quantizes.

    Through all that three backends have imported, that takes a third of a
    second each time: leave those objects out.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real data and golden outputs that are not part of the repository."""
    folder = os.environ.get("KERAS_ALBERT_DATA")
    if not folder:
        pytest.skip("set KERAS_ALBERT_DATA to the folder of real data")
    return Path(folder)


@pytest.fixture(scope="session")
def tiny_lines() -> list[str]:
    """600 English-like sentences with numbers, capitals and punctuation."""
    rng = random.Random(7)
    subjects = ["The fox", "A dog", "My uncle", "Élodie", "The committee"]
    verbs = ["chased", "found", "sold", "painted", "remembered"]
    objects = ["two hens", "the old barn", "a letter", "nothing", "£9 of tea"]
    lines = []
    for _ in range(600):
        year = rng.randrange(1900, 2000)
        place = rng.choice(["London", "Prague", "the village", "São Paulo"])
        lines.append(
            f"{rng.choice(subjects)} {rng.choice(verbs)} "
            f"{rng.choice(objects)} in {year}, near {place} "
            f"({rng.randrange(100)} miles away)."
        )
    return lines


@pytest.fixture(scope="session")
def tiny_vocab(tmp_path_factory, tiny_lines) -> Path:
    """Folder of a vocabulary of 160 pieces trained on `tiny_lines`."""
    from keras_albert.config import VocabRun
    from keras_albert.text.vocabulary import train_vocabulary

    folder = tmp_path_factory.mktemp("tiny")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(tiny_lines) + "\n", encoding="utf-8")
    output = folder / "vocab"
    train_vocabulary(VocabRun(input=(corpus,), output=output, vocab_size=160))
    return output
