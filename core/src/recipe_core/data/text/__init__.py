"""Text for ``recipe prepare``: from files and dumps to documents, clean text and sentences.

``readers.py``: from files to records; read it first. ``inputs.py``: the input files; ``objects.py``: those in object
storage; ``pieces.py`` cuts them for the parts of a preparation. ``stream.py``: decompression and decoding;
``lines.py``, ``json_lines.py``: lines and JSON lines of a stream. ``columns/``: a column of Parquet and Arrow files.
``wikitext/``: from pages of MediaWiki dumps to prose. ``sentences.py``: from text to sentences. ``library.py``: the
English text in CPython's library.
"""

from __future__ import annotations

from recipe_core.data.text.inputs import find, total_bytes
from recipe_core.data.text.pieces import hashed_pieces, pieces_of, require_encoding
from recipe_core.data.text.readers import records
from recipe_core.data.text.sentences import sentences
from recipe_core.data.text_settings import Counts, Record, Source, TextInput

__all__ = [
    "Counts", "Record", "Source", "TextInput", "clean", "find", "hashed_pieces", "pieces_of", "records",
    "require_encoding", "sentences", "total_bytes",
]  # fmt: skip


def clean(record: Record) -> str | None:
    """Return the text of a document; of a wiki page its prose, or None if it has none.

    This is the expensive stage for wiki pages; it can run in another process than ``records``.
    """
    if record.title is None:
        return record.text
    from recipe_core.data.text.wikitext import prose

    return prose(record.text, record.namespaces) or None
