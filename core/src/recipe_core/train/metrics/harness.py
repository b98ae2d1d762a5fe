"""Tasks of lm-evaluation-harness (the package ``lm_eval``) on a trained model, for ``recipe eval --tasks``."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import datasets
import torch
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import evaluate as run_tasks
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from recipe_core.checkpoint.match.trained import TrainedModel
from recipe_core.errors import ConfigError, PluginError, RecipeError
from recipe_core.hooks.inference import Evaluation, Generation, Scorer
from recipe_core.hooks.target import as_plugin_error, call

BATCH = 8
"""Texts in a batch."""
BOOTSTRAP = 1000
"""Bootstrap samples for the standard error of a metric without a formula for it."""
SEED = 1234
"""Seed of the choice of few-shot examples, as in the command ``lm_eval``."""
_TASK = re.compile(r"^(task|group|class)\s*:", re.MULTILINE)
Pair = tuple[list[int], list[int]]
"""Token ids of a context and of its continuation."""


def evaluate(trained: TrainedModel, paths: Sequence[Path], options: Evaluation) -> list[dict[str, Any]]:
    """Run the tasks in files and folders of YAML; return a row of metrics for each task and group.

    ``options.limit`` is the number of samples of each task.

    Raises:
        ConfigError: the model supports no tasks, or a task cannot be read or run.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it logs each default of a task
    datasets.disable_progress_bars()
    model = Harness(trained, options)
    try:
        tasks = _tasks(paths)
        with redirect_stdout(sys.stderr):  # the library prints progress
            results: Any = run_tasks(
                model, tasks, limit=options.limit, log_samples=False, bootstrap_iters=BOOTSTRAP, verbosity="ERROR"
            )
    except (RecipeError, MemoryError):
        raise
    except Exception as error:  # tasks are data and code of the user, which may raise anything
        hint = ""
        if isinstance(error, OSError):
            hint = (
                "; paths of data are relative to the current folder, and nothing is fetched unless HF_HUB_OFFLINE=0 "
                "HF_DATASETS_OFFLINE=0"
            )
        raise ConfigError(
            f"--tasks: {', '.join(map(str, paths))}: lm-evaluation-harness ended with {type(error).__name__}: "
            f"{error}{hint} (--debug shows the traceback)"
        ) from error
    if model.cut:
        print(
            f"recipe: the beginning of {model.cut:,} questions was cut off: with the answer they are longer than the "
            f"window, {model.scorer.window:,} tokens (--window)",
            file=sys.stderr,
        )
    return [_row(name, values, results["n-samples"].get(name)) for name, values in results["results"].items()]


def _tasks(paths: Sequence[Path]) -> Any:
    """Load the tasks in ``paths``; a group includes its members.

    Raises:
        ConfigError: there is none, or a file is none. The library skips such files silently.
    """
    files = [path for path in paths if path.is_file()]
    manager = TaskManager(include_path=[path for path in paths if path.is_dir()], include_defaults=False)
    members = {
        member if isinstance(member, str) else str(member.get("task"))
        for name in manager.all_groups
        for member in (manager.task_index[name].cfg or {}).get("task", [])
    }
    names = [*manager.all_subtasks, *manager.all_groups]
    known = {entry.yaml_path for entry in manager.task_index.values()}
    for path in (path for folder in paths for path in sorted(folder.glob("**/*.yaml"))):
        if path not in known and _TASK.search(path.read_text(encoding="utf-8", errors="replace")):
            raise ConfigError(f"--tasks: {path}: is no YAML of a task, or its name is another task's, too")
    if not names and not files:
        raise ConfigError(
            f"--tasks: {', '.join(map(str, paths))}: holds no task; expected .yaml files of lm-evaluation-harness"
        )
    loaded = manager.load([*map(str, files), *(name for name in names if name not in members)])
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=SEED)
    return loaded


def _row(name: str, values: Mapping[str, Any], samples: Mapping[str, int] | None) -> dict[str, Any]:
    # "acc,none" becomes "acc"; other filters stay in the name
    numbers = {key.removesuffix(",none"): value for key, value in values.items() if "," in key}
    return {
        "data": name,
        **({"samples": samples["effective"]} if samples else {}),
        **{key: value for key, value in numbers.items() if isinstance(value, (int, float))},
    }


def _with_progress(items: list[Any]) -> Iterable[Any]:
    # None disables the bar except on a terminal.
    bar: Iterable[Any] = tqdm(items, disable=None if len(items) > 1 else True, leave=False)
    return bar


class Harness(TemplateLM):  # type: ignore[misc]  # the library is not installed where types are checked
    """A trained model as lm-evaluation-harness calls it: log-likelihoods and generation."""

    def __init__(self, trained: TrainedModel, options: Evaluation) -> None:
        super().__init__()
        spec = trained.model.spec
        if not spec.score:
            raise ConfigError(
                f"{trained.path}: model {spec.name!r} takes no tasks: its plugin names no function for them "
                "(Model.score)"
            )
        scorer = call(spec.score, f"model {spec.name!r}", trained, options)
        if not isinstance(scorer, Scorer):
            raise PluginError(f"model {spec.name!r}: {spec.score!r} returned {scorer!r:.60}; expected a Scorer")
        self.trained, self.options, self.scorer = trained, options, scorer
        self.cut = 0
        """Questions that were truncated to the window."""

    @property
    def eot_token_id(self) -> int:
        return self.scorer.first

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self.scorer.encode(string)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation after its context, and True if it is the most likely one."""
        scores: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return scores

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows that overlap by one token only."""
        totals = []
        for request in _with_progress(requests):
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.scorer.window,
                context_len=1,
            )
            pairs = [utils.make_disjoint_window(window) for window in windows]
            totals.append(sum(value for value, _ in self._scores(pairs)))
        return totals

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        for (_, text), context, continuation in requests:
            self.cut += len(context) + len(continuation) > self.scorer.window + 1
            if not 0 < len(continuation) <= self.scorer.window:
                raise ConfigError(
                    f"--tasks: the answer {text!r:.60} has {len(continuation):,} tokens after its question; expected 1 "
                    f"to {self.scorer.window:,}, the window (--window)"
                )
        return self._scores([(context, continuation) for _, context, continuation in requests])

    @torch.inference_mode()
    def _scores(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        # contexts are truncated at their beginning
        scores: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        for numbers in _with_progress(list(self._batches(pairs))):
            rows = [torch.tensor([*pairs[n][0], *pairs[n][1]][-self.scorer.window - 1 :]) for n in numbers]
            given = pad_sequence([row[:-1] for row in rows], batch_first=True, padding_value=self.scorer.first)
            spec = self.trained.model.spec
            with as_plugin_error(f"model {spec.name!r}: {spec.score!r}", MemoryError):
                logits = self.scorer.logits(given.to(self.trained.device))
            for number, row, values in zip(numbers, rows, logits, strict=True):
                count = len(pairs[number][1])
                wanted = row[-count:].to(values.device)
                likelihoods = values[len(row) - 1 - count : len(row) - 1].float().log_softmax(-1)
                total = likelihoods.gather(1, wanted[:, None]).double().sum()
                scores[number] = (float(total), bool((likelihoods.argmax(-1) == wanted).all()))
        return scores

    def _batches(self, pairs: Sequence[Pair]) -> Iterator[list[int]]:
        # indices of pairs of similar length
        order = sorted(range(len(pairs)), key=lambda number: -sum(map(len, pairs[number])))
        size = self.options.batch or BATCH
        yield from (order[start : start + size] for start in range(0, len(order), size))

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continuation of each prompt by the model's function for ``recipe generate``, up to a stop text."""
        spec = self.trained.model.spec
        if not spec.generate:
            raise ConfigError(f"{self.trained.path}: model {spec.name!r} does not generate (Model.generate)")
        answers: dict[Generation, Any] = {}
        texts = []
        for request in _with_progress(requests):
            prompt, wanted = request.args
            settings = self._generation(wanted)
            if settings not in answers:
                answers[settings] = call(spec.generate, f"model {spec.name!r}", self.trained, settings)
            answer = answers[settings](prompt)
            if "text" not in answer:
                raise PluginError(
                    f"model {spec.name!r}: {spec.generate!r}: its answer has no 'text' (what was added) for the task"
                )
            texts.append(str(answer["text"]))
        return texts

    def _generation(self, wanted: Mapping[str, Any]) -> Generation:
        known: dict[str, Any] = dict(normalize_gen_kwargs(dict(wanted)))
        sample = known.pop("do_sample", False)
        settings = Generation(
            tokens=known.pop("max_gen_toks"),
            temperature=known.pop("temperature", 1.0 if sample else 0.0),
            top_k=known.pop("top_k", None),
            top_p=known.pop("top_p", None),
            stop=tuple(text for text in known.pop("until", ()) if text),
            window=self.options.window,
            tokenizer=self.options.tokenizer,
        )
        if known:
            raise ConfigError(f"--tasks: generation_kwargs: {', '.join(known)}: not known here")
        return settings
