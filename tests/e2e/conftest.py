"""Short runs are quick."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick(no_plots):
    """Tests of plots are in tests/unit."""
