# SPDX-License-Identifier: Apache-2.0
"""The file whose code lacks names most, and the advice on its debug symbols."""

from __future__ import annotations

from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu import losses
from perf_offcpu.report.document import document
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import summarize
from perf_offcpu.report.terminal import render
from perf_offcpu.report.unnamed import unnamed_of

POSTGRES, LIBRARY = "/usr/lib/postgresql/bin/postgres", "/usr/lib/libx.so"
ID, OTHER = "8f" * 20, "07" * 16 + "00" * 4


def code(dso: str, address: int) -> Code:
    return Code("", dso, address)


def server(**given: object) -> ProfileBuilder:
    """Return 60 of 100 ns below two addresses of postgres, 20 below three of a library."""
    options: dict[str, object] = {"build_ids": {POSTGRES: ID, LIBRARY: OTHER}, **given}
    builder = ProfileBuilder(**options)  # type: ignore[arg-type]
    builder.sample("postgres", [code(POSTGRES, 1), code(POSTGRES, 2), code(POSTGRES, 1), kernel("read")], 50)
    builder.sample("postgres", [code(POSTGRES, 2)], 10)
    builder.sample("postgres", ["main", *(code(LIBRARY, at) for at in (1, 2, 3))], 20)
    return builder.sample("postgres", ["main"], 20)


def test_the_file_on_the_stacks_of_most_time() -> None:
    found = unnamed_of(server().build())
    assert found is not None
    assert (found.dso, found.build_id, found.addresses, found.weight) == (POSTGRES, ID, 2, 60)
    assert found.commands == [f"debuginfod-find debuginfo {ID}"]
    library = unnamed_of(server(build_ids={LIBRARY: OTHER}).build())
    assert library is not None and (library.addresses, library.weight) == (3, 20)
    assert library.build_id == "07" * 16  # records pad build-ids


def test_the_last_line_of_the_report() -> None:
    summary = summarize(server().build())
    *_, line = render(summary, Style())
    assert line == (
        f"# {POSTGRES} has 2 addresses without a name, on the stacks of 60.00% of the off-cpu time. "
        f"Its debug symbols may have them: debuginfod-find debuginfo {ID} (with DEBUGINFOD_URLS), "
        "or a package: see NAMES in perf-offcpu-report(1)"
    )
    assert document(summary)["unnamed"] == {
        "dso": POSTGRES,
        "build_id": ID,
        "addresses": 2,
        "weight": 60,
        "commands": [f"debuginfod-find debuginfo {ID}"],
    }


def test_a_file_that_is_not_here_is_fetched_too() -> None:
    for cause in (losses.FILE_MISSING, losses.OTHER_BUILD):
        found = unnamed_of(server(losses={cause.about(POSTGRES): 3}).build())
        assert found is not None
        assert found.commands == [f"debuginfod-find executable {ID}", f"debuginfod-find debuginfo {ID}"]
    other = unnamed_of(server(losses={losses.FILE_MISSING.about(LIBRARY): 3}).build())
    assert other is not None and other.has_file


def test_no_advice_without_a_build_id_or_for_little_time() -> None:
    assert unnamed_of(server(build_ids={}).build()) is None
    assert unnamed_of(server().sample("other", ["main"], 5900).build()) is not None
    assert unnamed_of(server().sample("other", ["main"], 5901).build()) is None
    named = ProfileBuilder(build_ids={POSTGRES: ID}).sample("a", [Code("main", POSTGRES, 1)], 5).build()
    assert unnamed_of(named) is None and unnamed_of(ProfileBuilder().build()) is None


def test_hostile_names_stay_on_their_line() -> None:
    hostile = "/tmp/a\n# Nothing was lost.\x1b[2J"
    builder = ProfileBuilder(build_ids={hostile: ID}).sample("a", [code(hostile, 1)], 5)
    *_, line = render(summarize(builder.build()), Style())
    assert line.startswith("# /tmp/a\\n# Nothing was lost.\\x1b[2J has 1 address without a name")
