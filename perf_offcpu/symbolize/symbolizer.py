# SPDX-License-Identifier: Apache-2.0
"""symbolize(): turn a Recording into a Profile.

    samples ──> distinct (address space, callchain) pairs ──> distinct locations ──> names ──> frames
                                                          └──> stack tree <───────────────────┘

Each step works on distinct values: a recording of a million waits has some thousand callchains and addresses."""

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged, build_stack_tree, unique_rows
from perf_offcpu.model.columns import I32, I64, Strings, distinct, unambiguous
from perf_offcpu.model.lookup import NO_MAP, find_mappings, rows_at
from perf_offcpu.model.profile import Profile, ProfileSamples, Stacks
from perf_offcpu.model.recording import Recording, SampleColumns, Samples, Spaces
from perf_offcpu.symbolize.calls import Named, name_by_calls
from perf_offcpu.symbolize.demangle import demangle
from perf_offcpu.symbolize.frames import InlinedFunctions, Locations, SymbolNames, build_frames, expand, find_locations
from perf_offcpu.symbolize.kernel.names import KernelNames
from perf_offcpu.symbolize.lines.names import LineNames
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.python import with_places
from perf_offcpu.symbolize.user import UserNames
from perf_offcpu.symbolize.wait_objects.names import with_objects

_BLOCK = 1 << 18  # rows that are looked up at once
_MOST_KEPT, _LONGEST_KEPT = 1 << 14, 2000  # names that are kept with their readable form, and characters of both
_UNCHANGED = ("evsels", "comms", "tasks", "budget", "loops", "cgroups", "meta")  # tables of a recording and its profile
COOKIE = "(cookie)"  # symbol shown for the cookie of a deferred user callchain, as perf script prints it


def symbolize(recording: Recording, options: SymbolizeOptions | None = None) -> Profile:
    """Return a Profile with one frame for each distinct named location of a recording. Its losses are the recording's
    and one cause for each reason why addresses have no name. Raises UsageError: a file of the options is unreadable."""
    options = options or SymbolizeOptions()
    strings = recording.strings.copy()
    samples, locations, rows, pair_of = locations_of(recording)
    lost = Losses()
    names, inlined = _name(recording, locations, strings, options, lost)
    has_inlined = np.bincount(inlined.location, minlength=len(locations)) > 0
    named = Named(locations, names, rows)
    locations, names, rows = name_by_calls(recording, named, has_inlined, strings, options.search(), lost)
    if options.demangle:
        kept = options.cache.in_memory("readable names", dict[str, str]) if options.cache else {}
        _demangle(names, inlined, strings, kept)
    frames, frames_of_location = build_frames(names, inlined, locations, keep_ips=options.keep_ips)
    chains = expand(rows, frames_of_location)
    if len(recording.places):
        frames, chains, pair_of = with_places(recording, frames, chains, pair_of, strings, lost)
    parent, frame, stack = build_stack_tree(chains)
    stack_of = np.append(stack, -1).astype(np.int32)[pair_of]
    waker_stack, none = stack_of[len(samples) :], np.broadcast_to(np.int32(-1), len(samples))
    shared = {name: getattr(samples, name) for name in SampleColumns.columns}
    paths = zip(recording.dsos.path.tolist(), recording.dsos.build_id.tolist(), strict=True)
    profile = Profile(
        samples=ProfileSamples(
            **shared, stack=stack_of[: len(samples)], waker_stack=waker_stack if len(waker_stack) else none, object=none
        ),
        stacks=Stacks(parent, frame),
        frames=frames,
        strings=strings,
        **{name: getattr(recording, name) for name in _UNCHANGED},
        build_ids=unambiguous((path, strings[build_id]) for path, build_id in paths if build_id),
        losses={**recording.losses, **lost},
    )
    return with_objects(profile, recording, options)


def locations_of(recording: Recording) -> tuple[Samples, Locations, Ragged, I32]:
    """Find the distinct locations and (address space, callchain) pairs of a recording. Return (samples, locations,
    rows, pair_of): the samples, each with a callchain of at least its address; their locations; the locations of each
    pair, leaf first; the pair of each sample, then, if any waker has a callchain, of each waker, -1 for none."""
    samples, callchains = _with_leaves(recording.samples, recording.callchains)
    space, callchain = samples.space, samples.callchain
    if bool((samples.waker_callchain >= 0).any()):
        space = np.concatenate([space, _waker_spaces(samples, recording.spaces)])
        callchain = np.concatenate([callchain, samples.waker_callchain])
    chains, spaces, pair_of = _pairs(space, callchain)
    return samples, *find_locations(callchains.take(chains), spaces), pair_of


def _with_leaves(samples: Samples, callchains: Ragged) -> tuple[Samples, Ragged]:
    """Return (samples, callchains) in which each sample without a callchain has one of its sampled address alone."""
    bare = np.append(callchains.lengths == 0, True)[samples.callchain]
    has_leaf = np.isin(samples.cpumode, (CpuMode.KERNEL, CpuMode.USER)) & (samples.ip != 0)
    rows = np.flatnonzero(bare & has_leaf)
    if not len(rows):
        return samples, callchains
    kernel = samples.cpumode[rows] == CpuMode.KERNEL
    marker = np.where(kernel, np.uint64(CallchainContext.KERNEL), np.uint64(CallchainContext.USER))
    words = np.stack([marker, samples.ip[rows]], axis=1).reshape(-1)
    unique, ids = unique_rows(Ragged(np.arange(0, len(words) + 1, 2), words))
    callchain = samples.callchain.copy()
    callchain[rows] = ids + len(callchains)
    return samples.with_columns(callchain=callchain), Ragged.concat([callchains, unique])


def _waker_spaces(samples: Samples, spaces: Spaces) -> I32:
    """Return int32[samples]: the space of each waker at the wake-up; -1 if unknown, or without a waker's callchain."""
    space = np.full(len(samples), -1, np.int32)
    rows = np.flatnonzero(samples.waker_callchain >= 0)
    if len(rows):
        order = np.lexsort((spaces.begin_ns, spaces.pid))
        place = rows_at(spaces.pid[order], spaces.begin_ns[order], samples.waker_pid[rows], samples.wakeup_ns[rows])
        space[rows] = np.append(order, -1)[place]
    return space


def _pairs(space: I32, callchain: I32) -> tuple[I64, I32, I32]:
    """Find the distinct (space, callchain) pairs of n rows; return (callchain of each pair, its space, int32[n]: pair
    of each row, -1 without a callchain). Works on blocks: sorting all rows at once takes several times their memory."""

    def keys(begin: int) -> I64:
        chains = callchain[begin : begin + _BLOCK].astype(np.int64)
        return np.where(chains < 0, -1, (space[begin : begin + _BLOCK].astype(np.int64) + 1) << 32 | chains)

    begins = range(0, len(callchain), _BLOCK)
    pairs = distinct(np.concatenate([np.full(1, -1), *(distinct(keys(begin)) for begin in begins)]))
    pair_of = np.empty(len(callchain), np.int32)
    for begin in begins:
        pair_of[begin : begin + _BLOCK] = np.searchsorted(pairs, keys(begin)) - 1  # the first is -1
    return pairs[1:] & 0xFFFFFFFF, ((pairs[1:] >> 32) - 1).astype(np.int32), pair_of


def _name(
    recording: Recording, locations: Locations, strings: Strings, options: SymbolizeOptions, lost: Losses
) -> tuple[SymbolNames, InlinedFunctions]:
    """Return (names of all locations, kernel and user; functions inlined there); count unnamed ones in `lost`."""
    names, inlined = SymbolNames.filled(len(locations)), [InlinedFunctions()]

    def line_names() -> LineNames | None:
        with_lines = options.inline or options.srcline
        return LineNames(strings, options.search(), lost, inline=options.inline) if with_lines else None

    def put(rows: I64, part: SymbolNames, lines: LineNames | None) -> None:
        for column in SymbolNames.columns:
            getattr(names, column)[rows] = getattr(part, column)
        if lines is not None:
            inlined.append(lines.inlined.with_columns(location=rows[lines.inlined.location].astype(np.int32)))

    kernel = np.flatnonzero(locations.cpumode == CpuMode.KERNEL)
    if len(kernel):
        of_kernel = KernelNames(recording, strings, options, lost, lines := line_names())
        put(kernel, of_kernel.name(locations.lookup[kernel]), lines)
    map_rows = find_mappings(recording.maps, recording.spaces, locations.space, locations.lookup)
    of_user = UserNames(recording, strings, options, lost, lines := line_names())
    is_method = of_user.name_methods(locations, map_rows, names)
    user = (locations.cpumode == CpuMode.USER) & ~is_method
    lost.add(losses.NOT_MAPPED, int((user & (map_rows == NO_MAP)).sum()))
    mapped = np.flatnonzero(user & (map_rows != NO_MAP))
    if len(mapped):
        put(mapped, of_user.name(locations.lookup[mapped], map_rows[mapped]), lines)
    _shift_back(names, locations)
    names.offset[is_method] = 0
    names.symbol[locations.is_cookie] = strings.intern(COOKIE)
    return names, InlinedFunctions.concat(inlined)


def _shift_back(names: SymbolNames, locations: Locations) -> None:
    """Move addresses and offsets of return addresses, looked up a byte too low, back to the recorded ones."""
    shift = locations.ip - locations.lookup
    names.address += np.where(names.address != 0, shift, np.uint64(0))
    names.offset += np.where(names.symbol != 0, shift, np.uint64(0))
    unknown = names.dso == 0
    names.address[unknown] = locations.ip[unknown]


def _demangle(names: SymbolNames, inlined: InlinedFunctions, strings: Strings, kept: dict[str, str]) -> None:
    """Demangle the symbols of both tables in place, with one call, which costs a process. `kept`: symbol → readable
    name of earlier calls; new names are added."""
    used, inverse = np.unique(np.concatenate([names.symbol, inlined.symbol]), return_inverse=True)
    symbols = [strings[row] for row in used.tolist()]
    new = [symbol for symbol in symbols if symbol not in kept]
    readable = {symbol: name for symbol, name in zip(new, demangle(new), strict=True) if name != symbol}
    shown = strings.intern_all(readable.get(symbol) or kept.get(symbol, symbol) for symbol in symbols)[inverse]
    # Names that failed stay mangled, and are tried again.
    kept |= {symbol: name for symbol, name in readable.items() if len(symbol) + len(name) <= _LONGEST_KEPT}
    if len(kept) > _MOST_KEPT:
        kept.clear()
    names.symbol, inlined.symbol = shown[: len(names.symbol)], shown[len(names.symbol) :]
