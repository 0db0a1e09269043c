# SPDX-License-Identifier: Apache-2.0
"""Keeping the symbols of a recording in the user's build-id cache, as `perf record` does."""

from __future__ import annotations


def keep_symbols(path: str) -> list[str]:
    """Copy the objects in which addresses of a recording lie into the cache (perf's: ~/.debug).

    Returns:
        Lines for people: what was kept, and what could not be had.

    Raises:
        PerfOffcpuError: the recording cannot be read.
    """
    from perf_offcpu.archive.gather import SymbolSaver
    from perf_offcpu.archive.stores import DirectoryStore
    from perf_offcpu.commands.shared.whole import load_unwound
    from perf_offcpu.objects.search import Search

    search = Search.usual()
    store = DirectoryStore(search.buildid_dir)
    try:
        saved = SymbolSaver(load_unwound(path, search), store, search, debug=False).save()
    except OSError as problem:
        return [f"symbols could not be kept in {store.root}: {problem.strerror}"]
    kept = f"{saved.files} files with symbols new in {store.root} ({saved.size / 2**20:.1f} MB)"
    return [kept, *(f"not kept: {name}: {why}" for name, why in sorted(saved.missing.items()))]
