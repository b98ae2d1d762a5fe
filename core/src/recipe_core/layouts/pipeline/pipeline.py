"""Pipeline parallelism with the schedule 1F1B: each rank holds a stage, and micro batches pass from stage to stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from recipe_core.launch.watch.watchdog import backend_timeout
from recipe_core.layouts.parallel import Batch, Loss, Micro, Run, StepDiscarded, accumulate, plain_name
from recipe_core.layouts.pipeline.stages import TiedParameter
from recipe_core.layouts.reduction import gradients
from recipe_core.layouts.reduction.reducer import Reducer, sum_gradients
from recipe_core.layouts.settings import Divided
from recipe_core.layouts.sharded import Sharded
from recipe_core.layouts.tensor_parallel.rng import peek_seed, stream
from recipe_core.layouts.tensor_parallel.roles import TpGroup

Meta = tuple[torch.Size, torch.dtype]


class Pipeline(Sharded):
    """One stage of a pipeline.

    Each micro batch's forward seeds the generators, so that dropout depends on the samples and the stage alone. Every
    rank gets the values of the last stage.

    Args:
        module: this stage: the model, with None for submodules of other stages.
        tied: parameters that several stages hold.
        tp, reducer, config: see :class:`Sharded`.
        run: has the axis ``pp``.
    """

    def __init__(
        self, module: nn.Module, tied: Sequence[TiedParameter], run: Run, tp: TpGroup | None, reducer: Reducer | None,
        config: Divided | None,
    ) -> None:  # fmt: skip
        super().__init__(module, tp, reducer, config)
        assert run.mesh is not None
        mesh = run.mesh["pp"]
        self.group, self.index, self.count = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self.device = run.device
        self.first, self.last = self.index == 0, self.index == self.count - 1
        self.lag = self.count  # the first stage waits for a gradient before it begins a further micro batch
        self._tied, self._tie_groups = [tie for tie in tied if tie.local_name], _tie_groups(run, tied)
        self._names = {tie.local_name: tie.name for tie in self._tied}
        self._stage_module = _StageModule(self)
        self._schedules: dict[tuple[Any, ...], Schedule1F1B] = {}
        self._metas: dict[tuple[Any, ...], list[Meta]] = {}
        stages = run.structure.stages
        self._resized = stages is not None and bool(stages.between)
        self._keys: dict[bool, list[str]] = {}

    def size(self) -> int:
        """See :class:`Parallel`."""
        total = torch.tensor(sum(parameter.numel() for parameter in self._own_parameters()))
        dist.all_reduce(total, group=self.group)
        return int(total)

    def frozen_size(self) -> int:
        """See :class:`Parallel`."""
        counted = {parameter for tie, parameter in self._tied_parameters() if tie.stages[0] != self.index}
        frozen = [p for p in self.module.parameters() if not p.requires_grad and p not in counted]
        total = torch.tensor(sum(parameter.numel() for parameter in frozen))
        dist.all_reduce(total, group=self.group)
        return int(total)

    def loss(self, loss: Loss) -> Loss:
        """See :class:`Parallel`; a stage other than the last returns its output as the loss."""
        return loss if self.last else lambda output, batch: {"loss": output}

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """See :class:`Parallel`; a tied parameter has its first name in the whole model on every stage."""
        return [(self._names.get(name, name), parameter) for name, parameter in super().named_parameters()]

    def stages(self, name: str) -> tuple[tuple[int, ...], int]:
        """See :class:`Parallel`."""
        for tie in self._tied:
            if name == tie.name or name.startswith(f"{tie.name}."):
                return tie.stages, self.count
        return (self.index,), self.count

    def with_placeholders(self, state: dict[str, Any]) -> dict[str, Any]:
        """See :class:`Parallel`; the placeholders are the tensors of other stages."""
        state = _rename(state, self._names)
        own = {path: (leaf.shape, leaf.dtype) for path, leaf in _leaves(state) if isinstance(leaf, Tensor)}
        stages: list[Any] = [None] * self.count
        dist.all_gather_object(stages, own, group=self.group)
        elsewhere = {path: meta for stage in stages for path, meta in stage.items() if path not in own}
        for path, (shape, dtype) in elsewhere.items():
            inner = state
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = torch.empty(shape, dtype=dtype, device="meta")
        return state

    def local_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """See :class:`Parallel`."""
        return _rename(state, {name: here for here, name in self._names.items()})

    def backward(self, batches: Sequence[Batch], micro: Micro) -> dict[str, Tensor]:
        """See :class:`Parallel`."""
        self._reduce(last=False)
        schedule, numbers = self._schedule(batches, micro), torch.arange(len(batches))
        self._stage_module.begin(batches, micro)
        schedule.step(number=numbers, target=numbers, return_outputs=False)
        if self._stage_module.discarded:
            raise StepDiscarded
        self.complete_gradients()
        return self._from_last_stage(self._stage_module.total)

    def complete_gradients(self) -> None:
        """See :class:`Parallel`; tied weights get the sum over the stages that hold them."""
        super().complete_gradients()
        tied = self._tied_parameters()
        for stages, group in self._tie_groups.items():
            sum_gradients([p for tie, p in tied if tie.stages == stages and p.requires_grad], group)

    def _schedule(self, batches: Sequence[Batch], micro: Micro) -> Schedule1F1B:
        key = (len(batches), *_shapes(batches[0]))
        if key not in self._schedules:
            received, sent = (
                torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
                for shape, dtype in self._shapes_of(batches[0], micro)
            )
            stage = PipelineStage(
                self._stage_module, self.index, self.count, self.device, group=self.group,
                input_args=() if self.first else received, output_args=sent,
            )  # fmt: skip
            self._schedules[key] = Schedule1F1B(
                stage, len(batches), loss_fn=lambda output, target: output, scale_grads=False
            )
        return self._schedules[key]

    def _shapes_of(self, batch: Batch, micro: Micro) -> tuple[Meta, Meta]:
        # Of what this stage receives (nothing on the first) and returns (the loss on the last).
        key = self._batch_key(batch)
        if key not in self._metas:
            self._metas[key] = self._measure(batch, micro)
        scalar = (torch.Size(), torch.float32)
        metas = [scalar, *self._metas[key], scalar]
        return metas[self.index], metas[self.index + 1]

    def _measure(self, batch: Batch, micro: Micro) -> list[Meta]:
        # What each stage but the last sends. The first runs a forward to know it; modules between blocks may change it.
        metas: list[Meta] = []
        hidden = None
        for stage in range(self.count - 1 if self._resized else 1):
            message: list[Meta | None] = [None]
            if self._resized and stage:
                hidden = self._pass_on(hidden, metas[-1], stage)
            if self.index == stage:
                with torch.no_grad():
                    hidden = micro(cast("nn.Module", self._stage_forward(hidden)), batch, 0)["loss"]
                self._reshard()
                message = [(hidden.shape, hidden.dtype)]
            dist.broadcast_object_list(message, group=self.group, group_src=stage, device=torch.device("cpu"))
            metas.append(cast("Meta", message[0]))
        return metas if self._resized else metas * (self.count - 1)

    def _pass_on(self, hidden: Tensor | None, meta: Meta, stage: int) -> Tensor | None:
        # To ``stage``, from the one before.
        if self.index == stage:
            hidden = torch.empty(meta[0], dtype=meta[1], device=self.device)
            dist.recv(hidden, group=self.group, group_src=stage - 1)
        elif self.index == stage - 1:
            assert hidden is not None
            dist.send(hidden.contiguous(), group=self.group, group_dst=stage)
        return hidden

    @torch.no_grad()
    def evaluate(self, batch: Batch, micro: Micro) -> dict[str, Tensor]:
        """See :class:`Parallel`."""
        was_training = self.module.training
        self.module.eval()
        try:
            values = self._forward_stage(batch, micro)
            return self._from_last_stage({name: value.float() for name, value in values.items()})
        finally:
            self.module.train(was_training)
            self._reshard()

    def _forward_stage(self, batch: Batch, micro: Micro) -> Mapping[str, Tensor]:
        (shape, dtype), _ = self._shapes_of(batch, micro)
        hidden = None
        if not self.first:
            hidden = torch.empty(shape, dtype=dtype, device=self.device)
            dist.recv(hidden, group=self.group, group_src=self.index - 1)
        values = micro(cast("nn.Module", self._stage_forward(hidden)), batch, 0)
        if self.last:
            return values
        dist.send(values["loss"].contiguous(), group=self.group, group_dst=self.index + 1)
        return {}

    def placeholder_output(self, hidden: Tensor | None, batch: Batch) -> Tensor:
        """A tensor of the shape of this stage's output for ``batch``, computed without its parameters."""
        if self.last and hidden is not None:
            return hidden.sum()
        shape, dtype = self._metas[self._batch_key(batch)][self.index]
        output = torch.zeros(shape, dtype=dtype, device=self.device, requires_grad=True)
        return output if hidden is None else (output + hidden.sum()).to(dtype)

    def _batch_key(self, batch: Batch) -> tuple[Any, ...]:
        return (self.module.training, self.tp.sequence if self.tp else False, *_shapes(batch))

    def _stage_forward(self, hidden: Tensor | None) -> Callable[[Batch], Any]:
        # A function of the batch alone. Stages after the first draw random numbers of their own.

        def call(batch: Batch) -> Any:
            if hidden is None:
                return self.module(batch)
            with stream(self.device, peek_seed(), "stage", self.index) if self.module.training else nullcontext():
                return self.module(batch, hidden)

        return call

    def _from_last_stage(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        training = self.module.training
        if training not in self._keys:
            message = [list(values)]
            dist.broadcast_object_list(message, group=self.group, group_src=self.count - 1, device=torch.device("cpu"))
            self._keys[training] = message[0]
        shared = dict.fromkeys(self._keys[training], torch.empty(()))
        for dtype in (torch.float32, torch.int64):  # counts stay exact
            counts = [name for name in shared if self.reductions.get(name) == "count"]
            names = counts if dtype == torch.int64 else [name for name in shared if name not in counts]
            if names:
                stacked = torch.empty(len(names), dtype=dtype, device=self.device)
                if self.last:
                    stacked = torch.stack([values[name].to(dtype) for name in names])
                dist.broadcast(stacked, group=self.group, group_src=self.count - 1)
                shared |= zip(names, stacked.unbind(), strict=True)
        return shared

    @contextmanager
    def inference(self) -> Iterator[nn.Module]:
        """See :class:`Parallel`; all ranks get the last stage's output, which is a tensor."""
        with super().inference():
            yield _WholeModel(self)

    def output(self, batch: Batch) -> Tensor:
        """The model's output for ``batch``, on all ranks."""

        def micro(module: Callable[[Batch], Tensor], batch: Batch, number: int) -> Mapping[str, Tensor]:
            return {"loss": module(batch)}

        loss = self._forward_stage(batch, cast("Micro", micro)).get("loss")
        meta = [None if loss is None else (loss.shape, loss.dtype)]
        dist.broadcast_object_list(meta, group=self.group, group_src=self.count - 1, device=torch.device("cpu"))
        shape, dtype = cast("Meta", meta[0])
        output = torch.empty(shape, dtype=dtype, device=self.device) if loss is None else loss.contiguous()
        dist.broadcast(output, group=self.group, group_src=self.count - 1)
        self._reshard()
        return output

    def norm(self) -> Tensor:
        """See :class:`Parallel`; a parameter of two stages counts once."""
        total = gradients.sum_of_squares(p.grad for p in self._own_parameters() if p.grad is not None).to(self.device)
        dist.all_reduce(total, group=self.group)
        return total.sqrt()

    def _tied_parameters(self) -> list[tuple[TiedParameter, nn.Parameter]]:
        parameters = {plain_name(name): parameter for name, parameter in self.module.named_parameters()}
        return [(tie, parameters[tie.local_name]) for tie in self._tied]

    def _own_parameters(self) -> list[nn.Parameter]:
        # Without those that an earlier stage holds, too: each parameter of the pipeline counts once.
        counted = {parameter for tie, parameter in self._tied_parameters() if tie.stages[0] != self.index}
        return [parameter for parameter in self.parameters() if parameter not in counted]


class _StageModule(nn.Module):
    """The stage as PyTorch's schedule calls it: with the output of the stage before, and the number of the micro
    batch."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self._pipeline = pipeline
        self.total: dict[str, Tensor] = {}
        self.discarded = False

    def begin(self, batches: Sequence[Batch], micro: Micro) -> None:
        """Set the micro batches of the coming step."""
        self._batches, self._micro, self.total, self.discarded = batches, micro, {}, False

    def forward(self, hidden: Tensor | None = None, *, number: Tensor) -> Tensor:
        """The input of the next stage; on the last stage, this micro batch's share of the loss."""
        pipeline, count, this = self._pipeline, len(self._batches), int(number)
        try:
            values = self._micro(cast("nn.Module", pipeline._stage_forward(hidden)), self._batches[this], this)
        except StepDiscarded:  # other stages still wait for an output
            self.discarded = True
            return pipeline.placeholder_output(hidden, self._batches[this])
        output = values["loss"]
        if torch.is_grad_enabled() and not output.requires_grad:  # all that computed it is frozen
            output = output.requires_grad_()
        if pipeline.last:
            output = output / count
            accumulate(self.total, values, count, pipeline.reductions)
        if this == count - 1 and output.requires_grad:
            # Backward takes the micro batches in the same order: when this one's begins, gradients may be reduced.
            output.register_hook(lambda gradient: pipeline._reduce(last=True) and None)
        return output


class _WholeModel(nn.Module):
    """The whole model, which all ranks call together."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self._pipeline = pipeline
        self.stage = pipeline.module
        self.training = self.stage.training

    def forward(self, batch: Batch) -> Tensor:
        """The model's output."""
        return self._pipeline.output(batch)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.stage, name)


def _leaves(state: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in state.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _shapes(batch: Batch) -> tuple[Any, ...]:
    return tuple((name, tensor.shape) for name, tensor in sorted(batch.items()))


def _rename(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {
        names.get(key, key): _rename(value, names) if isinstance(value, Mapping) else value
        for key, value in state.items()
    }


def _tie_groups(run: Run, tied: Sequence[TiedParameter]) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """Process groups of the stages that hold the same parameters, by these stages.

    All ranks create the groups of all pipelines, in one order: else ranks of overlapping groups would deadlock.
    """
    assert run.mesh is not None
    assert run.mesh.mesh_dim_names is not None
    axis, timeout = run.mesh.mesh_dim_names.index("pp"), timedelta(seconds=backend_timeout(run.train.timeout))
    pipelines = run.mesh.mesh.movedim(axis, -1).flatten(0, -2).tolist()
    groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
    for stages in sorted({tie.stages for tie in tied}):
        if len(stages) == run.mesh["pp"].size():
            groups[stages] = run.mesh["pp"].get_group()
            continue
        for ranks in pipelines:
            group = dist.new_group([ranks[stage] for stage in stages], timeout)
            if isinstance(group, dist.ProcessGroup):  # else this rank is not in it
                groups[stages] = group
    return groups
