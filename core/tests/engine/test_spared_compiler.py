"""A run that compiles nothing does without the import of ``torch._dynamo``, and takes the same steps."""

from __future__ import annotations

import subprocess
import sys

STEP = """
import sys
import torch
from recipe_core import Train
from recipe_core.engine.compiled import spare_compiler
from recipe_core.train.optim.adamw import AdamW

if {spared}:
    spare_compiler()
torch.manual_seed(1)
layer = torch.nn.Linear(4, 4)
train = Train(lr=0.1)
optimizer = AdamW([{{"params": list(layer.parameters()), "weight_decay": 0.1}}], train, {{}})
optimizer.add_param_group({{"params": [torch.nn.Parameter(torch.ones(2))]}})
layer(torch.ones(1, 4)).sum().backward()
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.zero_grad()
print("torch._dynamo" in sys.modules, layer.weight.tolist())
"""


def stepped(spared: bool) -> tuple[str, str]:
    code = STEP.format(spared=spared)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, _, weights = done.stdout.partition(" ")
    return imported, weights


def test_an_optimizer_steps_without_dynamo() -> None:
    (imported, weights), (usually, same) = stepped(True), stepped(False)
    assert (imported, usually) == ("False", "True")
    assert weights == same


def test_what_is_compiled_after_it_compiles() -> None:
    code = """
import torch
from recipe_core.engine.compiled import spare_compiler

spare_compiler()
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
compiled = torch.compile(layer, backend="eager", fullgraph=True)
compiled(torch.ones(1, 4)).sum().backward()
optimizer.step()
assert torch.equal(compiled(torch.ones(1, 4)), layer(torch.ones(1, 4)))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
