# SPDX-License-Identifier: Apache-2.0
"""What fleet says of recordings in a dataset is what report says of the recordings, to the nanosecond."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builders.refused import output

from perf_offcpu.cli import main
from perf_offcpu.fleet.tables import Tables

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture(scope="module", params=["demo.data", "arm64/own.data"])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    shutil.copy(DATA / request.param, folder / "perf.data")
    assert main(["convert", "--parquet", str(folder / "waits"), "-i", str(folder / "perf.data")]) == 0
    return folder


def json_of(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    return json.loads(output(capsys, *map(str, words), "--json"))


@pytest.mark.parametrize("keys", ["class", "comm,class", "pid,tid", "syscall,state", "object"])
def test_tables(recording: Path, keys: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--sort", keys)
    expected = json_of(capsys, "report", "-i", recording / "perf.data", *words)["groups"]
    (found,) = json_of(capsys, "fleet", "report", recording / "waits", *words)["tables"]
    rows = [tuple(row["values"]) for row in expected["rows"]]
    known = sums(rows, expected["rows"], "count")
    rows = [tuple(row[key] for key in keys.split(",")) for row in found["rows"]]
    assert sums(rows, found["rows"], "waits") == known
    assert found["weight"] == sum(row["weight"] for row in expected["rows"]) > 0


def sums(values: list[tuple[str, ...]], rows: Any, count: str) -> dict[tuple[str, ...], Counter[str]]:
    """Return values → weight and waits; what is not known or does not exist has one name."""
    found: dict[tuple[str, ...], Counter[str]] = {}
    for texts, row in zip(values, rows, strict=True):
        key = tuple("" if text in ("[unknown]", "[none]", "(sum)", "?", "-") else text for text in texts)
        found.setdefault(key, Counter()).update({"weight": row["weight"], "waits": row[count]})
    return found


def test_stacks(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json_of(capsys, "report", "-i", recording / "perf.data")["stacks"]
    found = json_of(capsys, "fleet", "top", recording / "waits")

    def weights(rows: Any) -> list[tuple[int, str, list[str]]]:
        return sorted((row["weight"], row["comm"], [one["name"] for one in row["frames"]]) for row in rows)

    assert weights(found["rows"]) == weights(expected)


further = [
    pytest.param(one, marks=pytest.mark.long) for one in (("top",), ("sql", "SELECT sum(weight_ns) FROM samples"))
]


@pytest.mark.parametrize("words", [("report",), *further])
def test_a_query_during_a_compaction(
    recording: Path, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Its files are gone when it opens them."""
    dataset = tmp_path / "waits"
    shutil.copytree(recording / "waits", dataset)
    for path in list(dataset.glob("*/*/*/*.parquet")):
        shutil.copy(path, path.with_name(f"again-{path.name}"))
    before = json_of(capsys, "fleet", words[0], dataset, *words[1:])
    opened = Tables.table

    def compacted(self: Tables, name: str) -> Any:
        found = opened(self, name)
        if name == "samples" and main(["fleet", "compact", str(dataset)]) == 0:
            capsys.readouterr()
        return found

    monkeypatch.setattr(Tables, "table", compacted)
    assert json_of(capsys, "fleet", words[0], dataset, *words[1:]) == before
    assert len(list((dataset / "samples").rglob("*.parquet"))) < 3
