# SPDX-License-Identifier: Apache-2.0
"""Declare the options of push targets, for the verbs that push, and open senders."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.parsers import LIST, add_options

if TYPE_CHECKING:
    from perf_offcpu.push.sender import Sender
    from perf_offcpu.push.targets import Target

TARGETS = "pyroscope=URL, parca=URL or otlp=URL"
LABEL = "--label NAME=VALUE: label of all samples; service and host are the usual ones"
ACCESS = """
--push-header-file FILE: headers of all requests, one a line (Authorization: Bearer …); if there are several
  targets, KIND=FILE
--push-ca FILE: certificates (PEM) of the authorities that sign those of the servers (default: the system's)
"""


def add_push_options(group: argparse._ActionsContainer) -> None:
    """Add the options of a verb that pushes."""
    add_options(group, f"{LABEL}\n{ACCESS.strip()}", label=LIST, push_header_file=LIST)


def labels_from_args(args: argparse.Namespace) -> dict[str, str]:
    """Return the labels of the command line."""
    from perf_offcpu.push.labels import parse_labels

    return parse_labels(args.label)


def senders_from_args(targets: Iterable[str], args: argparse.Namespace) -> list[tuple[Target, Sender]]:
    """Return the targets of the command line and their senders; see `push.opening.open_targets`."""
    from perf_offcpu.push.opening import open_targets

    return open_targets(targets, args.push_header_file, args.push_ca or "")
