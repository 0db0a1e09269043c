# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu completion: print a completion script for a shell.

shtab writes it from the parsers. This module adds completions that a parser does not express: files,
directories, commands and lists of words separated by commas.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from shlex import quote
from typing import Any

EXAMPLES = """examples:
  source <(perf-offcpu completion bash)                      in ~/.bashrc
  perf-offcpu completion bash > /etc/bash_completion.d/perf-offcpu
  perf-offcpu completion zsh > "${fpath[1]}/_perf-offcpu"    then start a new zsh
  perf-offcpu completion tcsh > ~/.perf-offcpu.tcsh          and source it in ~/.tcshrc
"""
_DIRECTORIES = frozenset(("DIR", "DATASET"))
_FILES = frozenset(("FILE", "OUT", "OLD", "ARCHIVE"))

_BASH = """
# $1: the word typed so far, $2: the words that the list may hold
_perf_offcpu_list() {
    local listed="" typed=${COMP_WORDS[COMP_CWORD]}
    if [[ $typed == -* ]]; then # an option follows one that may go without its value
        compgen -W "${current_option_strings[*]}" -- "$typed"
        return
    fi
    [[ $1 == *,* ]] && listed=${1%,*},
    compgen -P "$listed" -W "$2" -- "${1##*,}"
}
_perf_offcpu_command() { compgen -c -f -- "$1"; }
"""

_BASH_END = """
# Bash splits --unit=ms into three words; the parser's values follow their options.
_perf_offcpu() {
    local word words=() last=${COMP_WORDS[COMP_CWORD]}
    for word in "${COMP_WORDS[@]:0:COMP_CWORD}"; do
        [[ $word == = ]] || words+=("$word")
    done
    local COMP_WORDS=("${words[@]}" "${last#=}")
    local COMP_CWORD=${#words[@]}
    case ${words[COMP_CWORD-1]} in # a comma may follow the word
        LISTS) compopt -o nospace 2>/dev/null ;;
    esac
    _shtab_perf_offcpu
}
complete -o bashdefault -F _perf_offcpu perf-offcpu"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's options."""
    parser = subparsers.add_parser(
        "completion",
        help="print a completion script for bash, zsh or tcsh",
        description="Print a completion script for a shell, made from the options of this version.",
        epilog=EXAMPLES,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit status."""
    import shtab

    from perf_offcpu.commands.shared.parsers import VERBS, make_parsers

    parser, verbs = make_parsers(VERBS)
    lists = _lists()
    for verb in verbs.values():
        for action in _actions(verb):
            _set_completion(action, lists)
            if args.shell == "zsh":
                _set_zsh_form(action)
    bash = args.shell == "bash"
    print(shtab.complete(parser, args.shell, preamble=_BASH + _bash_functions(lists) if bash else ""))
    if bash:
        print(_BASH_END.replace("LISTS", "|".join(("-s", "-F", *lists))))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """Return the options of a verb and of its subverbs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for own in action.choices.values():
                yield from _actions(own)
        else:
            yield action


def _set_completion(action: Any, lists: dict[str, str]) -> None:
    """Set shtab's attribute `complete` of an action by its metavar or name."""
    from shtab import DIRECTORY, FILE

    if action.nargs == argparse.REMAINDER:
        action.help = "the command to record"
        action.complete = {"bash": "_perf_offcpu_command", "zsh": "_normal", "tcsh": "c"}
    elif action.metavar in _FILES:
        action.complete = FILE
    elif action.metavar in _DIRECTORIES:
        action.complete = DIRECTORY
    elif option := next((name for name in action.option_strings if name in lists), None):
        words = lists[option]
        zsh = f"_values -s , value {words}"
        action.complete = {"bash": _function(option), "zsh": zsh, "tcsh": f"({words})"}


def _set_zsh_form(action: Any) -> None:
    """Let zsh accept `--unit=ms` as well as `--unit ms`, and options with an optional value."""
    if action.option_strings and action.nargs != 0:
        action.option_strings = [f"{name}=" if name[1] == "-" else name for name in action.option_strings]
    if action.option_strings and action.nargs == "?":
        action.metavar = f":{action.metavar or action.dest}"


def _function(option: str) -> str:
    return f"_perf_offcpu_{option.lstrip('-')}"


def _bash_functions(lists: dict[str, str]) -> str:
    """Return one function for each list: shtab passes the typed word to a function, and no list."""
    return "\n".join(
        f'{_function(option)}() {{ _perf_offcpu_list "$1" {quote(words)}; }}'
        for option, words in lists.items()
    )


def _lists() -> dict[str, str]:
    """Return option → the words of its list."""
    from perf_offcpu.abi.task_state import STATE_NAMES
    from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
    from perf_offcpu.commands.report.arguments import SORT_KEYS
    from perf_offcpu.script.fields import OWN_FIELDS, PERF_FIELDS

    return {
        "--class": " ".join(BY_LABEL),
        "--state": " ".join(STATE_NAMES),
        "--sort": " ".join(SORT_KEYS),
        "--fields": " ".join([*PERF_FIELDS, *OWN_FIELDS]),
    }
