# SPDX-License-Identifier: Apache-2.0
"""inject on recordings of perf 7.2: stock perf 6.1, which opens none of them, opens the output and agrees."""

import functools
import gzip
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from builders import stock_perf
from builders.converted import inject
from builders.foreign import big_endian
from builders.stock_perf import with_names

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.profile import Profile
from perf_offcpu.report.summary import summarize
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

DATA = Path(__file__).parent.parent / "data" / "perf-7.2"
NAMES = ["direct", "atend", "hybrid", "deferred", "compressed", "pipe", "sched"]
TURNED = {"direct": [], "deferred": [], **dict.fromkeys(("atend", "hybrid", "compressed"), [pytest.mark.long])}
"""Raw data of tracepoints keeps its byte order (`builders.foreign`); a pipe becomes a file."""
BIG = [pytest.param(f"{name}-big-endian", marks=marks) for name, marks in TURNED.items()]

UNKNOWN = "[unknown]"
Totals = Counter[tuple[str, ...]]


perf = functools.partial(stock_perf.perf, quiet=True)


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory) -> SymbolizeOptions:
    """Make a directory with the symbols of that kernel and of the workload, and no others."""
    directory = tmp_path_factory.mktemp("symbols")
    (directory / "root").mkdir()
    shutil.copy(DATA / "blocker", directory / "root" / "blocker")
    (directory / "kallsyms").write_bytes(gzip.decompress((DATA / "kallsyms.gz").read_bytes()))
    return SymbolizeOptions(kallsyms=str(directory / "kallsyms"), symfs=str(directory))


@pytest.fixture(scope="module", params=[*NAMES, *BIG])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a recording, in its own byte order or the other, and inject's output."""
    directory, name = tmp_path_factory.mktemp("inject"), request.param
    source = DATA / f"{name}.data"
    if name.endswith("-big-endian"):
        source = directory / "big.data"
        source.write_bytes(big_endian(DATA / f"{name.removesuffix('-big-endian')}.data"))
    inject(source, directory / "out.data")
    return source, directory / "out.data"


@pytest.mark.parametrize("verb", ["report --header-only", "report --stdio --no-children", "script", "evlist"])
def test_perf_opens_the_output_without_a_word(pair: tuple[Path, Path], verb: str) -> None:
    assert perf(*verb.split(), "-i", pair[1])


@pytest.mark.parametrize("name", NAMES)
def test_perfs_own_inject_takes_the_output(name: str, tmp_path: Path) -> None:
    """It crashes on header features that it does not know, and writes the other byte order wrongly."""
    out, again = tmp_path / "out.data", tmp_path / "again.data"
    inject(DATA / f"{name}.data", out)
    perf("inject", "-i", out, "-o", again)
    assert perf("script", "-i", again) == perf("script", "-i", out)


def test_totals_by_thread_name(pair: tuple[Path, Path], symbols: SymbolizeOptions) -> None:
    source, injected = pair
    options = ("--stdio", "--no-children", "-g", "none", "-F", "period,comm", "-t", "|", "-w", "9,16")
    found = with_names(_report_totals(perf("report", *options, "-i", injected)), load_recording(source), 1)
    assert found == _our_totals(source, symbols, "comm")


def test_totals_by_symbol(pair: tuple[Path, Path], symbols: SymbolizeOptions) -> None:
    """A sample's symbol is that of its ip."""
    source, injected = pair
    where = ["--kallsyms", str(symbols.kallsyms), "--symfs", str(symbols.symfs)]
    text = perf("script", "-G", "-F", "comm,event,period,ip,sym", *where, "-i", injected)
    found: Totals = Counter()
    for line in text.splitlines():
        match = re.match(r"^ *(.+?) +(\d+) +(\S+): +(?:[0-9a-f]+ (\S+))?$", line)
        assert match, line
        comm, period, event, symbol = match.groups()
        found[event, comm, symbol or UNKNOWN] += int(period)
    expected = _our_totals(source, symbols, "comm", "symbol")
    assert _alike(with_names(found, load_recording(source), 1)) == _alike(expected)
    assert any(symbol != UNKNOWN for *_, symbol in expected) or source.stem in ("atend", "big")


def _alike(totals: Totals) -> Totals:
    """Leave out names that perf 6.1 does not know: stubs of a PLT and, in the other byte order, BPF programs. It has no
    names for .plt.got, and does not turn the addresses of KSYMBOL records."""
    alike: Totals = Counter()
    for (event, comm, symbol), period in totals.items():
        nameless = symbol.endswith("@plt") or symbol.startswith("bpf_prog_")
        alike[event, comm, UNKNOWN if nameless else symbol] += period
    return alike


def _report_totals(text: str) -> Totals:
    totals: Totals = Counter()
    event = ""
    for line in text.splitlines():
        if match := re.search(r"of event '(.+)'$", line):
            event = match[1]
        elif line and not line.startswith("#"):
            period, comm = line.split("|")
            totals[event, comm.strip()] += int(period)
    return totals


def _our_totals(path: Path, options: SymbolizeOptions, *by: str) -> Totals:
    """Return our totals without waits that only our decoder derives (from context switches)."""
    profile = symbolize(load_recording(path, switches=False), options)
    samples, strings = profile.samples, profile.strings
    events = [profile.evsels[row].name for row in samples.evsel.tolist()]
    columns = {"comm": [strings[row] for row in samples.comm.tolist()], "symbol": _leaf_symbols(profile)}
    totals: Totals = Counter()
    for *key, period in zip(events, *(columns[name] for name in by), samples.period.tolist(), strict=True):
        totals[tuple(key)] += period
    return totals


def _leaf_symbols(profile: Profile) -> list[str]:
    stacks = profile.samples.stack
    symbols = profile.frames.symbol[profile.stacks.frame[stacks]]
    return [profile.strings[row] or UNKNOWN for row in np.where(stacks >= 0, symbols, 0).tolist()]


@pytest.mark.parametrize("name", ["direct", "deferred", "compressed"])
def test_functions_with_all_that_they_call(name: str, tmp_path: Path, symbols: SymbolizeOptions) -> None:
    """`report --children` has perf's figures. perf 6.1 shows ".", or nothing, for what it cannot name."""
    source, injected = DATA / f"{name}.data", tmp_path / "out.data"
    inject(source, injected)
    where = ["--kallsyms", str(symbols.kallsyms), "--symfs", str(symbols.symfs)]
    options = ("--stdio", "--children", "-g", "none", "-s", "sym", "-F", "overhead_children,overhead,sym")
    theirs = _children(perf("report", *options, "-t", "|", *where, "-i", injected))
    profile = symbolize(load_recording(source, switches=False), symbols)
    compared = 0
    for event, expected in theirs.items():
        table = summarize(profile, [event], children=True)
        ours = {row.name.label: row for row in table.functions.rows} if table.functions else {}
        for symbol, (inclusive, own) in expected.items():
            if symbol in ours and expected_once(profile, symbol):
                row = ours[symbol]
                share = [f"{100 * part / table.total.weight:.2f}" for part in (row.inclusive, row.own)]
                assert share == [inclusive, own], (event, symbol)
                compared += 1
    assert compared > 10


def expected_once(profile: Profile, symbol: str) -> bool:
    """Return True if only one object has a function of this name: perf sums over objects."""
    return len(np.unique(profile.frames.dso[profile.frames.symbol == profile.strings.find(symbol)])) == 1


def _children(text: str) -> dict[str, dict[str, tuple[str, str]]]:
    events: dict[str, dict[str, tuple[str, str]]] = {}
    for line in text.splitlines():
        if match := re.search(r"of event '(.+)'$", line):
            table = events.setdefault(match[1], {})
        elif match := re.match(r"^ *([\d.]+)% *\| *([\d.]+)% *\|\[.\] (.+?) *$", line):
            table[match[3]] = (match[1], match[2])
    return events
