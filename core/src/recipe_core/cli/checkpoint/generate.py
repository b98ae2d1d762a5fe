"""The command ``recipe generate``. No torch here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.checkpoint.source import source_options
from recipe_core.cli.options import LocalPath, SourcePath, debug_option, load_plugins

if TYPE_CHECKING:
    from recipe_core.checkpoint.match.trained import TrainedModel
    from recipe_core.hooks.inference import Generation

Answer = Callable[[str], Mapping[str, Any]]
"""Maps a prompt to the answer of a model; see :attr:`recipe_core.Model.generate`."""


@click.command()
@click.argument("source", type=SourcePath(), metavar="RUN|CHECKPOINT")
@click.argument("more", nargs=-1, metavar="")
@click.option("--prompt", "prompt_texts", multiple=True, metavar="TEXT|-", help="A prompt; - reads one from each line.")
@click.option("--prompts", "file", type=LocalPath(), metavar="FILE", help="A prompt in each line, or .jsonl.")
@click.option("--tokens", type=int, metavar="N", help="New tokens at most (GPT: 200).")
@click.option("--temperature", type=float, metavar="T", help="Divides the logits; 0: the likeliest token (GPT: 0.8).")
@click.option("--top-k", type=int, metavar="K", help="Sample from the K most likely tokens (GPT: 40).")
@click.option("--top-p", type=float, metavar="P", help="Sample from the likeliest that add up to P (default: all).")
@click.option("--seed", type=int, metavar="N", help="Seed of the draws, for every prompt (default: 0).")
@click.option("--stop", multiple=True, metavar="TEXT", help="End where this text comes; it is cut off.")
@click.option("--window", type=int, metavar="N", help="Tokens that the model sees (default: as in training).")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each prompt.")
@source_options
@debug_option
def generate(
    source: Path, more: tuple[str, ...], prompt_texts: tuple[str, ...], file: Path | None, as_json: bool, **options: Any
) -> None:
    """Have a trained model answer prompts.

    A GPT continues them, a BERT fills [MASK], a classifier labels them. RUN|CHECKPOINT is a run folder (its newest
    checkpoint is taken), the folder of a checkpoint of any format, or a file. Without --prompt, prompts are typed,
    or read from a pipe.
    """
    from recipe_core.cli.checkpoint.prompts import prompts
    from recipe_core.cli.checkpoint.source import engine, model_at, require_exists
    from recipe_core.errors import ConfigError
    from recipe_core.hooks.inference import Generation

    if more:
        raise ConfigError(f"{more[0]}: a prompt is given as an option: --prompt {shlex.quote(more[0])}")
    settings = Generation(**{name: options[name] for name in Generation.__dataclass_fields__})
    require_exists(source)
    texts, typed = prompts(prompt_texts, file)
    plugins = load_plugins()
    with engine(options["device"]) as started:
        answer = _load_answer(model_at(plugins, source, started, options), settings)
        for number, prompt in enumerate(texts):
            result = dict(answer(prompt))
            shown = str(result.pop("shown", ""))
            if number and not as_json and not typed:
                click.echo()
            click.echo(json.dumps({"prompt": prompt, **result}, ensure_ascii=False) if as_json else shown)


def _load_answer(trained: TrainedModel, settings: Generation) -> Answer:
    """Load the function of the model that answers prompts.

    Raises:
        ConfigError: the model has no such function.
        PluginError: the function is not callable; later, its answer has the wrong type, or it raised a bug.
    """
    from recipe_core.cli.checkpoint.source import owner
    from recipe_core.errors import ConfigError, PluginError
    from recipe_core.hooks.target import as_plugin_error, call

    spec = trained.model.spec
    if not spec.generate:
        raise ConfigError(
            f"{trained.path}: model {spec.name!r} does not generate: its plugin names no function for it "
            "(Model.generate)"
        )
    answer = call(spec.generate, f"model {spec.name!r}", trained, settings)
    code = owner(spec, "generate")
    if not callable(answer):
        raise PluginError(f"{code} returned {answer!r:.60}; expected a function answer(prompt)")

    def checked_answer(prompt: str) -> Mapping[str, Any]:
        with as_plugin_error(code, MemoryError):
            result = answer(prompt)
        if not isinstance(result, Mapping) or not isinstance(result.get("shown"), str):
            raise PluginError(f"{code}: its answer is {result!r:.60}; expected a dict with the text 'shown'")
        return result

    return checked_answer
