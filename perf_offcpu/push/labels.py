# SPDX-License-Identifier: Apache-2.0
"""Check the labels of profiles and spell them for each kind of server. Labels have OpenTelemetry's names, with dots.
Pyroscope and Parca replace dots in OTLP by underscores. For their own protocols this module does it, so that a label
has the same name in a server, whatever the protocol."""

import re
from collections.abc import Iterable, Mapping

from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import printable

SERVICE = "service.name"
HOST = "host.name"
THREAD = "thread.name"
WAIT_CLASS = "wait.class"  # labels of samples: the comm, by OpenTelemetry's name, and the class of the wait

_ALIASES = {"service": SERVICE, "host": HOST}
_NO_SERVICE = "unknown_service"  # OpenTelemetry's default, which Pyroscope uses as well
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")
_MOST, _LONGEST = 20, 1024
"""Limits below Pyroscope's defaults: 30 names per series, some of them its own, and 2048 bytes per value."""


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Parse `name=value` texts to name → value; raise UsageError if a server would refuse a label."""
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--label '{printable(text)}': NAME=VALUE is expected")
        if name in labels:
            raise UsageError(f"--label {printable(name)}: given twice")
        labels[name] = value
    check_labels(labels)
    return labels


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise UsageError unless all kinds of servers accept these labels (name → value)."""
    spelled = [underscored(_ALIASES.get(name, name)) for name in labels]
    for name, value in labels.items():
        if not _NAME.fullmatch(name) or len(name) > _LONGEST:
            rule = "a name is a letter, then letters, digits, dots and underscores"
            raise UsageError(f"label '{printable(name)}': {rule}")
        if not value.strip() or printable(value) != value or len(value.encode()) > _LONGEST:
            raise UsageError(f"label {name}: the value is empty, too long, or has characters that cannot be shown")
    if taken := sorted({underscored(THREAD), underscored(WAIT_CLASS)} & set(spelled)):
        raise UsageError(f"label {taken[0]}: samples have a label of this name")
    if twice := [name for name in spelled if spelled.count(name) > 1]:
        raise UsageError(f"label {twice[0]}: given twice, or in two spellings")
    if len(labels) > _MOST:
        raise UsageError(f"{len(labels)} labels: servers take {_MOST}")


def labels_of(profile: Profile, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels to push: the given ones in OpenTelemetry's spelling, and host and service if missing."""
    named = {_ALIASES.get(name, name): value.strip() for name, value in labels.items()}
    spelled = {underscored(name) for name in named}
    host = printable(profile.meta.hostname).strip()[:_LONGEST]
    if host and underscored(HOST) not in spelled:
        named[HOST] = host
    if underscored(SERVICE) not in spelled:
        named[SERVICE] = _NO_SERVICE
    return named


def underscored(name: str) -> str:
    """Return the name of a label as Pyroscope and Parca store it, with underscores for dots."""
    return name.replace(".", "_")
