"""A global batch that grows at the beginning of training, as ``--rampup-batch-size`` of Megatron-LM does it."""

from __future__ import annotations

from recipe_core.errors import ConfigError
from recipe_core.train.callbacks.callback import Callback, CallbackRun
from recipe_core.train.callbacks.settings import BatchRamp


class GrowingBatch(Callback):
    """Grows by equal increments after equal numbers of samples: a function of the samples, without a state.

    Raises:
        ConfigError: a batch on the way does not divide by the micro batches of all ranks, or is too small for the
            stages of a pipeline; or the engine compiles steps as a whole.
    """

    def __init__(self, config: BatchRamp, run: CallbackRun) -> None:
        train, at_once = run.run.train, run.run.train.micro_batch * run.run.dp_size
        mesh = run.run.mesh
        stages = mesh["pp"].size() if mesh is not None and "pp" in (mesh.mesh_dim_names or ()) else 1
        least = at_once * stages
        start, self._by, self._end = config.start or least, config.by or at_once, train.global_batch
        for name, value in (("start", start), ("by", self._by)):
            if value % at_once:
                raise ConfigError(
                    f"callback.batch_ramp.{name}: {value} is no multiple of {at_once}, a micro batch on each of the "
                    f"{run.run.dp_size} data-parallel ranks"
                )
        if start < least:
            raise ConfigError(f"callback.batch_ramp.start: {start} makes fewer micro batches than the {stages} stages")
        if run.engine.traced:
            raise ConfigError("callback.batch_ramp: this engine compiles a graph for each number of micro batches")
        self._start = start
        increments = -(-(self._end - start) // self._by)
        self._samples = config.samples / max(1, increments)

    def global_batch(self, consumed: int) -> int:
        """The batch after ``consumed`` samples."""
        return min(self._end, self._start + int(consumed / self._samples) * self._by)
