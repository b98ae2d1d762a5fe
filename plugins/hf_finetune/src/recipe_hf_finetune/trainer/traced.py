"""The Trainer on an engine that traces operations into graphs: when graphs run, and what the host may read.

transformers' own support of XLA is switched off (see :mod:`recipe_hf_finetune.trainer.arguments`): it takes each
process for a device of a TPU, so that on XLA's CPU nothing is reduced or synchronised, and it writes checkpoints that a
native run cannot continue. The Trainer believes that it runs on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from recipe_core import materialise
from recipe_core.checkpoint.saving.background import copy_to_host
from recipe_core.train.seeds import mix
from recipe_hf_finetune.trainer.fine_tuner import FineTuner, RunContext, loading


class TracedFineTuner(FineTuner):
    """A FineTuner with one graph per micro batch and one per optimizer step, the same in all steps.

    Args:
        context: the run.
        group: the process group that averages gradients; None on one rank.
        model: on the host or the meta device.
    """

    def __init__(self, *, context: RunContext, group: Any, model: nn.Module, **kwargs: Any) -> None:
        _report_tracing(context.engine.device.type)
        materialise(model, context.engine.device)  # a plain move would untie tied parameters
        self._held: dict[str, Any] = {}  # on the host, while a checkpoint is written
        super().__init__(context=context, model=model, **kwargs)
        # No DistributedDataParallel, which would pass gradients on the device to gloo.
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        self._group = group
        self._nothing = torch.zeros((), device=context.engine.device)
        self._micro = 0

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """As :class:`FineTuner`'s, which keeps the loss; returns 0, as the Trainer would sum losses in an extra graph.

        Dropout is seeded by the number of the micro batch, so that no random state has to be saved.
        """
        micro_batches = self.args.gradient_accumulation_steps
        number = (self.state.global_step * micro_batches + self._micro) * self.args.world_size + self.args.process_index
        drawn = torch.get_rng_state()  # the order of the samples is drawn from it
        self.context.engine.seed(mix(self.args.seed, number))
        torch.set_rng_state(drawn)
        super().training_step(*args, **kwargs)
        self._micro += 1
        self.context.engine.end_step()
        if self.accelerator.sync_gradients and self._group is not None:
            self.context.engine.average_gradients(self.model.parameters(), self._group)
        return self._nothing

    def end_step(self) -> None:
        """See :class:`FineTuner`."""
        self.context.engine.end_step()
        self._micro = 0
        super().end_step()

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, grad_norm: Any, *args: Any, **kwargs: Any) -> None:
        # The host reads from the device once per row. The Trainer's own mean of the loss is in no row.
        if self.control.should_log and isinstance(grad_norm, Tensor):
            self._last_loss, norm = self.context.engine.read(torch.stack([self._last_loss, grad_norm])).unbind()
            grad_norm = float(norm)
        super()._maybe_log_save_evaluate(torch.tensor(math.nan), grad_norm, *args, **kwargs)

    def prediction_step(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Loss, logits and labels on the host: concatenated on the device, they would have a new shape, and so a new
        graph, with each batch."""
        outputs = super().prediction_step(*args, **kwargs)
        self.context.engine.end_step()
        return tuple(self._copied(list(outputs)))

    def _copied(self, state: Any) -> Any:
        return copy_to_host(state, self.context.engine.to_host)

    def _comparable(self, leaves: dict[str, Any]) -> dict[str, Any]:
        return dict(self._copied(leaves))

    def store_flos(self) -> None:
        """Sum over ranks, which all count the same; the Trainer would gather a tensor on the device."""
        flos: float = self.current_flos  # type: ignore[has-type]
        self.state.total_flos += flos * self.args.world_size
        self.current_flos = 0

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        # One copy on the host is both checked and written.
        self._held = {name: self._copied(part) for name, part in super()._state().items()}
        try:
            super()._save_checkpoint(*args, **kwargs)
        finally:
            self._held = {}

    def _state(self) -> dict[str, Any]:
        return self._held or super()._state()

    def _trained(self) -> dict[str, Any]:
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        saved = self._held["optimizer"]
        states = {
            names[parameter]: saved["state"][number]
            for group, numbers in zip(self.optimizer.param_groups, saved["param_groups"], strict=True)
            for parameter, number in zip(group["params"], numbers["params"], strict=True)
            if number in saved["state"]
        }
        return {"model": {name: self._held["model"][name] for name in states}, "optimizer": {"state": states}}

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Tensor] | None = None) -> None:
        weights = self._held.get("model")
        super()._save(output_dir, state_dict=weights or self._copied(state_dict or self.model.state_dict()))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.args.should_save:
            torch.save(self._held["optimizer"], Path(output_dir) / OPTIMIZER_NAME)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        # torch.load cannot map files to this kind of device.
        if checkpoint is not None:
            read = partial(torch.load, map_location="cpu", weights_only=True)
            with loading(checkpoint, "optimizer and schedule"):
                self.optimizer.load_state_dict(read(Path(checkpoint) / OPTIMIZER_NAME))
                self.lr_scheduler.load_state_dict(read(Path(checkpoint) / SCHEDULER_NAME))


def _report_tracing(device: str) -> None:
    """Make transformers' ``is_tracing`` return True for tensors on ``device``.

    transformers 5 otherwise reads on the host, for each batch, whether it has padding, and builds another graph where
    it has none.
    """
    from transformers import masking_utils

    known = getattr(masking_utils, "is_tracing", None)  # not every release has it
    if known is None or hasattr(known, "of_device"):
        return

    def is_tracing(tensor: Any = None) -> bool:
        return (isinstance(tensor, Tensor) and tensor.device.type == device) or bool(known(tensor))

    is_tracing.of_device = True  # type: ignore[attr-defined]
    masking_utils.is_tracing = is_tracing
