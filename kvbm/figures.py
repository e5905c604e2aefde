"""What figures of `kvbm stat` mean that are no metrics, for the generated page. Data only.

Invariant: with `metrics.EVERY` these are all that a daemon tells; a test asks one.
"""

from __future__ import annotations

ONLY_SHOWN = {
    "boot": "number of this run, drawn at the start",
    "lookup_keys": "blocks in lookups that asked the daemon",
    "hits": "of these, those found",
    "table_blocks": "blocks in the shared table",
    "host_filled": "blocks brought into the arena from below",
    "host_full": "blocks that found no room in the arena",
    "disk_reinserted": "blocks carried over because their segment was emptied",
    "disk_segments_freed": "segments emptied",
    "disk_synced": "flushes to the device",
    "disk_checkpoints": "snapshots of the index",
    "disk_refused_absent": "blocks not taken in because there is no disk",
    "disk_direct": "1: the page cache is passed by (O_DIRECT)",
    "disk_io": "how it is read and written: io_uring or threads",
    "disk_trouble": "why it takes no stores",
    "remote_refused": "fetches not begun: too many waited",
    "remote_left_out": "blocks of the store beyond `known_blocks`",
    "remote_under_way": "fetches under way",
    "remote_waiting_bytes": "bytes of fetches that wait or are under way",
    "remote_queued_fetches": "fetches that wait",
    "remote_us_per_mib": "microseconds for a MiB, as the last fetches went; 10000 until then",
    "remote_deleted": "objects deleted",
    "remote_listed": "blocks of the store that listing it told of",
    "remote_trouble": "why the store is left alone",
    "event_restarts": "times the numbers of event batches began anew",
}
