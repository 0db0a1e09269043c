# SPDX-License-Identifier: Apache-2.0
"""A Spark cluster with two executors gives the rows that DuckDB gives, for all views of a dataset.

It runs on request only: it takes minutes, and pyspark is 450 MB and needs pandas before 3 and a JDK (apt
install openjdk-17-jre-headless).

    python3 -m venv ~/spark && ~/spark/bin/pip install -e '.[fleet]' 'pandas<3' pyspark pytest pytest-timeout
    ~/spark/bin/python -m pytest -p no:cacheprovider tests/fleet/spark_cluster.py

PERF_OFFCPU_SPARK=spark:local[2] chooses another master. PERF_OFFCPU_DATASET=DIR and PERF_OFFCPU_SERVICE=NAME
choose another dataset, and a service in it, for the test of the heaviest stacks of a service."""

import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.dataset import BEGIN, HOUR, DatasetBuilder

from perf_offcpu.fleet import document
from perf_offcpu.fleet.causes import causes_of
from perf_offcpu.fleet.diff.compare import compare
from perf_offcpu.fleet.diff.outliers import outliers_of
from perf_offcpu.fleet.engine import Engine, connect
from perf_offcpu.fleet.queries import Selected, profile_of_selected, select
from perf_offcpu.fleet.report import head_of, stacks_of, tables_of
from perf_offcpu.fleet.selection import Selection, baseline
from perf_offcpu.fleet.tables import open_tables

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]
CLASSES = ("lock", "disk", "runqueue", "sleep", None)
STACKS = [[], ["main", "read", "io_schedule_[k]"], ["main", "lock"], ["main", "öß", "futex_wait_[k]"]]
OBJECTS = (None, "/var/log/x", "a*b", "10.0.0.7:53", "[x]", "x\\y'z", 'say "hi"')


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.sql.shuffle.partitions=2 pyspark-shell"
    spark = connect(os.environ.get("PERF_OFFCPU_SPARK", "spark:local-cluster[2,1,1500]"))
    yield connect(), spark
    spark.backend.disconnect()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 hosts, three hours, 3000 waits; half of the web hosts change their version."""
    chance, builder = random.Random(4), DatasetBuilder()
    for number in range(12):
        name, service = f"host{number}", "db" if number % 4 == 0 else "web"
        for half in range(6):
            begin = BEGIN + half * HOUR // 2
            version = "2" if number % 2 and half > 2 else "1"
            labels = {"service": service, **({"version": version} if service == "web" else {})}
            builder.host(name, labels, begin_ns=begin, end_ns=begin + HOUR // 2)
    for _ in range(3000):
        number = chance.randrange(12)
        builder.wait(
            f"host{number}", chance.randrange(1 << 50), chance.choice(STACKS),
            time_ns=BEGIN + chance.randrange(3 * HOUR),
            runq_ns=chance.choice((None, chance.randrange(1 << 30))),
            comm=chance.choice(("nginx", "worker", "öß")), object=chance.choice(OBJECTS),
            state=chance.choice(("S", "D", None)),
            event=chance.choice(("offcpu-time", "offcpu-time", "cpu-clock")), count=chance.randrange(1, 5),
            idle=chance.random() < 0.3, flags=chance.choice((1, 1, 1 | 4, 1 | 32)),
            **{"class": chance.choice(CLASSES)},
        )  # fmt: skip
    row = {"begin_ns": BEGIN, "end_ns": BEGIN + HOUR, "host_id": "id-host1"}
    builder.rows["losses"] += [row | {"cause": "rings were full", "count": 7, "is_loss": True}] * 2
    gap = {"host_id": "id-host1", "cause": "budget", "begin_ns": BEGIN - 10**9, "end_ns": BEGIN + 10**9}
    builder.rows["gaps"] += [gap, gap | {"host_id": "id-host2", "cause": "stopped"}]
    return builder.write(tmp_path_factory.mktemp("dataset"))


SELECTIONS = {
    "everything": Selection(),
    "a service": Selection(labels={"service": ("web",)}),
    "a label that changed": Selection(labels={"version": ("2",)}),
    "a time": Selection(since_ns=BEGIN + HOUR // 3, until_ns=BEGIN + 2 * HOUR + 5),
    "an event": Selection(events=("cpu-clock",)),
    "classes": Selection(classes=("lock", "disk"), comms=("öß", "nginx")),
    "objects": Selection(objects=("a*b", "[x]", "\\y'", '"hi"', "10.?.0")),
    "idle threads": Selection(idle="only"),
    "nothing": Selection(comms=("none",)),
}


def rows_of(view: Callable[[Selected], Any], selected: Selected) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return view(selected)


def report(*keys: str) -> Callable[[Selected], Any]:
    return lambda found: document.report(head_of(found), *tables_of(found, keys, 20), causes_of(found))


def stacks(found: Selected) -> Any:
    return document.stacks(head_of(found), stacks_of(found, 10))


def flame(found: Selected) -> Any:
    profile = profile_of_selected(found)
    samples = profile.samples
    comms = [profile.strings[row] for row in samples.comm.tolist()]
    return sorted(zip(comms, samples.period.tolist(), samples.flags.tolist(), strict=True))


@pytest.mark.parametrize("name", SELECTIONS)
def test_reports_and_stacks(name: str, engines: tuple[Engine, Engine], dataset: Path) -> None:
    duckdb, spark = (select(open_tables(str(dataset), one), SELECTIONS[name]) for one in engines)
    for view in (report(), stacks):
        expected = rows_of(view, duckdb)
        assert rows_of(view, spark) == expected
        assert name == "nothing" or expected.get("rows") or expected["tables"][0]["rows"]


@pytest.mark.parametrize(
    "keys", ["host,class", "service,class", "version,blocked", "object,comm", "pid,tid,state", "stack,waker"]
)
def test_keys(keys: str, engines: tuple[Engine, Engine], dataset: Path) -> None:
    found = [select(open_tables(str(dataset), one), Selection()) for one in engines]
    expected, other = (rows_of(report(*keys.split(",")), one) for one in found)
    assert other == expected and expected["tables"][0]["rows"]


def test_flame_graph(engines: tuple[Engine, Engine], dataset: Path) -> None:
    found = [select(open_tables(str(dataset), one), Selection()) for one in engines]
    expected, other = (rows_of(flame, one) for one in found)
    assert other == expected and expected


def test_differences(engines: tuple[Engine, Engine], dataset: Path) -> None:
    documents = []
    for engine in engines:
        tables = open_tables(str(dataset), engine)
        new = Selection(since_ns=BEGIN + HOUR, until_ns=BEGIN + 2 * HOUR)
        sides = [select(tables, one) for one in (baseline(new, "host=host1,host=host2,host=host5", 0), new)]
        heads = [head_of(one) for one in sides]
        both = document.comparison(compare(sides[0], sides[1], ["class"]), *heads)
        documents.append((both, document.outliers(outliers_of(sides[1], ["class"]), heads[1])))
    assert documents[0] == documents[1]


def test_raw_sql(engines: tuple[Engine, Engine], dataset: Path) -> None:
    from perf_offcpu.fleet.tables import ask

    query = "SELECT comm, count(*) AS n, max(hour) AS h FROM samples GROUP BY comm ORDER BY comm"
    first, second = (ask(open_tables(str(dataset), one), query) for one in engines)
    assert first == second and first["comm"] == ["nginx", "worker", "öß"]


def test_heaviest_stacks_of_a_service(engines: tuple[Engine, Engine], dataset: Path) -> None:
    place = os.environ.get("PERF_OFFCPU_DATASET", str(dataset))
    service = os.environ.get("PERF_OFFCPU_SERVICE", "web")
    documents = []
    for engine in engines:
        began = time.monotonic()
        documents.append(stacks(select(open_tables(place, engine), Selection(labels={"service": (service,)}))))
        print(f"{engine.name}: {time.monotonic() - began:.1f} s")
    assert documents[0] == documents[1] and documents[0]["rows"]
