# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu push: send the waits of a recording to profile servers."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.parsers import LIST, add_options, add_verb
from perf_offcpu.commands.shared.profile import add_profile_arguments, profile_from_args, split_list
from perf_offcpu.commands.shared.streams import busy
from perf_offcpu.units import parse_time

if TYPE_CHECKING:
    from perf_offcpu.model.profile import Profile
    from perf_offcpu.push.sender import RetryLater, Sender
    from perf_offcpu.push.targets import Target

TARGETS = "pyroscope=URL, parca=URL or otlp=URL"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    parser = add_verb(subparsers, "push")
    parser.add_argument("target", nargs="+", metavar="TARGET", help=TARGETS)
    group = parser.add_argument_group("push")
    add_options(group, "push.options", label=LIST, push_header_file=LIST, push_time={"default": "60s"})
    add_profile_arguments(parser, "off-cpu time")


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments and return the exit status."""
    from perf_offcpu.analysis.selection.select import select_events
    from perf_offcpu.push.labels import parse_labels
    from perf_offcpu.push.opening import open_targets

    labels, senders = parse_labels(args.label), open_targets(args.target, args.push_header_file, args.push_ca or "")
    limit_s = parse_time("--push-time", args.push_time, "ms") / 1e9
    with busy("reading"):
        profile = select_events(profile_from_args(args), split_list(args.event))
    profile = profile.select(profile.is_offcpu())
    if not len(profile.samples):
        _tell("no wait was selected: nothing was pushed")
        return 0
    failed = [target for target, sender in senders if not _push(target, sender, profile, labels, limit_s)]
    return 1 if failed else 0


def _push(target: Target, sender: Sender, profile: Profile, labels: dict[str, str], limit_s: float) -> bool:
    """Push the profile to a target within `limit_s`, print the result, return True if the server accepted it all."""
    from perf_offcpu.push.messages import messages
    from perf_offcpu.push.sender import PushError, send_until

    def waiting(problem: RetryLater, pause_s: float) -> None:
        _tell(f"{problem}; trying again in {pause_s:.1f} s")

    deadline = time.monotonic() + limit_s
    sent = samples = weight = rejected = 0
    try:
        for message in messages(target.form, profile, labels):
            answer = send_until(sender, message.body, deadline, waiting)
            rejected += answer.rejected
            if answer.text or answer.rejected:
                _tell(f"{target}: {answer.rejected} profiles rejected: {answer.text or 'without a reason'}")
            sent, samples, weight = sent + 1, samples + message.samples, weight + message.weight_ns
    except PushError as problem:
        _tell(str(problem))
        if sent:  # pushed again, it is there twice
            _tell(f"{target} has taken a part: {_amount(weight, samples, sent)}")
        return False
    finally:
        sender.close()
    print(f"perf-offcpu push: {target}: {_amount(weight, samples, sent)}")
    return not rejected


def _amount(weight_ns: int, samples: int, sent: int) -> str:
    return f"{weight_ns / 1e9:.3f} s, {samples} samples in {sent} message{'s' * (sent != 1)}"


def _tell(text: str) -> None:
    print(f"perf-offcpu push: {text}", file=sys.stderr)
