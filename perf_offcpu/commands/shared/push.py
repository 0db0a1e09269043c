# SPDX-License-Identifier: Apache-2.0
"""Declare the options of push targets, for the verbs that push, and open senders."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.option_tables import LIST, add_options
from perf_offcpu.errors import UsageError
from perf_offcpu.files import read_regular

if TYPE_CHECKING:
    from perf_offcpu.push.sender import Sender
    from perf_offcpu.push.targets import Target

TARGETS = "pyroscope=URL, parca=URL or otlp=URL"
_OPTIONS = """
--label NAME=VALUE: label of all samples; service and host are the usual ones
--push-header-file FILE: headers of all requests, one a line (Authorization: Bearer …); if there are several
  targets, KIND=FILE
--push-ca FILE: certificates (PEM) of the authorities that sign those of the servers (default: the system's)
"""
_MOST_BYTES = 1 << 22


def add_push_options(group: argparse._ActionsContainer) -> None:
    """Add the options; `--label` is for all that leaves the machine."""
    add_options(group, _OPTIONS, label=LIST, push_header_file=LIST)


def labels_from_args(args: argparse.Namespace) -> dict[str, str]:
    """Return the labels of the command line."""
    from perf_offcpu.push.labels import parse_labels

    return parse_labels(args.label)


def senders_from_args(targets: Iterable[str], args: argparse.Namespace) -> list[tuple[Target, Sender]]:
    """Return the targets and their senders; nothing is sent yet.

    Raises:
        UsageError: a target, header or certificate is none, or grpcio is missing.
        OSError: a file cannot be read.
    """
    from perf_offcpu.push.headers import read_headers
    from perf_offcpu.push.sender import SendOptions, open_sender
    from perf_offcpu.push.targets import Server, parse_target

    found = [parse_target(text) for text in targets]
    if twice := [target for target in found if [str(one) for one in found].count(str(target)) > 1]:
        raise UsageError(f"{twice[0]}: given twice")
    kinds = [server.value for server in Server]
    files: dict[str, str] = {}
    for text in args.push_header_file:
        kind, _, path = text.partition("=")
        kind, path = (kind, path) if kind in kinds else ("", text)
        if not kind and len(found) > 1:
            raise UsageError(f"--push-header-file {text}: for which target? {'|'.join(kinds)}=FILE")
        if kind in files:
            raise UsageError(f"--push-header-file {text}: the target has headers already")
        files[kind] = path
    headers = {kind: read_headers(path) for kind, path in files.items()}
    ca = read_regular(args.push_ca, _MOST_BYTES).decode("latin-1") if args.push_ca else ""
    return [
        (
            target,
            open_sender(target, SendOptions(headers.get(target.server.value) or headers.get("", ()), ca)),
        )
        for target in found
    ]
