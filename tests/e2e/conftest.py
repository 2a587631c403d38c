"""Short runs are quick; texts for programs beside the package."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick(steps_alone):
    """Tests of plots are in tests/unit."""


@pytest.fixture(scope="module")
def texts(tiny_lines):
    from written_texts import chosen_texts

    return chosen_texts(tiny_lines)
