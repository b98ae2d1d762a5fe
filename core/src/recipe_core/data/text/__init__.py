"""Text for ``recipe prepare``: files and dumps to documents, documents to clean text and to sentences.

``readers.py``: files to records; read it first. ``inputs.py``: the files that the inputs name. ``stream.py``: unpacking
and decoding; ``lines.py``, ``json_lines.py``: lines and JSON lines of a stream. ``wikitext/``: pages of MediaWiki dumps
to prose. ``sentences.py``: text to sentences. ``library.py``: the English text that CPython carries.
"""

from __future__ import annotations

from recipe_core.data.text.inputs import find, total_bytes
from recipe_core.data.text.readers import records
from recipe_core.data.text.sentences import sentences
from recipe_core.data.text_settings import Counts, Record, Source, TextInput

__all__ = ["Counts", "Record", "Source", "TextInput", "clean", "find", "records", "sentences", "total_bytes"]


def clean(record: Record) -> str | None:
    """The text of a document, as it was read; of a wiki page its prose, or None where it has none.

    The costly stage for wiki pages; it can run in another process than ``records``.
    """
    if record.title is None:
        return record.text
    from recipe_core.data.text.wikitext import prose

    return prose(record.text, record.namespaces) or None
