"""The TPU slices for which a step can be compiled, by their Cloud TPU names."""

import dataclasses
import math

from keras_albert.errors import AlbertError


@dataclasses.dataclass(frozen=True)
class Generation:
    """The properties of a TPU generation.

    Sources: the pages "TPU v3" to "TPU v6e" of Cloud TPU's documentation for
    memory, peak and names of slices; MaxText's accelerator_to_spec_map.py for
    the names in libtpu.
    """

    chip: str  # name of the chip in libtpu
    hbm: int  # memory of a chip in GiB
    peak: float  # peak of a chip in FLOP/s, bfloat16
    # cores of a chip if names of slices count cores; 1 if they count chips
    named_cores: int
    shapes: tuple[str, ...]  # shapes of the slices in chips, the smallest first
    devices: int = 1  # devices of a chip in JAX; they share its memory evenly
    # an option of libtpu; "megacore" makes one device of two cores
    chip_config: str = "default"


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBIC = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8")

_V3 = ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16")

GENERATIONS = {  # chip, GiB, FLOP/s, cores that names of slices count, shapes
    "v3": Generation("v3", 32, 123e12, 2, _V3, devices=2),
    "v4": Generation("v4", 32, 275e12, 2, _CUBIC, chip_config="megacore"),
    "v5e": Generation("v5e", 16, 197e12, 1, _FLAT),
    "v5p": Generation("v5", 95, 459e12, 2, _CUBIC, chip_config="megacore"),
    "v6e": Generation("v6e", 32, 918e12, 1, _FLAT),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A TPU slice."""

    name: str
    generation: Generation
    shape: tuple[int, ...]  # number of chips along each axis

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        return self.chips * self.generation.devices

    @property
    def device_memory(self) -> int:
        """Memory (HBM) of a device in bytes."""
        return self.generation.hbm * 2**30 // self.generation.devices

    @property
    def spec(self) -> str:
        """The name of the topology in libtpu."""
        return f"{self.generation.chip}:{'x'.join(map(str, self.shape))}"

    @property
    def options(self) -> dict:
        options = {"chip_config_name": self.generation.chip_config}
        if self.chips == 1:  # by default a host has four chips
            options["chips_per_host_bounds"] = (1, 1, 1)
        return options


def _topologies() -> dict[str, Topology]:
    topologies = {}
    for prefix, generation in GENERATIONS.items():
        for text in generation.shapes:
            shape = tuple(map(int, text.split("x")))
            name = f"{prefix}-{math.prod(shape) * generation.named_cores}"
            topologies[name] = Topology(name, generation, shape)
    return topologies


TOPOLOGIES = _topologies()


def topology_of(name: str) -> Topology:
    """The slice with a name; AlbertError, which lists all, if there is none."""
    if name not in TOPOLOGIES:
        raise AlbertError(
            f"`topology` must be one of {', '.join(TOPOLOGIES)}. Received: "
            f"{name!r}."
        )
    return TOPOLOGIES[name]
