# SPDX-License-Identifier: Apache-2.0
"""What did not make it from a file into a Recording, by cause.

Every reader counts here instead of failing: one bad record must not cost the rest of the file. Causes are
short texts that a report can print as they are.
"""

from __future__ import annotations

from collections import Counter


class Losses(Counter[str]):
    """Cause → how many. Causes from a recording's own counters are added under their names."""

    def add(self, cause: str, count: int = 1) -> None:
        """Count something lost; 0 adds nothing."""
        if count:
            self[cause] += int(count)


TRUNCATED = "file cut: bytes behind the last whole record"
NO_END = "recorder was killed: data section of unknown size, read to the end of the file"
BAD_SIZE = "bytes skipped behind a record of impossible size"
BAD_RECORD = "records whose content does not fit their type"
BAD_SAMPLE = "samples whose content does not fit their event"
UNKNOWN_RECORD = "records of unknown type"
UNKNOWN_ID = "samples of unknown event id"
BAD_FEATURE = "header features that could not be read"
LOST_RECORDS = "records lost in full rings (LOST)"
LOST_SAMPLES = "samples lost in the kernel (LOST_SAMPLES)"
BAD_COMPRESSED = "compressed records that could not be decompressed"
BAD_ATTRS = "events whose attr could not be read"
BAD_IDS = "event ids that could not be read"
DUPLICATE_ID = "event ids that several events claim (the first one has their samples)"
ODD_ATTRS = "events whose attr has another size than the table of attrs says"
BAD_WRAPPER = "packed files that are damaged: read as far as they could be unpacked"
UNREADABLE = "parts of the file that could not be read (I/O error)"
MAPS_FORGOTTEN = "mappings left out because there are impossibly many"
