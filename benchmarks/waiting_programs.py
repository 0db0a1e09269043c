# SPDX-License-Identifier: Apache-2.0
"""Commands of programs that wait, for benchmarks/sampling.py.

messaging   `perf bench sched messaging`: 200 threads that wait briefly
waiter      tests/workload/waiter.c: one thread for each kind of wait
postgres    a server, and pgbench with 8 clients that change rows and think for 3 ms
redis       a server, redis-benchmark with 20 clients, and 8 clients that think for 2 ms on average
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SECONDS = 3

_AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

_TRANSACTION = """\
\\set account random(1, 100000)
begin;
update pgbench_accounts set abalance = abalance + 1 where aid = :account;
\\sleep 3 ms
update pgbench_branches set bbalance = bbalance + 1 where bid = 1;
end;
"""

_POSTGRES = """
for bin in /usr/lib/postgresql/*/bin; do :; done
cd "$1"
case $2 in
init) "$bin/initdb" -D data -A trust ;;
esac
"$bin/pg_ctl" -D data -o "-k $1 -c listen_addresses=''" -l log -w start
case $2 in
init) "$bin/createdb" -h "$1" bench && "$bin/pgbench" -h "$1" -q -i bench ;;
*) "$bin/pgbench" -n -h "$1" -c 8 -j 2 -T "$2" -f transaction bench ;;
esac
"$bin/pg_ctl" -D data -m fast -w stop
"""

_REDIS = """
import random, socket, subprocess, sys, threading, time
path, seconds = sys.argv[1] + "/socket", float(sys.argv[2])
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", ""], **quiet)
def connected():
    while True:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(path)
            return client
        except OSError:
            time.sleep(0.01)
def think(seed):
    client, draw = connected(), random.Random(seed)
    while time.monotonic() < end:
        client.sendall(b"INCR key%d\\r\\n" % draw.randrange(1000))
        client.recv(100)
        time.sleep(draw.expovariate(500))
connected()
end = time.monotonic() + seconds
threads = [threading.Thread(target=think, args=(seed,)) for seed in range(8)]
for thread in threads: thread.start()
while time.monotonic() < end:
    subprocess.run(["redis-benchmark", "-s", path, "-c", "20", "-n", "20000", "-t", "get,set", "-q"], **quiet)
for thread in threads: thread.join()
connected().sendall(b"SHUTDOWN NOSAVE\\r\\n")
server.wait()
"""


def messaging(directory: Path) -> list[str]:
    """Return the command; nothing is prepared."""
    return ["perf", "bench", "sched", "messaging", "-t", "-g", "5", "-l", "2000"]


def waiter(directory: Path) -> list[str]:
    """Compile the program."""
    program = directory / "waiter"
    subprocess.run([ROOT / "tests/workload/build.sh", program], check=True)
    return [str(program)]


def postgres(directory: Path) -> list[str]:
    """Make a database that belongs to postgres."""
    home = directory / "postgres"
    home.mkdir()
    os.chmod(directory, 0o755)
    (home / "transaction").write_text(_TRANSACTION)
    shutil.chown(home, "postgres", "postgres")
    command = [*_AS_POSTGRES, "sh", "-ec", _POSTGRES, "postgres", str(home)]
    subprocess.run([*command, "init"], check=True, capture_output=True)
    return [*command, str(SECONDS)]


def redis(directory: Path) -> list[str]:
    """Return the command; nothing is prepared."""
    return [sys.executable, "-c", _REDIS, str(directory), str(SECONDS)]


PROGRAMS: Mapping[str, Callable[[Path], list[str]]] = {
    "messaging": messaging,
    "waiter": waiter,
    "postgres": postgres,
    "redis": redis,
}
"""Name → function that prepares a directory and returns the command."""
