# SPDX-License-Identifier: Apache-2.0
"""symbolize(): a Recording becomes a Profile.

    samples ──> different (address space, callchain) pairs ──> different places ──> names ──> frames
                                                          └──> stack tree <───────────────────┘

Every step works on what is different, once: a recording of a million waits has some thousand callchains
and some thousand addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.cache import DiskCache
from perf_offcpu.decode.tasks.lookup import rows_at
from perf_offcpu.model.callchains import Ragged, unique_rows
from perf_offcpu.model.columns import I32, I64
from perf_offcpu.model.mappings import NO_MAP, find_mappings
from perf_offcpu.model.profile import Profile, ProfileSamples, Stacks
from perf_offcpu.model.recording import Recording, SampleColumns, Samples, Spaces
from perf_offcpu.model.stacks import build_stack_tree
from perf_offcpu.model.strings import Strings
from perf_offcpu.objects.files import Cause
from perf_offcpu.objects.search import Search
from perf_offcpu.symbolize.demangle import demangle
from perf_offcpu.symbolize.frames import build_frames, expand
from perf_offcpu.symbolize.kernel.files import KernelSources
from perf_offcpu.symbolize.kernel.names import KernelNames
from perf_offcpu.symbolize.lines.names import LineNames
from perf_offcpu.symbolize.places import Places, find_places
from perf_offcpu.symbolize.symbol_names import Inlined, Named, Unresolved
from perf_offcpu.symbolize.user import UserNames

NOT_MAPPED = "user addresses outside every mapping"
NO_NAME = "no name: "
"""Begins the causes of `Profile.losses` that are addresses without a name."""
NO_LINES = "no source lines: "
"""Begins the causes of `Profile.losses` that are addresses whose source lines could not be read."""
COOKIE = "(cookie)"
"""What stands for a user callchain that comes in a record of its own, as perf script prints it."""


@dataclass(frozen=True, slots=True)
class SymbolizeOptions:
    """Choices of symbolization.

    Args:
        demangle: show C++ and Rust names as written. Default: True.
        kallsyms: a kallsyms file of the recorded kernel. Default: None, the running kernel's if they are one.
        vmlinux: an ELF file of the recorded kernel. Default: None, look for one where there are no kallsyms.
        symfs: look for files below this directory. Default: None, the recorded paths.
        buildid_dir: a cache of files by build-id, as perf's. Default: None, PERF_BUILDID_DIR or ~/.debug.
        keep_ips: frames keep the addresses of their processes (`Frames.ip`). The same code of two processes
            is then two frames. Default: False, one frame.
        inline: inlined functions are frames of their own, and frames have source lines. Default: no.
        srcline: frames have source lines, even without `inline`: then the innermost. Default: no.
        force: believe maps of code that programs made (/tmp/perf-PID.map) whoever wrote them. Default: no.
        cache: where symbol tables and source lines are kept from one run to the next. Default: None, nowhere.
    """

    demangle: bool = True
    kallsyms: str | None = None
    vmlinux: str | None = None
    symfs: str | None = None
    buildid_dir: str | None = None
    keep_ips: bool = False
    inline: bool = False
    srcline: bool = False
    force: bool = False
    cache: DiskCache | None = None


def is_mismatch(cause: str) -> bool:
    """Whether a cause in `Profile.losses` is that a file here is not the recorded one."""
    return cause.startswith(NO_NAME) and cause.endswith((Cause.OTHER_BUILD.value, Cause.CHANGED.value))


def symbolize(recording: Recording, options: SymbolizeOptions | None = None) -> Profile:
    """Name every address of a recording.

    Args:
        recording: left unchanged.
        options: see SymbolizeOptions.

    Returns:
        A Profile with one frame for each different place, and the recording's losses plus one cause for
        each reason why addresses have no name.

    Raises:
        UsageError: a file that the options name cannot be read.
    """
    options = options or SymbolizeOptions()
    strings = recording.strings.copy()
    samples, places, rows, pair_of = places_of(recording)
    unresolved = Unresolved()
    named, inlined = _name(recording, places, strings, options, unresolved)
    if options.demangle:
        _demangle(named, inlined, strings)
    frames, frames_of_place = build_frames(named, inlined, places, keep_ips=options.keep_ips)
    parent, frame, stack = build_stack_tree(expand(rows, frames_of_place))
    stack_of = (np.where(pair_of >= 0, stack[pair_of], -1) if len(stack) else pair_of).astype(np.int32)
    nameless = {
        cause if cause.startswith(NO_LINES) else f"{NO_NAME}{cause}": count
        for cause, count in sorted(unresolved.items())
    }
    return Profile(
        samples=_profile_samples(samples, stack_of[: len(samples)], stack_of[len(samples) :]),
        stacks=Stacks(parent, frame),
        frames=frames,
        strings=strings,
        evsels=recording.evsels,
        comms=recording.comms,
        tasks=recording.tasks,
        budget=recording.budget,
        cgroups=recording.cgroups,
        build_ids=_build_ids(recording),
        fields=recording.fields,
        tracing=recording.tracing,
        losses=recording.losses | nameless,
        meta=recording.meta,
    )


def places_of(recording: Recording) -> tuple[Samples, Places, Ragged, I32]:
    """What is different in a recording's callchains, once.

    Returns:
        (samples, places, rows, pair_of): the samples, each with a callchain of at least its address; their
        places; row i of `rows` holds the places of the i-th different (address space, callchain), leaf first;
        that pair of each sample, and then of each sample's waker, -1 for none.
    """
    samples, callchains = _with_leaves(recording.samples, recording.callchains)
    wakers = _waker_spaces(samples, recording.spaces)
    chains, spaces, pair_of = _pairs(
        np.concatenate([samples.space, wakers]),
        np.concatenate([samples.callchain, samples.waker_callchain]),
        callchains,
    )
    return samples, *find_places(chains, spaces), pair_of


def _with_leaves(samples: Samples, callchains: Ragged) -> tuple[Samples, Ragged]:
    """Of a sample without callchain at least the sampled address is known: a callchain of that alone."""
    bare = np.append(callchains.lengths == 0, True)[samples.callchain]
    known = np.isin(samples.cpumode, (CpuMode.KERNEL, CpuMode.USER)) & (samples.ip != 0)
    rows = np.flatnonzero(bare & known)
    if not len(rows):
        return samples, callchains
    kernel = samples.cpumode[rows] == CpuMode.KERNEL
    marker = np.where(kernel, np.uint64(CallchainContext.KERNEL), np.uint64(CallchainContext.USER))
    words = np.stack([marker, samples.ip[rows]], axis=1).reshape(-1)
    unique, ids = unique_rows(Ragged(np.arange(0, len(words) + 1, 2), words))
    callchain = samples.callchain.copy()
    callchain[rows] = ids + len(callchains)
    return samples.with_columns(callchain=callchain), Ragged.concat([callchains, unique])


def _build_ids(recording: Recording) -> dict[int, str]:
    """The build-id of each path; a path under which there were several files has none."""
    found: dict[int, set[str]] = {}
    for path, build_id in zip(recording.dsos.path.tolist(), recording.dsos.build_id.tolist(), strict=True):
        if build_id:
            found.setdefault(path, set()).add(recording.strings[build_id])
    return {path: ids.pop() for path, ids in found.items() if len(ids) == 1}


def _waker_spaces(samples: Samples, spaces: Spaces) -> I32:
    """The address space of each sample's waker when it woke; -1 if that is not known, or there is none."""
    space = np.full(len(samples), -1, np.int32)
    rows = np.flatnonzero(samples.waker_callchain >= 0)
    if len(rows):
        order = np.lexsort((spaces.begin_ns, spaces.pid))
        found = rows_at(
            spaces.pid[order], spaces.begin_ns[order], samples.waker_pid[rows], samples.wakeup_ns[rows]
        )
        space[rows] = np.append(order, -1)[found]
    return space


def _pairs(space: I32, callchain: I32, callchains: Ragged) -> tuple[Ragged, I32, I32]:
    """The different (space, callchain) pairs in use: (chains, spaces, pair of each row or -1)."""
    has_chain = callchain >= 0
    key = (space.astype(np.int64) + 1) << 32 | callchain.astype(np.int64)
    pairs, inverse = np.unique(key[has_chain], return_inverse=True)
    pair_of = np.full(len(callchain), -1, np.int32)
    pair_of[has_chain] = inverse
    chains: I64 = pairs & 0xFFFFFFFF
    return callchains.take(chains), ((pairs >> 32) - 1).astype(np.int32), pair_of


def _name(
    recording: Recording, places: Places, strings: Strings, options: SymbolizeOptions, unresolved: Unresolved
) -> tuple[Named, Inlined]:
    """The names of all places, by whose code they are, and what is inlined there."""
    namer = _Namer(recording, strings, options, unresolved, len(places))
    kernel = np.flatnonzero(places.cpumode == CpuMode.KERNEL)
    if len(kernel):
        sources = KernelSources(options.kallsyms, options.vmlinux, namer.search, options.cache)
        names = KernelNames(recording, strings, sources, unresolved, lines := namer.lines())
        namer.put(kernel, names.name(places.lookup[kernel]), lines)
    map_rows = find_mappings(recording.maps, recording.spaces, places.space, places.lookup)
    user = places.cpumode == CpuMode.USER
    unmapped = int((user & (map_rows == NO_MAP)).sum())
    if unmapped:
        unresolved[NOT_MAPPED] += unmapped
    mapped = np.flatnonzero(user & (map_rows != NO_MAP))
    if len(mapped):
        users = UserNames(
            *(recording, strings, namer.search, options.cache, unresolved, lines := namer.lines()),
            force=options.force,
        )
        namer.put(mapped, users.name(places.lookup[mapped], map_rows[mapped]), lines)
    named, inlined = namer.named, namer.inlined
    _shift_back(named, places)
    named.symbol[places.is_cookie] = strings.intern(COOKIE)
    return named, inlined


class _Namer:
    """Puts the names of kernel and user addresses together."""

    def __init__(
        self,
        recording: Recording,
        strings: Strings,
        options: SymbolizeOptions,
        unresolved: Unresolved,
        places: int,
    ) -> None:
        self.recording, self.strings, self.options, self.unresolved = recording, strings, options, unresolved
        self.search = Search.usual(options.symfs, options.buildid_dir)
        self.named, self.inlined = Named.filled(places), Inlined()

    def lines(self) -> LineNames | None:
        """What looks source lines up, if they are wanted."""
        if not (self.options.inline or self.options.srcline):
            return None
        return LineNames(self.strings, self.search, self.options.cache, inline=self.options.inline)

    def put(self, rows: I64, part: Named, lines: LineNames | None) -> None:
        """Take over the names of some places, and what is inlined there."""
        for column in Named.names():
            getattr(self.named, column)[rows] = getattr(part, column)
        if lines is not None:
            found = lines.inlined.with_columns(place=rows[lines.inlined.place].astype(np.int32))
            self.inlined = Inlined.concat([self.inlined, found])
            for cause, count in lines.hindered.items():
                self.unresolved[f"{NO_LINES}{cause}"] += count


def _shift_back(named: Named, places: Places) -> None:
    """Addresses and offsets are shown as recorded, although the byte before was looked up."""
    shift = places.ip - places.lookup
    named.address += np.where(named.address != 0, shift, np.uint64(0))
    named.offset += np.where(named.symbol != 0, shift, np.uint64(0))
    unknown = named.dso == 0
    named.address[unknown] = places.ip[unknown]


def _demangle(named: Named, inlined: Inlined, strings: Strings) -> None:
    """Exchange the symbols of both for readable ones, in one call, which costs a process."""
    used, inverse = np.unique(np.concatenate([named.symbol, inlined.symbol]), return_inverse=True)
    shown = strings.intern_all(demangle([strings[row] for row in used.tolist()]))[inverse]
    named.symbol, inlined.symbol = shown[: len(named.symbol)], shown[len(named.symbol) :]


def _profile_samples(samples: Samples, stack: I32, waker_stack: I32) -> ProfileSamples:
    shared = {name: getattr(samples, name) for name in SampleColumns.names()}
    return ProfileSamples(**shared, stack=stack, waker_stack=waker_stack)
