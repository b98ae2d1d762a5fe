"""Remove near duplicates from the JSON lines in `raw`, by datatrove; the rest goes to `unique`."""

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

for tasks, pipeline in (
    (8, [JsonlReader("raw"), MinhashDedupSignature("work/signatures")]),
    (14, [MinhashDedupBuckets("work/signatures", "work/buckets")]),
    (1, [MinhashDedupCluster("work/buckets", "work/remove")]),
    (8, [JsonlReader("raw"), MinhashDedupFilter("work/remove"), JsonlWriter("unique")]),
):
    LocalPipelineExecutor(pipeline, tasks=tasks, workers=1).run()
