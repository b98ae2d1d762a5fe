"""The model that an evaluation measures: of a run under any layout, or of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch

from recipe_core.checkpoint.match.trained import TrainedModel
from recipe_core.engine.loader import Batch
from recipe_core.errors import PluginError, RecipeError
from recipe_core.hooks.inference import Evaluation, Generation, Scorer
from recipe_core.hooks.kinds import code_of
from recipe_core.hooks.specs.evaluation import EvaluationSpec
from recipe_core.hooks.target import as_plugin_error, call
from recipe_core.launch.failures import is_of_machine
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.layouts.parallel import Reductions
from recipe_core.train.metrics.evaluations.likelihoods import Likelihood, batches_of, pieces_of, scores_of

Item = TypeVar("Item")
Result = TypeVar("Result")
BATCH = 8
"""Texts in a batch."""
MAP, DONE = "map", "done"
"""Kinds of messages that ranks exchange."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSamples:
    """The first samples of a split of a dataset."""

    count: int
    size: int
    """Samples of a micro batch."""
    take: Callable[[int, int], Batch]

    def read(self, start: int, count: int) -> Batch:
        """Return the samples ``start`` to ``start + count - 1``: tensors on the device of shape ``[count, ...]``."""
        return self.take(start, count)

    def batches(self) -> list[tuple[int, int]]:
        """Return start and number of samples of each micro batch, over all ranks, for :meth:`EvaluatedModel.map`."""
        return [(start, min(self.size, self.count - start)) for start in range(0, self.count, self.size)]


class Access(Protocol):
    """A model, its data and the other ranks, in a run or outside of one."""

    @property
    def device(self) -> torch.device: ...
    @property
    def data_rank(self) -> int: ...
    @property
    def data_ranks(self) -> int: ...
    @property
    def together(self) -> bool:
        """True if data-parallel ranks communicate in each forward pass."""
        ...

    @property
    def reductions(self) -> Reductions: ...
    def step(self) -> int | None: ...
    def forward(self, batch: Batch) -> Any: ...
    def loss(self, batch: Batch) -> dict[str, float]: ...
    def samples(self, count: int | None, split: str, settings: Mapping[str, Any], part: str) -> EvaluationSamples: ...
    def trained(self, *, copied: bool) -> TrainedModel: ...
    def gather(self, value: Any) -> list[Any]: ...


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel:
    """The model that an evaluation measures, in evaluation mode, without gradients.

    All ranks call its methods in the same order. Those of a tensor-parallel or pipeline group get the same batches.
    """

    access: Access = field(repr=False)
    spec: EvaluationSpec
    options: Evaluation = field(default_factory=Evaluation)
    """The options of ``recipe eval``; in a run, none is given."""
    _built: dict[str, Scorer] = field(init=False, default_factory=dict, repr=False)
    _within: list[bool] = field(init=False, default_factory=list, repr=False)
    """Calls of :meth:`map` that this call is within."""

    @property
    def step(self) -> int | None:
        """The optimizer steps that the model was trained for; None if unknown."""
        return self.access.step()

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.access.device

    def forward(self, batch: Batch) -> Any:
        """Return the output of the model for ``batch``, as its plugin describes it: for a GPT and a batch without
        labels, logits ``[batch, sequence, vocabulary]``.

        It works under every layout: ranks that share layers or stages get the same output, under a pipeline a tensor.
        """
        self._require("loss")
        beat.enter("evaluation")
        with torch.no_grad():
            return self.access.forward(batch)

    def loss(self, batch: Batch) -> dict[str, float]:
        """Return what the loss of the model returns for ``batch``, without counts: ``loss`` and others.

        Data-parallel ranks may have different batches; :meth:`mean_loss` adds them up.
        """
        self._require("loss")
        beat.enter("evaluation")
        return self.access.loss(batch)

    @property
    def samples(self) -> EvaluationSamples:
        """The samples on which a run is validated: the first ``train.eval_samples`` of its validation split."""
        return self.dataset()

    def dataset(
        self, count: int | None = None, split: str = "valid", settings: Mapping[str, Any] | None = None, part: str = ""
    ) -> EvaluationSamples:
        """Return samples of the run's dataset, or of one with other settings.

        Args:
            count: number of samples; None: ``train.eval_samples``.
            split: ``valid`` or ``train``.
            settings: settings of the dataset that replace those of the run, such as ``files``.
            part: a part of a mixture, to which ``settings`` then apply; empty: the dataset itself.

        Raises:
            ConfigError: the dataset has no such setting or part, or is not known.
        """
        self._require("loss")
        return self.access.samples(count, split, settings or {}, part)

    def mean_loss(self, samples: EvaluationSamples) -> dict[str, float]:
        """Return the values of the loss over all ``samples``, the same on all ranks.

        As in a validation, means are over micro batches, weighted by their samples; micro batches are shared among
        data-parallel ranks.
        """
        batches = samples.batches()
        values = self.map(lambda batch: self.loss(samples.read(*batch)), batches, uniform=True)
        total: dict[str, float] = {}
        for (_, size), found in zip(batches, values, strict=True):
            for name, value in found.items():
                reduction = self.access.reductions.get(name, "mean")
                if reduction == "max":
                    total[name] = max(total.get(name, value), value)
                else:
                    share = size / samples.count if reduction == "mean" else 1.0
                    total[name] = total.get(name, 0.0) + value * share
        return total

    @property
    def scorer(self) -> Scorer:
        """The model as a function of token ids, see :class:`recipe_core.Scorer`; its ``logits`` follow
        :meth:`forward`.

        Raises:
            ConfigError: the model gives none, for example because no tokenizer is known.
        """
        self._require("score")
        if "scorer" not in self._built:
            trained = self.access.trained(copied=False)
            model = trained.model.spec
            code = f"model {model.name!r}: {model.score!r}"
            scorer = call(model.score, f"model {model.name!r}", trained, self.options)
            if not isinstance(scorer, Scorer):
                raise PluginError(f"{code} returned {scorer!r:.60}; expected a Scorer")
            self._built["scorer"] = replace(scorer, logits=_in_its_name(scorer.logits, code))
        return self._built["scorer"]

    def loglikelihoods(self, texts: Sequence[str | tuple[str, str]]) -> list[Likelihood]:
        """Return the log-likelihood of each text, in nats, or of each continuation after its context.

        A text is predicted from its first token on. A context that does not fit the window is cut at its beginning, and
        a longer text is predicted in windows that overlap by half. Batches are shared among data-parallel ranks; all
        ranks get all results.

        Raises:
            ConfigError: a text has no token.
        """
        scorer = self.scorer
        pairs = [("", text) if isinstance(text, str) else text for text in texts]
        pieces = [piece for number, pair in enumerate(pairs) for piece in pieces_of(scorer, number, *pair)]
        batches = batches_of(pieces, self.options.batch or BATCH)
        device = self.device
        found = self.map(lambda batch: scores_of(scorer, batch, device), batches, uniform=True)
        results = [Likelihood(0.0, 0, True) for _ in pairs]
        for batch, scores in zip(batches, found, strict=True):
            for piece, score in zip(batch, scores, strict=True):
                results[piece.text] += score
        return results

    def generator(self, settings: Generation | None = None) -> Callable[[str], dict[str, Any]]:
        """Return the model's function for ``recipe generate``: ``answer(prompt) -> {"text": ..., ...}``.

        In a run it works on a copy of the model as it is now; call it anew in each evaluation, outside of :meth:`map`,
        which shares prompts among ranks. Under FSDP and tensor parallelism, each rank gets a whole copy.

        Raises:
            ConfigError: the model cannot generate, for example because no tokenizer is known.
        """
        self._require("generate")
        if self._within:
            raise PluginError(
                f"evaluation {self.spec.name!r} calls model.generator within model.map; call it before, once in each "
                "measure"
            )
        trained = self.access.trained(copied=True)
        model = trained.model.spec
        chosen = settings or Generation()
        answer: Callable[[str], dict[str, Any]] = call(model.generate, f"model {model.name!r}", trained, chosen)
        return _in_its_name(answer, f"model {model.name!r}: {model.generate!r}")

    def map(self, function: Callable[[Item], Result], items: Sequence[Item], *, uniform: bool = False) -> list[Result]:
        """Return ``function(item)`` of each of ``items``, in their order, the same on all ranks.

        Data-parallel ranks share the items. Under layouts whose data-parallel ranks communicate in each forward pass
        (``fsdp``, ``zero1``), each computes all of them, unless the evaluation takes ``generate`` alone, or ``uniform``
        says that ``function`` calls the model equally often for each item. Results are pickled to be exchanged, so they
        should be small. Within ``function``, methods that share work do all of it on this rank.

        Raises:
            PluginError: ``function`` raised an error on one of the ranks.
        """
        if self._within:  # other ranks are at other items
            return [function(item) for item in items]
        lockstep = self.access.together and self.spec.takes != ("generate",)
        rank, ranks = self.access.data_rank, self.access.data_ranks
        if lockstep and not uniform:
            rank, ranks = 0, 1
        own = list(range(rank, len(items), ranks))
        surplus = -(-len(items) // ranks) - len(own) if lockstep else 0
        results: dict[int, Result] = {}
        failure: BaseException | None = None
        self._within.append(True)
        try:
            for number in [*own, *[len(items) - 1] * surplus]:
                beat.enter("evaluation", number)
                result = function(items[number])
                results |= {number: result} if number in own else {}
        except Exception as error:
            failure = error
        finally:
            self._within.pop()
        return self._exchanged(results, len(items), failure)

    def _exchanged(self, results: dict[int, Result], count: int, failure: BaseException | None) -> list[Result]:
        """The results of all ranks; the error of any of them is raised on all."""
        text = ""
        if failure is not None:
            try:
                with blamed(self.spec):
                    raise failure
            except Exception as error:
                text = str(error) if isinstance(error, RecipeError) else f"{type(error).__name__}: {error}"
        everyone = self.access.gather((MAP, results, text))
        if failure is not None:
            raise failure
        for number, (kind, _, problem) in enumerate(everyone):
            if kind != MAP:
                raise PluginError(f"rank {number} has ended its evaluation while others compute")
            if problem:
                raise PluginError(f"rank {number}: {problem}")
        merged: dict[int, Result] = {}
        for _, found, _ in everyone:
            merged = {**found, **merged}
        return [merged[number] for number in range(count)]

    def _require(self, word: str) -> None:
        if word not in self.spec.takes:
            raise PluginError(
                f"evaluation {self.spec.name!r} uses what it does not say that it takes; register it with "
                f"takes={(*self.spec.takes, word)!r}"
            )


def blamed(spec: EvaluationSpec) -> as_plugin_error:
    """Name an evaluation in the errors of its ``measure``, and of the model's code that it calls."""
    return as_plugin_error(f"{code_of(spec)}: measure", passes=is_of_machine)


def _in_its_name(function: Callable[[Item], Result], code: str) -> Callable[[Item], Result]:
    guard = as_plugin_error(code, passes=is_of_machine)

    def guarded(item: Item) -> Result:
        with guard:
            return function(item)

    return guarded
