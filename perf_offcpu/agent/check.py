# SPDX-License-Identifier: Apache-2.0
"""Check what an agent would need before it runs: `perf-offcpu agent --check`. Directories and stores are tried by an
empty file, which is removed; servers are looked up by name, and nothing is sent to them; nothing is recorded."""

import errno
import os
import socket
from collections.abc import Callable, Iterator

from perf_offcpu.agent.config import AgentConfig
from perf_offcpu.agent.endpoint import ANOTHER, leave, listen_at, read_token
from perf_offcpu.collect.doctor import Finding, State, examine
from perf_offcpu.directories import Directory
from perf_offcpu.errors import PerfOffcpuError, UsageError

AGENT = "agent"
"""Group of the findings that are about the agent, not about the machine."""


def check(load: Callable[[], AgentConfig]) -> Iterator[Finding]:
    """Yield a finding for the configuration that `load` returns, for each store, server and address in it, and for each
    part of the machine that recording needs."""
    try:
        config = load()
    except (UsageError, OSError) as problem:
        yield _finding("configuration", State.MISSING, _sentence(problem))
    else:
        yield _finding("configuration", State.WORKS, str(config))
        yield _tried("spool", lambda: _directory(config.spool, Directory.private))
        if config.dataset:
            yield _tried("dataset", lambda: _dataset(config.dataset))
        yield from _servers(config)
        if config.listen:
            yield _listening(config.listen, config.token_file)
    yield from examine()


def _finding(part: str, state: State, fact: str, advice: str = "") -> Finding:
    return Finding(AGENT, part, state, fact, advice)


def _tried(part: str, use: Callable[[], str]) -> Finding:
    """Call `use`; return the finding on `part`: WORKS with the text that it returns, or MISSING with its error."""
    try:
        return _finding(part, State.WORKS, use())
    except (PerfOffcpuError, OSError) as problem:
        return _finding(part, State.MISSING, _sentence(problem))


def _sentence(problem: Exception) -> str:
    """Format an exception; an OSError with its file, without its number."""
    if not isinstance(problem, OSError):
        return str(problem)
    return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror or str(problem)


def _directory(path: str, opened: Callable[[str], Directory]) -> str:
    """Create and remove a file in the directory `path`, which `opened` opens; return a text: its path and free space,
    or that it will be made. Raise OSError if that is impossible."""
    path = os.path.abspath(path)
    try:
        with opened(path) as directory:
            name, fd = directory.create_hidden("check")
            os.close(fd)
            directory.remove(name)
            usage = os.fstatvfs(directory.fd)
            return f"{path}, {usage.f_bavail * usage.f_frsize / 1e9:.1f} GB free"
    except FileNotFoundError:
        parent = os.path.dirname(path)
    # direct: asks, and opens nothing
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):  # direct: asks, and opens nothing
        raise PermissionError(errno.EACCES, f"not there, and cannot be made in {parent}", path)
    return f"{path}: not there, will be made"


def _dataset(url: str) -> str:
    """Write and remove a file in a dataset; return a text on it. Raise PerfOffcpuError or OSError if that fails."""
    from perf_offcpu.dataset.store import imported, local_path, open_store, put

    imported("pyarrow")
    if (path := local_path(url)) is not None:
        return _directory(path, Directory.named)
    store, name = open_store(url, make=False), f".check-{os.urandom(4).hex()}"
    put(store, name, b"")
    store.remove(name)
    return f"{store.url}: an object was written and removed"


def _servers(config: AgentConfig) -> Iterator[Finding]:
    """Look up the push servers by name; yield a finding for each."""
    from perf_offcpu.push.opening import open_targets

    try:
        opened = open_targets(config.push, config.push_header_file, config.push_ca)
    except (PerfOffcpuError, OSError) as problem:
        yield _finding("push", State.MISSING, _sentence(problem))
        return
    for target, sender in opened:
        sender.close()
        try:
            addresses = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as problem:
            yield _finding("push", State.MISSING, f"{target}: {target.host}: {problem.strerror}")
        else:
            yield _finding("push", State.WORKS, f"{target}: {addresses[0][4][0]}, nothing was sent")


def _listening(address: str, token_file: str) -> Finding:
    """Try to listen at the address of the metrics; return the finding, which says whether a token is required."""
    try:
        token = read_token(token_file)
        leave(listen_at(address))
    except UsageError as problem:
        return _finding("metrics", State.MISSING, str(problem))
    except OSError as problem:
        advice = f"an agent that runs has it, or {ANOTHER}"
        return _finding("metrics", State.LIMITED, f"{address}: {os.strerror(problem.errno or 0)}", advice)
    return _finding("metrics", State.WORKS, f"{address}{', with a token' if token else ''}")
