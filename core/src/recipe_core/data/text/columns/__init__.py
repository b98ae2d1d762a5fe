"""A column of text in Parquet and Arrow files, one document per row.

``reader.py``: from rows to records, and where a file can be cut; read it first. ``table.py``: the interface of a file,
and the wording of errors. ``parquet.py``, ``arrow.py``: the two formats. ``saved.py``: folders that ``datasets`` saved.
pyarrow decodes; it is imported when the first such file is found.
"""

from __future__ import annotations

from recipe_core.data.text.columns.reader import column_problem, column_records, group_starts
from recipe_core.data.text.columns.saved import saved_files
from recipe_core.data.text.columns.table import column_format

__all__ = ["column_format", "column_problem", "column_records", "group_starts", "saved_files"]
