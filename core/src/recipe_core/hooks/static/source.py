"""Find a function or a class in a module's source and read its signature, without importing the module.

A module that is already imported is inspected instead.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from recipe_core.errors import did_you_mean

_POSITIONAL, _KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
_REST, _NAMED_REST = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_LITERALS = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr, ast.ListComp, ast.DictComp)
_DYNAMIC = ("__getattr__", "globals(", "exec(", "setattr(", "vars(", "sys.modules", "import *")
"""A module whose text contains one of these may define further names at run time."""
_DEPTH = 12
"""Re-exports and assignments to follow, at most."""

_BLOCK = re.compile(r"^(async def|def|class) (\w+)", re.MULTILINE)
_DECORATED = re.compile(r"^[@)#].*\n\Z", re.MULTILINE)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.expr


class MissingError(Exception):
    """The function does not exist, or takes other arguments."""


class _UndecidedError(Exception):
    """The answer needs the code to run."""


def require(module: str, name: str, arguments: tuple[str, ...]) -> None:
    """Find ``name`` in ``module`` and check that it takes the positional ``arguments``.

    Raises:
        MissingError: there is no such module or name, or it cannot be called with these arguments.
    """
    try:
        loaded = sys.modules.get(module)
        if loaded is not None:
            _require_loaded(loaded, name, arguments)
        elif not _matches_plainly(source := _Source.of(module), name, arguments):
            _require(source, name, arguments, module.partition(".")[0], _DEPTH)
    except _UndecidedError:
        pass


@dataclass(frozen=True)
class _Source:
    """A module that is not imported."""

    spec: ModuleSpec
    text: str

    @classmethod
    def of(cls, module: str) -> _Source:
        spec = _find(module)
        read = getattr(spec.loader, "get_source", None)
        if read is None:  # a folder without __init__.py, or an extension module
            raise _UndecidedError
        try:
            text = read(module)
        except (SyntaxError, UnicodeDecodeError, ImportError, OSError) as error:
            raise MissingError(f"{spec.origin} cannot be read ({error})") from error
        if text is None:
            raise _UndecidedError
        return cls(spec, text)

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError) as error:
            line = f", line {error.lineno}," if isinstance(error, SyntaxError) else ""
            reason = error.msg if isinstance(error, SyntaxError) else error
            raise MissingError(f"{self.spec.origin}{line} is not Python ({reason})") from error

    def place(self, node: ast.AST) -> str:
        """Return file and line of ``node``, for messages."""
        return f"{self.spec.origin}, line {getattr(node, 'lineno', 1)}"


def _find(module: str) -> ModuleSpec:
    """The spec of ``module``; ``importlib.util.find_spec`` would import the packages that it is in."""
    parent, path, spec = "", None, None
    for part in module.split("."):
        name = f"{parent}.{part}" if parent else part
        loaded = sys.modules.get(name)
        if loaded is not None:
            spec, path = loaded.__spec__, getattr(loaded, "__path__", None)
        else:
            if parent and path is None:
                raise MissingError(f"{parent} is a module, not a package that holds {part!r}")
            spec = None if name in sys.modules else _ask_finders(name, path)
            if spec is None:
                _require_plain_path(parent)
                raise MissingError(
                    f"package {parent} ({next(iter(path or ()), '')}) holds no module {part!r}"
                    if parent
                    else f"there is no package {part!r}"
                )
            path = spec.submodule_search_locations
        parent = name
    if spec is None:
        raise _UndecidedError
    return spec


def _ask_finders(name: str, path: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
    return None


def _require_plain_path(package: str) -> None:
    # A package that sets its ``__path__`` finds its modules in unknown places.
    if package and package not in sys.modules and "__path__" in _Source.of(package).text:
        raise _UndecidedError


def _require_loaded(module: ModuleType, name: str, arguments: tuple[str, ...]) -> None:
    if "__getattr__" in vars(module) and name.partition(".")[0] not in vars(module):
        raise _UndecidedError  # its first use would import it
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise MissingError(_not_there(getattr(module, "__file__", None) or module.__name__, part, dir(value)))
        value = getattr(value, part)
    if not callable(value):
        raise MissingError(f"it is {value!r:.60}, and expected is a function")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        raise _UndecidedError from None
    _check_signature(name, "", signature, arguments)


def _matches_plainly(source: _Source, name: str, arguments: tuple[str, ...]) -> bool:
    """True for a function or class at module level that takes the arguments, in a file that compiles.

    It parses only that block, in a tenth of the time.
    """
    if not _compiles(source):
        return False
    starts = [start for start in _BLOCK.finditer(source.text) if start[2] == name]
    if len(starts) != 1 or _DECORATED.search(source.text, max(0, starts[0].start() - 200), starts[0].start()):
        return False
    if any(source.text.count(quotes, 0, starts[0].start()) % 2 for quotes in ('"""', "'''")):  # it is within a string
        return False
    try:
        _require_definition(source, name, _block(source.text[starts[0].start() :], starts[0][1]), arguments)
    except (SyntaxError, ValueError, MissingError):  # the whole file gives a better message
        return False
    return True


def _block(text: str, word: str) -> Definition:
    """The function, without its body, or the class at the beginning of ``text``."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        if lines and line[0] not in " \t)\r\n":
            break
        lines.append(line)
        if word != "class" and line.rstrip().endswith(":"):
            lines.append(" pass")
            break
    (definition,) = ast.parse("".join(lines)).body
    return definition  # type: ignore[return-value]


def _compiles(source: _Source) -> bool:
    """True if the file compiles: its cached bytecode is current, or is written now, as by an import."""
    get_code = getattr(source.spec.loader, "get_code", None)
    try:
        return get_code is not None and get_code(source.spec.name) is not None
    except (SyntaxError, ImportError, ValueError, TypeError, EOFError):  # the tree gives a better message
        return False


def _require(source: _Source, name: str, arguments: tuple[str, ...], package: str, depth: int) -> None:
    """Follow ``name`` through the module; a name that is missing in another package than ``package`` is undecided."""
    name, _, attribute = name.partition(".")
    own = source.spec.name.partition(".")[0] == package
    definitions = [definition for known, definition in _definitions(source.tree.body) if known == name]
    if not definitions:
        if not own or any(word in source.text for word in _DYNAMIC):
            raise _UndecidedError
        if source.spec.submodule_search_locations and _ask_finders(
            f"{source.spec.name}.{name}", source.spec.submodule_search_locations
        ):
            raise MissingError("it is a module, and expected is a function")
        known = dict.fromkeys(known for known, _ in _definitions(source.tree.body))
        raise MissingError(_not_there(str(source.spec.origin), name, known))
    problem: MissingError | None = None
    for definition in definitions:
        try:
            if isinstance(definition, ast.ImportFrom):
                return _follow(source, definition, name, arguments, package, depth)
            if isinstance(definition, ast.Name) and depth and definition.id != name:
                return _require(source, definition.id, arguments, package, depth - 1)
            return _require_definition(source, name, definition, arguments, attribute)
        except MissingError as error:
            problem = error
    raise problem or _UndecidedError


def _follow(
    source: _Source, statement: ast.ImportFrom, name: str, arguments: tuple[str, ...], package: str, depth: int
) -> None:
    original = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
    if not depth or original == "*":
        raise _UndecidedError
    module = importlib.util.resolve_name("." * statement.level + (statement.module or ""), source.spec.parent or None)
    if module in sys.modules:
        return _require_loaded(sys.modules[module], original, arguments)
    try:
        further = _Source.of(module)
    except MissingError as error:
        if module.partition(".")[0] != package and "there is no package" not in str(error):
            raise _UndecidedError from error
        raise MissingError(f"{source.place(statement)}, imports it from {module!r}: {error}") from error
    return _require(further, original, arguments, package, depth - 1)


def _require_definition(
    source: _Source, name: str, definition: Definition, arguments: tuple[str, ...], attribute: str = ""
) -> None:
    if isinstance(definition, ast.Import):
        raise MissingError(f"{source.place(definition)}: it is a module, and expected is a function")
    if isinstance(definition, _LITERALS):
        raise MissingError(
            f"{source.place(definition)}: it is {ast.unparse(definition)[:60]}, and expected is a function"
        )
    if attribute or getattr(definition, "decorator_list", None):
        raise _UndecidedError
    if isinstance(definition, ast.ClassDef):
        signature = _class_signature(definition)
    elif isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        signature = _signature(definition.args)
    else:
        raise _UndecidedError
    _check_signature(name, f"{source.place(definition)}: ", signature, arguments)


def _class_signature(definition: ast.ClassDef) -> inspect.Signature:
    """The signature of a class; undecided if a base or a metaclass may define it."""
    methods = [item for item in definition.body if isinstance(item, ast.FunctionDef)]
    constructors = [method for method in methods if method.name in ("__init__", "__new__")]
    if not constructors and not definition.bases and not definition.keywords:
        return inspect.Signature()
    if len(constructors) != 1 or constructors[0].decorator_list or definition.keywords:
        raise _UndecidedError
    parameters = list(_signature(constructors[0].args).parameters.values())
    return inspect.Signature(parameters[1:] if parameters and parameters[0].kind is not _REST else parameters)


def _signature(arguments: ast.arguments) -> inspect.Signature:
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    parameters = [_parameter(arg.arg, _POSITIONAL, number >= required) for number, arg in enumerate(plain)]
    if arguments.vararg:
        parameters.append(_parameter(arguments.vararg.arg, _REST, False))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parameters += [_parameter(arg.arg, _KEYWORD, default is not None) for arg, default in named]
    if arguments.kwarg:
        parameters.append(_parameter(arguments.kwarg.arg, _NAMED_REST, False))
    return inspect.Signature(parameters)


def _parameter(name: str, kind: Any, optional: bool) -> inspect.Parameter:
    return inspect.Parameter(name, kind, default=None if optional else inspect.Parameter.empty)


def _check_signature(name: str, where: str, signature: inspect.Signature, arguments: tuple[str, ...]) -> None:
    try:
        signature.bind(*arguments)
    except TypeError as error:
        bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
        taken = f"{name.rpartition('.')[2]}{inspect.Signature(bare)}"
        raise MissingError(f"{where}{taken} is called with ({', '.join(arguments)})") from error


def _not_there(place: str, name: str, known: Any) -> str:
    return f"{place} holds no {name!r}{did_you_mean(name, known)}"


def _definitions(body: Iterable[ast.AST]) -> Iterator[tuple[str, Definition]]:
    """Names that the statements of a module bind, with their definitions; those of branches too."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name, statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name.partition(".")[0], statement) for alias in statement.names)
        elif isinstance(statement, ast.Assign):
            yield from (pair for target in statement.targets for pair in _assigned(target, statement.value))
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield from _assigned(statement.target, statement.value)
        else:
            for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from _definitions(getattr(statement, inner, []))


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, Definition]]:
    """``a = x`` defines a as x; the values of ``a, b = x`` are undecided."""
    if isinstance(target, ast.Name):
        yield target.id, value
    else:
        yield from ((node.id, ast.Yield()) for node in ast.walk(target) if isinstance(node, ast.Name))
