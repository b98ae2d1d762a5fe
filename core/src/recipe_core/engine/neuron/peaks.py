"""Peak FLOP/s of Trainium."""

from __future__ import annotations

from recipe_core.engine.machine.packages import instance
from recipe_core.engine.machine.peaks import Peak
from recipe_core.engine.neuron.stack import logical_core_size

# Per chip, with the physical cores of a chip: the pages Trainium, Trainium2 and Trainium3 Architecture of
# https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch/
_TRAINIUM = {
    "trn1": (Peak(190, 190, 47.5), 2),
    "trn2": (Peak(667, 667, 181), 8),
    "trn3": (Peak(671, 671, 183), 8),
}


def trainium_peak(instance: str, cores: int) -> Peak | None:
    """Peak of one logical NeuronCore, made of ``cores`` physical ones, on an EC2 instance type (``trn2.48xlarge``)."""
    known = _TRAINIUM.get(instance[:4])
    if known is None:
        return None
    chip, physical = known
    return Peak(*(None if value is None else value * cores / physical for value in chip))


def trainium_instance_peak() -> Peak | None:
    """Peak of one logical NeuronCore of this machine; None if it is no EC2 instance with Trainium."""
    return trainium_peak(instance(), logical_core_size())
