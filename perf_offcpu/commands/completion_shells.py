# SPDX-License-Identifier: Apache-2.0
"""The completion of `perf-offcpu` in the languages of bash and zsh."""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote

from perf_offcpu.commands.completion import Option, Value, Verb

_BASH = """# bash completion of perf-offcpu, written by "perf-offcpu completion bash"
_perf_offcpu() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} verb="" word at
    COMPREPLY=()
    # Bash breaks --unit=ms into three words.
    if [[ $cur == = ]]; then
        cur=''
    elif [[ $prev == = ]]; then
        prev=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    for ((at = 1; at < COMP_CWORD; at++)); do
        word=${{COMP_WORDS[at]}}
        if [[ $word != -* ]]; then
            verb=$word
            break
        fi
    done
    if [[ -z $verb ]]; then
        mapfile -t COMPREPLY < <(compgen -W {verbs} -- "$cur")
        return
    fi
    case $verb:$prev in
{values}
    esac
    case $verb in
{options}
    esac
}}
_perf_offcpu_files() {{
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$1")
}}
_perf_offcpu_list() {{
    local done=''
    [[ $1 == *,* ]] && done=${{1%,*}},
    compopt -o nospace 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -P "$done" -W "$2" -- "${{1##*,}}")
}}
complete -F _perf_offcpu perf-offcpu
"""


def bash(verbs: Sequence[Verb]) -> str:
    """The script for bash (from 4.4 on); it needs nothing of the package bash-completion."""
    names = " ".join([*(verb.name for verb in verbs), "--help", "--version", "--traceback"])
    values = [
        f"    {'|'.join(f'{verb.name}:{name}' for name in option.names)}) {_bash_value(option.value)} ;;"
        for verb in verbs
        for option in verb.options
        if option.value is not None
    ]
    options = [f"    {verb.name}) {_bash_options(verb)} ;;" for verb in verbs]
    return _BASH.format(verbs=quote(names), values="\n".join(values), options="\n".join(options))


def _bash_value(value: Value) -> str:
    if value.is_list:
        command = f'_perf_offcpu_list "$cur" {quote(" ".join(value.words))}'
    elif value.words:
        command = f'mapfile -t COMPREPLY < <(compgen -W {quote(" ".join(value.words))} -- "$cur")'
    elif value.is_file:
        command = '_perf_offcpu_files "$cur"'
    else:
        command = ":"
    # Behind an option that can do without a value the next option may come.
    return f"[[ $cur == -* ]] || {{ {command}; return; }}" if value.is_optional else f"{command}; return"


def _bash_options(verb: Verb) -> str:
    names = " ".join(name for option in verb.options for name in option.names)
    options = f'mapfile -t COMPREPLY < <(compgen -W {quote(names)} -- "$cur")'
    if verb.words:
        other = f'mapfile -t COMPREPLY < <(compgen -W {quote(" ".join(verb.words))} -- "$cur")'
    elif verb.has_command:
        other = 'mapfile -t COMPREPLY < <(compgen -c -f -- "$cur")'
    else:
        other = '_perf_offcpu_files "$cur"'
    return f"if [[ $cur == -* ]]; then {options}; else {other}; fi"


_ZSH = """#compdef perf-offcpu
# zsh completion of perf-offcpu, written by "perf-offcpu completion zsh"
_perf-offcpu() {{
    local context state line
    typeset -A opt_args
    _arguments -C '--help[print the verbs]' '--version[print the version]' \\
        "--traceback[show Python's traceback of an error]" '1:verb:->verb' '*::option:->options'
    case $state in
    verb)
        local -a verbs=(
{verbs}
        )
        _describe -t verbs verb verbs
        ;;
    options)
        case $words[1] in
{options}
        esac
        ;;
    esac
}}
if [[ $funcstack[1] == _perf-offcpu ]]; then
    _perf-offcpu "$@"
else
    compdef _perf-offcpu perf-offcpu
fi
"""


def zsh(verbs: Sequence[Verb]) -> str:
    """The script for zsh: a function to autoload from $fpath, or to source after compinit."""
    names = [f"            {quote(f'{verb.name}:{_short(verb.help)}')}" for verb in verbs]
    return _ZSH.format(verbs="\n".join(names), options="\n".join(map(_zsh_verb, verbs)))


def _zsh_verb(verb: Verb) -> str:
    specs = [spec for option in verb.options for spec in _zsh_option(option)]
    if verb.words:
        specs.append(quote(f"1:what:({' '.join(verb.words)})"))
    elif verb.has_command:
        specs.append("'*::command:_normal'")
    else:
        specs.append("'*:file:_files'")
    lines = " \\\n                ".join(specs)
    return f"        {verb.name})\n            _arguments -S \\\n                {lines}\n            ;;"


def _zsh_option(option: Option) -> list[str]:
    """One specification for each name; options may be repeated."""
    text = re.sub(r"([\[\]:\\])", r"\\\1", _short(option.help))
    return [quote(f"*{name}{_zsh_value(name, option.value, text)}") for name in option.names]


def _zsh_value(name: str, value: Value | None, text: str) -> str:
    if value is None:
        return f"[{text}]"
    separator = "=" if name.startswith("--") else ""
    colons = "::" if value.is_optional else ":"
    if value.is_list:
        action = f"_values -s , value {' '.join(value.words)}"
    elif value.words:
        action = f"({' '.join(value.words)})"
    else:
        action = "_files" if value.is_file else " "
    return f"{separator}[{text}]{colons}value:{action}"


def _short(text: str) -> str:
    """The first line's worth of a help text."""
    first = re.split(r"; | \(", text)[0]
    return first if len(first) <= 60 else first[:59].rsplit(" ", 1)[0] + " …"
