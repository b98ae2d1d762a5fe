"""The peers of prepare_part.py, each as a command in its own environment; it imports only what that side needs.

    PYTHON benchmarks/data/part_peers.py datatrove|curator INPUT.jsonl FOLDER_OF_THE_TOKENIZER OUTPUT

``datatrove``: its JsonlReader and MegatronDocumentTokenizer in a LocalPipelineExecutor of one task, as its examples
have it. ``curator``: NeMo Curator's JsonlReaderStage and MegatronTokenizerWriter, called in turn in this process, so
that no Ray has to start, which would only add to its time. Megatron-LM's tools/preprocess_data.py is a command by
itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

END = "<|endoftext|>"


def datatrove(source: Path, tokenizer: Path, out: Path) -> None:
    """Tokenize with datatrove, in its batches."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer

    reader = JsonlReader(str(source.parent), glob_pattern=source.name)
    writer = MegatronDocumentTokenizer(
        str(out), tokenizer_name_or_path=str(tokenizer / "tokenizer.json"), eos_token=END
    )
    LocalPipelineExecutor(pipeline=[reader, writer], logging_dir=str(out / "logs")).run()


def curator(source: Path, tokenizer: Path, out: Path) -> None:
    """Tokenize with NeMo Curator, in its batches."""
    from nemo_curator.stages.text.io.reader.jsonl import JsonlReaderStage
    from nemo_curator.stages.text.io.writer.megatron_tokenizer import MegatronTokenizerWriter
    from nemo_curator.tasks import FileGroupTask

    reader = JsonlReaderStage(fields=["text"])
    writer = MegatronTokenizerWriter(path=str(out), model_identifier=str(tokenizer), append_eod=True)
    writer.setup()
    writer.process(reader.process(FileGroupTask(dataset_name="text", data=[str(source)])))


if __name__ == "__main__":
    {"datatrove": datatrove, "curator": curator}[sys.argv[1]](*map(Path, sys.argv[2:]))
