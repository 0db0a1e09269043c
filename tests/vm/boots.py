# SPDX-License-Identifier: Apache-2.0
"""Two boots of one kernel: the second records with what the first has compiled, without a compiler. The kernel is at
another address in each (KASLR). In the second, bcc is removed, and a container (another pid namespace) records, too."""

import re
from pathlib import Path

from vm.boot import Outcome, run_inside
from vm.host import say
from vm.kernels import Kernel

CACHE = "/root/.cache/perf-offcpu"
_COMMANDS = f"""
set -e
grep -m1 ' _text$' /proc/kallsyms >/results/text
{{before}}
perf-offcpu record -q -o /tmp/host.data -- sleep 0.1
unshare --pid --fork --mount-proc perf-offcpu record -q -o /tmp/container.data -- sleep 0.1
for name in host container; do perf-offcpu report -i /tmp/$name.data >/results/$name; done
echo $(ls {CACHE}/programs) >/results/programs
cp -r {CACHE} /results/cache
"""
SECOND = _COMMANDS.format(
    before="""
rm -r /usr/lib/python3/dist-packages/bcc /usr/lib/*/libbcc.so*
if python -c 'import bcc'; then exit 9; fi"""
)
IN_CONTAINER = re.compile(r" (\d) +\1 +sleep$", re.MULTILINE)  # A row of a report: PID, TID, command


def survive(kernel: Kernel, image: Path, results: Path, timeout_s: float) -> bool:
    """Boot twice; say what is wrong, and return whether nothing is.

    Args:
        results: beginning of the names of two directories.
    """
    boots: list[Outcome] = []
    for name, command in (("first", _COMMANDS.format(before="")), ("second", SECOND)):
        carried = {CACHE[1:]: boots[0].directory / "cache"} if boots else {}
        place = results.with_name(f"{results.name}.{name}")
        boots.append(run_inside(kernel, image, command, place, timeout_s, carried))
        say(f"  {name} boot: {boots[-1].seconds:.0f} s, status {boots[-1].status}; see {place}")
        if boots[-1].status != 0:
            return False
    files = ("text", "programs", "container")
    places, programs, containers = ([(boot.directory / name).read_text() for boot in boots] for name in files)
    say(f"  _text at {places[0].split()[0]} and {places[1].split()[0]}; {programs[1].strip()}")
    wrong = {
        "the kernel has one address in both boots (chance, or no KASLR)": places[0] == places[1],
        "there is not one program for all four recordings": programs[0] != programs[1] or " " in programs[0],
        "the sleep in the container has another id than there": not all(map(IN_CONTAINER.search, containers)),
    }
    for problem in (problem for problem, is_so in wrong.items() if is_so):
        say(f"  FAILED: {problem}")
    return not any(wrong.values())
