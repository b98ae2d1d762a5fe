"""Paths on the command line."""

from __future__ import annotations

import os
from typing import Any

import click

from recipe_core.files import require_local


class LocalPath(click.Path):
    """A path on this machine, as a ``pathlib.Path``; remote addresses are refused."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse remote addresses before ``pathlib`` turns ``s3://bucket`` into ``s3:/bucket``."""
        require_local(os.fspath(value), self._name(param))
        return super().convert(value, param, ctx)

    def _name(self, param: click.Parameter | None) -> str:
        if param is None:
            return self.name
        return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
