# SPDX-License-Identifier: Apache-2.0
"""Read options of the agent from the command line and from a TOML file with the same names. The command line has
priority over the file, also when the file is read again (SIGHUP)."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from perf_offcpu.agent.endpoint import is_open_to_others
from perf_offcpu.errors import UsageError
from perf_offcpu.files import read_regular
from perf_offcpu.units import parse_size, parse_time

T = TypeVar("T", int, float)
STATE: Final = "/var/lib/perf-offcpu"
PORT: Final = 9811
DAY_S: Final = 86400.0
_MAX_FILE: Final = 1 << 20
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_MAX_LABEL: Final = 1000
LABELS_VARIABLE: Final = "PERF_OFFCPU_LABELS"


@dataclass(frozen=True)
class AgentConfig:
    """Options of the agent, checked by `make_config`."""

    dataset: str = ""  # folder or URL of the dataset; "" none
    push: tuple[str, ...] = ()  # servers, `KIND=URL`
    push_header_file: tuple[str, ...] = ()  # files with headers of requests, see `push.opening.open_targets`
    push_ca: str = ""  # file with the authorities that sign the servers' certificates; "" for the system's
    period_ns: int = 100_000_000  # off-CPU time that one sample stands for, at least
    segment_s: int = 60  # length of a segment
    max_cpu: float = 0.01  # CPU time that the agent and its recorder may take, as a part of one CPU
    keep_ns: int = 0  # age at which hours of the dataset are removed; 0 never
    max_bytes: int = 1 << 30  # most bytes written and pushed in a day; 0 no limit
    spool: str = ""  # directory of recordings and messages that are not delivered yet
    spool_bytes: int = 256 << 20  # largest size of the spool
    listen: str = f"127.0.0.1:{PORT}"  # address of the metrics: ADDRESS:PORT or unix:PATH; "" none
    token_file: str = ""  # file with the token that requests for metrics must have; "" none
    containers: str = ""  # CRI socket that is asked for names of containers, unix:PATH; "" none
    labels: tuple[tuple[str, str], ...] = ()  # (name, value), of this host
    record: tuple[str, ...] = ()  # further options of `perf-offcpu record`

    def __str__(self) -> str:
        """Return the main settings in words, without the URLs of servers, which may hold credentials."""
        period = f"one sample for {self.period_ns / 1e6:g} ms of waiting (no threshold), segments of {self.segment_s} s"
        outputs = f"dataset {self.dataset or 'none'}, {len(self.push)} servers, spool {self.spool}"
        return f"{period}, --max-cpu {self.max_cpu * 100:g}, {outputs}, record {' '.join(self.record)}".rstrip()

    @property
    def recording(self) -> tuple[object, ...]:
        """Return the settings of the recorder process: if they change, it must be started again."""
        return self.period_ns, self.segment_s, self.max_cpu, self.record, self.labels


KEYS: Final = frozenset(
    "dataset keep push push-header-file push-ca off-cpu-period segment max-cpu max-bytes spool spool-size listen port "
    "token-file containers label record".split()
)
"""Keys of the configuration file: long options, and `record` for the options after `--`."""


def load_config(path: str | None, given: Mapping[str, Any]) -> AgentConfig:
    """Read the configuration file `path` (None: none) and add the values of the command line (`given`: key → value),
    which have priority; raise UsageError for invalid values."""
    values = {} if path is None else _read(path)
    try:
        return make_config({**values, **given})
    except UsageError as problem:
        raise problem if path is None else UsageError(f"{path}: {problem}") from None


def _read(path: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(read_regular(path, _MAX_FILE).decode())
        str(values)  # ValueError for a hexadecimal number that no message could show
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:  # ValueError: of TOML, UTF-8, and digits of a number
        raise UsageError(f"{path}: not a TOML file: {problem}") from None
    if unknown := sorted(values.keys() - KEYS):
        raise UsageError(f"{path}: {unknown[0]!r} is not an option: {', '.join(sorted(KEYS))}")
    return values


def make_config(values: Mapping[str, Any]) -> AgentConfig:
    """Check values (key of KEYS → value, of TOML or command line); return the options, or raise UsageError."""
    default = AgentConfig()
    period = values.get("off-cpu-period", f"{default.period_ns}ns")
    config = AgentConfig(
        dataset=_text(values, "dataset", ""),
        keep_ns=parse_time("--keep", values["keep"], "", least="1h") if "keep" in values else 0,
        push=_texts(values, "push"),
        push_header_file=_texts(values, "push-header-file"),
        push_ca=_text(values, "push-ca", ""),
        period_ns=parse_time("--off-cpu-period", period, "ms", "1us", "10000s"),
        segment_s=parse_time("--segment", values.get("segment", default.segment_s), "s", "1s", "1h") // 10**9,
        max_cpu=_number(values, "max-cpu", default.max_cpu * 100, 0.01, 100_000) / 100,
        max_bytes=parse_size("--max-bytes", values.get("max-bytes", default.max_bytes)),
        spool=_text(values, "spool", default_spool()),
        spool_bytes=parse_size("--spool-size", values.get("spool-size", default.spool_bytes), least="16M"),
        listen=_listen_address(values),
        token_file=_text(values, "token-file", ""),
        containers=_text(values, "containers", ""),
        labels=tuple(sorted({**_labels_of_environment(), **_labels(values)}.items())),
        record=_texts(values, "record"),
    )
    if isinstance(values.get("record"), str):
        raise UsageError('record is a list, with a text for each word: record = ["-G", "kubepods.slice"]')
    if not config.spool:
        raise UsageError("--spool: the name is empty")
    if config.listen and not config.token_file and is_open_to_others(config.listen):
        raise UsageError(f"--listen {config.listen}: other machines can reach it: --token-file is needed")
    if config.containers and not re.fullmatch("unix:/.+", config.containers):
        raise UsageError(f"--containers {config.containers}: give unix:PATH of a CRI socket")
    if not config.dataset and not config.push:
        raise UsageError("there is nothing to write to: give --dataset, --push, or both")
    return config


def _listen_address(values: Mapping[str, Any]) -> str:
    """Return the address of the metrics: --listen, else --port on the loopback; "" for port 0."""
    port = _number(values, "port", PORT, 0, 65535)
    address = _text(values, "listen", f"127.0.0.1:{port}" if port else "")
    if address:
        is_open_to_others(address)  # raises UsageError if it is no address
    return address


def default_spool() -> str:
    """Return the usual path of the spool: below $STATE_DIRECTORY (systemd's), else below root's or the user's own."""
    state = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if not state:
        home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        state = STATE if os.geteuid() == 0 else os.path.join(home, "perf-offcpu")
    return os.path.join(state, "spool")


def parse_label(text: str) -> tuple[str, str]:
    """Parse a label `NAME=VALUE` to (name, value); raise UsageError for anything else."""
    name, sign, value = text.partition("=")
    if not sign or not _LABEL.fullmatch(name):
        raise UsageError(f"--label {text}: not NAME=VALUE, a name of letters, digits, '_', '.', '-'")
    if len(value) > _MAX_LABEL or not value.isprintable():
        raise UsageError(f"--label {name}: the value is too long, or has characters that cannot be shown")
    return name, value


def _labels(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels under the key `label`: texts NAME=VALUE, or a table of the file."""
    texts = values.get("label", [])
    if isinstance(texts, Mapping):  # a table of the file
        texts = [f"{name}={value}" for name, value in _flat(texts)]
    return dict(map(parse_label, _texts({"label": texts}, "label")))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, value) of each label in a table; TOML makes nested tables of a name with dots."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str) or type(value) is int:
            yield prefix + name, str(value)
        else:  # 1.10 would be 1.1
            raise UsageError(f"label {prefix}{name}: {value} is not a text: put it in quotes")


def _labels_of_environment() -> dict[str, str]:
    text = os.environ.get(LABELS_VARIABLE, "")
    try:
        return dict(parse_label(word) for word in text.split(",") if word)
    except UsageError as problem:
        raise UsageError(f"{LABELS_VARIABLE} in the environment: {problem}") from None


def _text(values: Mapping[str, Any], key: str, default: str) -> str:
    value = values.get(key, default)
    if not isinstance(value, str) or "\0" in value:
        raise UsageError(f"--{key} {value}: not a text")
    return value


def _texts(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = values.get(key, ())
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"--{key} {value}: not a list of texts")
    return tuple(words)


def _number(values: Mapping[str, Any], key: str, default: T, least: float, most: float) -> T:
    value, is_whole = values.get(key, default), isinstance(default, int)
    is_number = isinstance(value, int) or (isinstance(value, float) and not is_whole)
    if isinstance(value, bool) or not is_number or not least <= value <= most:
        raise UsageError(f"--{key} {value}: not a {'whole ' * is_whole}number from {least:g} to {most:g}")
    return type(default)(value)
