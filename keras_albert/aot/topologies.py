"""The TPU slices that a step can be compiled for, by their Cloud names."""

import dataclasses
import math

from keras_albert.errors import AlbertError


@dataclasses.dataclass(frozen=True)
class Generation:
    """What is the same in all slices of a generation.

    Sources: the pages "TPU v3" to "TPU v6e" of Cloud TPU's documentation for
    memory, peak and how slices are named; MaxText's accelerator_to_spec_map.py
    for what libtpu calls them.
    """

    chip: str
    """as libtpu calls it"""
    hbm: int
    """GiB of memory a chip"""
    peak: float
    """FLOP/s a chip, bfloat16"""
    named_cores: int
    """of a chip, where names count cores; 1 where they count chips"""
    shapes: tuple[str, ...]
    """of slices, in chips; the smallest first"""
    devices: int = 1
    """of a chip, as JAX sees it; they share its memory evenly"""
    chip_config: str = "default"
    """of libtpu; "megacore" makes two cores one device"""


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBIC = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8")

GENERATIONS = {
    "v3": Generation(
        "v3",
        hbm=32,
        peak=123e12,
        named_cores=2,
        shapes=("2x2", "4x4", "4x8", "8x8", "8x16", "16x16"),
        devices=2,
    ),
    "v4": Generation(
        "v4",
        hbm=32,
        peak=275e12,
        named_cores=2,
        shapes=_CUBIC,
        chip_config="megacore",
    ),
    "v5e": Generation("v5e", hbm=16, peak=197e12, named_cores=1, shapes=_FLAT),
    "v5p": Generation(
        "v5",
        hbm=95,
        peak=459e12,
        named_cores=2,
        shapes=_CUBIC,
        chip_config="megacore",
    ),
    "v6e": Generation("v6e", hbm=32, peak=918e12, named_cores=1, shapes=_FLAT),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice."""

    name: str
    generation: Generation
    shape: tuple[int, ...]
    """in chips"""

    @property
    def chips(self) -> int:
        """How many it has."""
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """How many JAX sees."""
        return self.chips * self.generation.devices

    @property
    def device_memory(self) -> int:
        """Bytes of HBM of a device."""
        return self.generation.hbm * 2**30 // self.generation.devices

    @property
    def spec(self) -> str:
        """What libtpu takes for it."""
        return f"{self.generation.chip}:{'x'.join(map(str, self.shape))}"

    @property
    def options(self) -> dict:
        """What libtpu takes beside the spec."""
        options = {"chip_config_name": self.generation.chip_config}
        if self.chips == 1:  # else it expects the four of a whole host
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
    """The slice of a name; AlbertError lists the known ones."""
    if name not in TOPOLOGIES:
        raise AlbertError(
            f"`topology` must be one of {', '.join(TOPOLOGIES)}. Received: "
            f"{name!r}."
        )
    return TOPOLOGIES[name]
