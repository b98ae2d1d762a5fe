"""A model cut into the stages of a pipeline: who holds what, and what cannot be cut."""

from __future__ import annotations

import sys

import pytest
from torch import nn

from recipe_core.errors import ConfigError, PluginError
from recipe_core.hooks.specs import Model, Stages, Structure
from recipe_core.layouts.pipeline.stages import TiedParameter, cut_stage

ENDS = Stages(first=("words", "places"), last=("norm", "words"))
STRUCTURE = Structure(model="net", blocks="blocks.*", stages=ENDS)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(4, 2), nn.Embedding(3, 2)
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(5))
        self.norm = nn.LayerNorm(2)


def held(count: int) -> tuple[list[set[str]], list[list[TiedParameter]]]:
    """Submodules with parameters of each stage, and tied parameters as it sees them."""
    found, tied = [], []
    for index in range(count):
        net = Net()
        tied.append(cut_stage(net, STRUCTURE, index, count))
        found.append({name.rpartition(".")[0] for name, _ in net.named_parameters()})
    return found, tied


def test_blocks_are_shared_out_in_their_order() -> None:
    found, tied = held(2)
    assert found[0] == {"words", "places", "blocks.0", "blocks.1"}
    assert found[1] == {"words", "norm", "blocks.2", "blocks.3", "blocks.4"}
    assert tied == [[TiedParameter("words.weight", "words.weight", (0, 1))]] * 2


def test_stages_between_hold_blocks_alone() -> None:
    found, tied = held(3)
    assert found[1] == {"blocks.1", "blocks.2"}
    assert [[(tie.local_name, tie.stages) for tie in stage] for stage in tied] == [
        [("words.weight", (0, 2))], [("", (0, 2))], [("words.weight", (0, 2))]
    ]  # fmt: skip
    assert [sum(name.startswith("blocks") for name in stage) for stage in found] == [1, 2, 2]


def test_one_stage_holds_everything_once() -> None:
    found, tied = held(1)
    assert found == [{"words", "places", "norm", *(f"blocks.{i}" for i in range(5))}]
    assert tied == [[]]


def test_ties_are_found_by_identity_whatever_their_names() -> None:
    """An output and blocks that share tensors with others; a stage names what it has, and the whole model's first."""
    ends = Stages(first=("words", "places"), last=("norm", "output"))
    found = []
    for index in range(3):
        net = Net()
        net.output = nn.Linear(2, 4, bias=False)
        net.output.weight = net.words.weight
        net.blocks[4].weight = net.blocks[3].weight = net.blocks[0].weight
        found.append(cut_stage(net, Structure(model="net", blocks="blocks.*", stages=ends), index, 3))
        assert [name for name in ("words", "output") if getattr(net, name) is None] == [
            ["output"], ["words", "output"], ["words"]
        ][index]  # fmt: skip
    first, last = "blocks.0.weight", "blocks.3.weight"
    assert found == [
        [TiedParameter("words.weight", "words.weight", (0, 2)), TiedParameter(first, first, (0, 2))],
        [TiedParameter("words.weight", "", (0, 2)), TiedParameter(first, "", (0, 2))],
        [TiedParameter("words.weight", "output.weight", (0, 2)), TiedParameter(first, last, (0, 2))],
    ]


def test_a_tied_module_that_no_stage_has_is_refused() -> None:
    """Each stage would hold it, and the one that uses it would train it alone."""
    net = Net()
    net.output = nn.Linear(2, 4, bias=False)
    net.output.weight = net.words.weight
    structure = Structure(model="net", blocks="blocks.*", stages=Stages(first=("words", "places"), last=("norm",)))
    with pytest.raises(PluginError, match=r"no stage of a pipeline holds output\.weight"):
        cut_stage(net, structure, 1, 2)


@pytest.mark.parametrize(
    ("structure", "count", "message"),
    [
        (STRUCTURE, 6, r"^layout\.pp: 6 stages need as many blocks, and the model has 5$"),
        (Structure(model="net", blocks="blocks.*"), 2, "model 'net' cannot be a pipeline: it names no stages"),
        (Structure(model="net", blocks="layers.*", stages=ENDS), 2, "it names no stages or blocks"),
        (
            Structure(model="net", blocks="blocks.*", stages=Stages(first=("words", "places"), last=("end",))), 2,
            "model 'net': its stages name end, and it has no such submodule",
        ),
        (
            Structure(model="net", blocks="blocks.*", stages=Stages(first=("words",), last=("norm",))), 2,
            r"model 'net': no stage of a pipeline holds places\.weight",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_cut(structure: Structure, count: int, message: str) -> None:
    with pytest.raises((ConfigError, PluginError), match=message):
        cut_stage(Net(), structure, 0, count)


def stages_of(layers: int) -> Stages | None:
    return Stages(first=("words",), last=("norm",)) if layers > 1 else None


def test_stages_may_follow_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stages_of_a_test", sys.modules[__name__])
    model = Model(name="net", build="stages_of_a_test:none", blocks="blocks.*", stages="stages_of_a_test:stages_of")
    assert model.structure(2).stages == Stages(first=("words",), last=("norm",))
    assert model.structure(1).stages is None
    given = Model(name="net", build="stages_of_a_test:none", stages=ENDS)
    assert given.structure(1).stages == ENDS
