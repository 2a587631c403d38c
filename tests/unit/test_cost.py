"""What a run costs: the energy counters of processors, and the line."""

import pytest

from keras_albert.training.cost import Cost, EnergyMeter

pytestmark = pytest.mark.any_backend


def counters(folder, **values):
    for name, value in values.items():
        package = folder / name.replace("_", ":").replace("rapl", "intel-rapl")
        package.mkdir(exist_ok=True)
        (package / "energy_uj").write_text(f"{value}\n")
        kind = "core" if name.count("_") == 2 else "package-0"
        (package / "name").write_text(f"{kind}\n")
        (package / "max_energy_range_uj").write_text("9000000\n")


def test_energy_of_all_packages(tmp_path):
    """A part of a package, rapl_0_1, is in the package already."""
    counters(tmp_path, rapl_0=1_000_000, rapl_0_1=5, rapl_1=8_000_000)
    meter = EnergyMeter(tmp_path)
    assert meter.joules() == 0
    counters(tmp_path, rapl_0=3_500_000, rapl_0_1=7_000_000, rapl_1=1_000_000)
    assert meter.joules() == pytest.approx(2.5 + 2)  # the second has wrapped
    counters(tmp_path, rapl_0=0, rapl_1=8_000_000)
    assert meter.joules() == pytest.approx(4.5 + 5.5 + 7)


def test_energy_is_unknown(tmp_path):
    assert EnergyMeter(tmp_path / "none").joules() is None
    counters(tmp_path, rapl_0=1)
    meter = EnergyMeter(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert meter.joules() is None


def test_line():
    assert Cost(12.34, 2_048_000, 6.25e12, None).line() == (
        "cost: 12.3 minutes, 2,048,000 tokens, 6.25e+12 FLOP, energy unknown"
    )
    assert Cost(None, 1, 2.0, 12_345.6).line() == (
        "cost: 1 tokens, 2 FLOP, 12.3 kJ in the processors"
    )
