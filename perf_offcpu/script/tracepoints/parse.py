# SPDX-License-Identifier: Apache-2.0
"""The expressions in which the kernel says how a tracepoint is printed: text to trees.

    print fmt: "vec=%u [action=%s]", REC->vec, __print_symbolic(REC->vec, { 0, "HI" }, { 1, "TIMER" })

It is C, as far as the macros of include/trace/stages/stage3_trace_output.h leave it: operators, casts, fields
of the record, and some functions whose arguments may be lists in braces. Texts come from files, so length and
depth are bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LONGEST = 1 << 16
_DEEPEST = 32

_TOKEN = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<char>\'(?:[^\'\\]|\\.)\')|(?P<number>0[xX][0-9a-fA-F]+|\d+)[uUlL]*'
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>->|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!<>()\[\]{},?:.]))"
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}

_BINARY = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"),
    ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
"""From the loosest to the tightest."""


class NotUnderstood(Exception):
    """A recipe that says something else."""


@dataclass(frozen=True, slots=True)
class Node:
    """An expression: `kind` says which, `text` its name or operator, `parts` what it is made of.

    Kinds: number (text in decimal), string, name (of something in the kernel), field, call, list, cast (text:
    the type), unary, binary, choice, index.
    """

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()


def parse_print_fmt(text: str) -> tuple[str, list[Node]]:
    """(format, arguments) of what stands behind `print fmt:`.

    Raises:
        NotUnderstood: it is no such expression, or is too long or too deep.
    """
    if len(text) > _LONGEST:
        raise NotUnderstood("too long")
    parser = _Parser(_tokens(text))
    format_node = parser.operand()
    if format_node.kind != "string":
        raise NotUnderstood("no format")
    arguments = []
    while parser.accept(","):
        arguments.append(parser.expression())
    if parser.at < len(parser.tokens):
        raise NotUnderstood(f"{parser.tokens[parser.at][1]!r} behind the end")
    return format_node.text, arguments


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at, text = [], 0, text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise NotUnderstood(f"{text[at : at + 20]!r}")
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


class _Parser:
    """Recursive descent, one method for each kind of thing."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        """The next token; ("", "") at the end."""
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else ("", "")

    def accept(self, sign: str) -> bool:
        """Whether the next token is this one; it is taken then."""
        found = self.peek() == ("sign", sign)
        self.at += found
        return found

    def expect(self, sign: str) -> None:
        """Take this token."""
        if not self.accept(sign):
            raise NotUnderstood(f"{self.peek()[1]!r} in place of {sign!r}")

    def expression(self) -> Node:
        """Anything."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise NotUnderstood("too deep")
        node = self._binary(0)
        if self.accept("?"):
            chosen = self.expression()
            self.expect(":")
            node = Node("choice", "?", (node, chosen, self.expression()))
        self.depth -= 1
        return node

    def _binary(self, level: int) -> Node:
        if level == len(_BINARY):
            return self.operand()
        node = self._binary(level + 1)
        while self.peek()[0] == "sign" and self.peek()[1] in _BINARY[level]:
            sign = self.peek()[1]
            self.at += 1
            node = Node("binary", sign, (node, self._binary(level + 1)))
        return node

    def operand(self) -> Node:
        """What operators join."""
        kind, text = self.peek()
        self.at += 1
        if kind == "sign" and text in ("!", "~", "-", "+", "*", "&"):
            self.depth += 1
            if self.depth > _DEEPEST:
                raise NotUnderstood("too deep")
            node = Node("unary", text, (self.operand(),))
            self.depth -= 1
            return node
        if kind == "sign" and text == "(":
            cast = self._cast()
            if cast:
                return Node("cast", cast, (self.operand(),))
            node = self.expression()
            self.expect(")")
        elif kind == "sign" and text == "{":
            return Node("list", "", self._list("}"))
        elif kind == "number":
            node = Node(
                "number", str(int(text, 0 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" else 10))
            )
        elif kind == "char":
            node = Node("number", str(ord(_unescaped(text[1:-1]))))
        elif kind == "string":
            while self.peek()[0] == "string":
                text = text[:-1] + self.peek()[1][1:]
                self.at += 1
            node = Node("string", _unescaped(text[1:-1]))
        elif kind == "name":
            node = self._named(text)
        else:
            raise NotUnderstood(f"{text!r}")
        while self.accept("["):
            node = Node("index", "", (node, self.expression()))
            self.expect("]")
        return node

    def _named(self, name: str) -> Node:
        if name == "REC" and self.accept("->"):
            self.at += 1
            if self.peek(-1)[0] != "name":
                raise NotUnderstood("no name of a field")
            return Node("field", self.peek(-1)[1])
        if self.accept("("):
            return Node("call", name, self._list(")"))
        return Node("name", name)

    def _list(self, end: str) -> tuple[Node, ...]:
        parts = []
        while not self.accept(end):
            # A function may be given the bare name of a field.
            bare = self.peek()[0] == "name" and self.peek(1) in (("sign", ","), ("sign", end))
            if bare and self.peek()[1] != "REC":
                parts.append(Node("field", self.peek()[1]))
                self.at += 1
            else:
                parts.append(self.expression())
            if not self.accept(","):
                self.expect(end)
                break
        return tuple(parts)

    def _cast(self) -> str:
        """The type in parentheses that have been opened, if it is one; "" if not."""
        ahead = 0
        words: list[str] = []
        while self.peek(ahead)[0] == "name" or (words and self.peek(ahead) == ("sign", "*")):
            words.append(self.peek(ahead)[1])
            ahead += 1
        follows = self.peek(ahead + 1)
        operand = follows[0] in ("name", "number", "char", "string") or follows[1] in ("(", "~", "!", "-")
        if not words or self.peek(ahead) != ("sign", ")") or not operand:
            return ""
        self.at += ahead + 1
        return " ".join(words)


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        return chr(int(code, 8) & 0xFF) if code[0] in "01234567" else _ESCAPED.get(code, code)

    return _ESCAPE.sub(plain, text)
