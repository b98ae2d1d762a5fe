"""From the name and the options of a filter to a function of a document's text."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from recipe_core.data.filters.files import FROM_FILE, digest_of, replaced
from recipe_core.data.filters.named import HIDDEN, NAMED, NamedFilter
from recipe_core.data.filters.options import convert, problem_of_options
from recipe_core.errors import ConfigError, RecipeError
from recipe_core.hooks.target import described

Apply = Callable[[str], tuple[str | None, str]]
"""Returns the text to keep, as it may be changed; or None, and the reason."""
_INSTALL = "pip install 'recipe-core[filters]'"
_TRIAL = "A first sentence of five words. The second one is here to be read, and it has no end of a line.\n"
"""Text by which a filter loads what it needs before the work begins."""
_DOWNLOADING = {"StanzaTokenizer": "stanza", "TibetanTokenizer": "botok"}
"""Word tokenizers of datatrove that download data, and their packages."""


@dataclass(frozen=True)
class Step:
    """A filter that is ready."""

    name: str
    apply: Apply
    by: dict[str, str]
    """Versions of packages and digests of files that decide the result."""


def build(name: str, options: dict[str, Any]) -> Step:
    """Build a filter.

    Raises:
        ConfigError: an option is wrong, or a package, a model or a list is missing.
    """
    return _named(name, NAMED[name], options) if name in NAMED else _of_target(name, options)


def _named(name: str, known: NamedFilter, options: dict[str, Any]) -> Step:
    with _explained(name), _without_downloads():
        kind = pkgutil.resolve_name(known.target)
        parameters = _parameters(known, kind)
        if problem := problem_of_options(options, parameters, known.files):
            raise ConfigError(f"filters: {name}: {problem}")
        files = {option: str(options[option]) for option in known.files}
        digests = {option: digest_of(name, option, path, known.files[option]) for option, path in files.items()}
        values = {
            option: convert(value, parameters[option]) for option, value in options.items() if option not in files
        }
        _refuse_downloading(name, values.get("language", getattr(parameters.get("language"), "default", None)))
        make = FROM_FILE.get(name)
        made = make(kind, *files.values(), values) if make else kind(**values)
        apply = _of_object(name, made, _reset_of(made))
        apply(_TRIAL)
        return Step(name, apply, {package: version(package) for package in known.packages} | digests)


def _parameters(known: NamedFilter, kind: type) -> dict[str, inspect.Parameter]:
    theirs = inspect.signature(kind.__init__).parameters  # type: ignore[misc]  # of the class itself
    parameters = {option: found for option, found in theirs.items() if option not in known.hidden | HIDDEN}
    for option, default in known.more.items():
        parameters[option] = inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default)
    return parameters


def _of_target(name: str, options: dict[str, Any]) -> Step:
    try:
        code = pkgutil.resolve_name(name)
    except (Exception, SystemExit) as error:  # importing it runs any code
        raise ConfigError(f"filters: {name} cannot be imported ({type(error).__name__}: {error})") from error
    if not callable(code):
        raise ConfigError(f"filters: {name} is {code!r:.60}; expected a function of a text, or a class of filters")
    with _explained(name):
        parameters = dict(inspect.signature(code).parameters)
        if not isinstance(code, type):
            parameters.pop(next(iter(parameters), ""), None)
        if problem := problem_of_options(options, parameters, {}):
            raise ConfigError(f"filters: {name}: {problem}")
        values = {option: convert(value, parameters.get(option)) for option, value in options.items()}
        apply = _of_object(name, code(**values), None) if isinstance(code, type) else _of_function(name, code, values)
        source = inspect.getsourcefile(inspect.unwrap(code))
        return Step(name, apply, {"source": digest_of(name, "source", source, "Python source")} if source else {})


def _of_object(name: str, made: Any, reset: Callable[[], None] | None) -> Apply:
    # a BaseFilter or a BaseFormatter of datatrove
    if hasattr(made, "filter"):
        document_class = pkgutil.resolve_name("datatrove.data:Document")

        def apply(text: str) -> tuple[str | None, str]:
            document = document_class(text=text, id="0")
            kept, reason = _kept_and_reason(made.filter(document))
            return (document.text, "") if kept else (None, reason or _short(name))

        return apply
    if hasattr(made, "format"):

        def change(text: str) -> tuple[str | None, str]:
            if reset:
                reset()
            return made.format(text), ""

        return change
    raise ConfigError(
        f"filters: {name}: {type(made).__name__} has neither the method filter, of datatrove's BaseFilter, nor format, "
        "of its BaseFormatter; only filters of one document are available here"
    )


def _of_function(name: str, function: Callable[..., Any], options: dict[str, Any]) -> Apply:
    def apply(text: str) -> tuple[str | None, str]:
        answer = function(text, **options)
        if isinstance(answer, str):
            return answer, ""
        kept, reason = _kept_and_reason(answer)
        if type(kept).__name__ not in ("bool", "bool_"):
            raise TypeError(f"expected True, False, False with the reason, or a text, got {answer!r:.60}")
        return (text, "") if kept else (None, reason or _short(name))

    return apply


def _kept_and_reason(answer: Any) -> tuple[Any, str]:
    kept, reason = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
    return kept, str(reason or "")


def _short(name: str) -> str:
    return name.rpartition(":")[2]


def _reset_of(made: Any) -> Callable[[], None] | None:
    """A function that makes PIIFormatter independent of earlier documents: it uses its replacements by turns."""
    replacers = [made.emails_replacer, made.ip_replacer] if hasattr(made, "emails_replacer") else []

    def reset() -> None:
        for replacer in replacers:
            replacer._replace_i = 0

    return reset if replacers else None


def _refuse_downloading(name: str, language: Any) -> None:
    if language is None:
        return
    load = pkgutil.resolve_name("datatrove.utils.word_tokenizers:load_word_tokenizer")
    refused = ConfigError(
        f"filters: {name}: datatrove downloads data to split the words of language={language}; filter such texts "
        "before, by datatrove's pipelines"
    )
    try:
        tokenizer = load(language)
    except ValueError as error:
        raise ConfigError(
            f"filters: {name}: language: datatrove has no rules for the words of {language!r}; expected a code such as "
            "eng, deu or fra"
        ) from error
    except ImportError as error:
        if any(package in str(error) for package in _DOWNLOADING.values()):
            raise refused from error
        raise
    if type(tokenizer).__name__ in _DOWNLOADING:
        raise refused


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Word errors of a filter's construction as the user's."""
    try:
        yield
    except RecipeError:
        raise
    except ImportError as error:
        raise ConfigError(f"filters: {name}: {_missing(error)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"filters: {name} cannot be used ({described(error)}); change its options") from error


def _missing(error: ImportError) -> str:
    if find_spec("datatrove") is None:
        return f"needs the package datatrove: {_INSTALL}"
    advice = "; fastText has no release for Python 3.13 or later" if "fasttext" in str(error) else ""
    return f"a package is missing ({' '.join(str(error).split())}): {_INSTALL}{advice}"


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Let datatrove neither download anything nor write to the log, while a filter is made and tried."""
    logger = pkgutil.resolve_name("loguru:logger")

    def refuse(remote_path: str, *arguments: Any, **options: Any) -> None:
        raise ConfigError(f"filters: datatrove would download {remote_path}, and nothing is downloaded here")

    logger.disable("datatrove")
    with replaced("datatrove.io:download_file", refuse):
        yield
