"""Tokens -> a tree of statements, with included files spliced in.

The parser knows nothing of what a statement means; a `Grammar` tells it which names are statements
where, which it uses only to recover well: a forgotten `;` or brace is one error, and what follows
is still read as it was meant. It never raises; nesting is bounded by `DEPTH_MAX`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from gateway.conf.errors import Report, quoted
from gateway.conf.files import FileSet
from gateway.conf.lexer import tokenise
from gateway.conf.sources import CLOSE, END, OPEN, SEMICOLON, WORD, Source, Token

DEPTH_MAX = 16


@dataclass(slots=True, eq=False)
class Statement:
    """`NAME ARGS;` or `NAME ARGS { ... }`: `block` is None for the first form."""

    name: Token
    args: tuple[Token, ...] = ()
    block: list[Statement] | None = None


class Grammar(Protocol):
    def allows(self, name: str, context: str, block: bool) -> bool:
        """Whether a statement of that name, with or without a block, may stand there."""

    def knows(self, name: str) -> bool:
        """Whether it is the name of any statement, ours or nginx's."""

    def is_block(self, name: str, context: str) -> bool:
        """Whether a statement of that name has a block there."""

    def begins(self, name: str, context: str) -> bool:
        """Whether a bare word that starts a line there can only be the name of a statement."""

    def free_behind(self, name: str) -> int | None:
        """Behind how many arguments a block begins whose lines may begin with any word; None for
        all others."""


@dataclass(slots=True)
class _Frame:
    """An open block. `closed`: its last child block and that one's `}`, if nothing followed."""

    context: str
    body: list[Statement]
    opener: Token | None = None  # the statement's name; None for the file itself
    closed: tuple[Statement, Token] | None = None


@dataclass(slots=True)
class Parser:
    grammar: Grammar
    files: FileSet
    report: Report

    def parse(self, source: Source, contexts: tuple[str, ...] = ("main",)) -> list[Statement]:
        """The statements of a source; `contexts` are the blocks it stands in, outermost first."""
        return _Run(self, source, contexts).statements()


@dataclass(slots=True)
class _Run:
    """One pass over one source."""

    parser: Parser
    source: Source
    outer: tuple[str, ...]
    tokens: list[Token] = field(default_factory=list)
    at: int = 0
    frames: list[_Frame] = field(default_factory=list)
    surplus: int = 0  # "{" minus "}" of what is not accounted for yet
    too_deep: bool = False

    def statements(self) -> list[Statement]:
        self.tokens = tokenise(self.source, self.parser.report)
        self.surplus = sum((t.kind == OPEN) - (t.kind == CLOSE) for t in self.tokens)
        root = _Frame(self.outer[-1], [])
        self.frames = [root]
        while self.tokens[self.at].kind != END:
            self._step(self.tokens[self.at])
        self._finish()
        return root.body

    def _step(self, token: Token) -> None:
        if token.kind == WORD:
            self._statement()
        elif token.kind == CLOSE:
            self._close(token)
        else:
            self.at += 1
            hint = "remove it" if token.kind == SEMICOLON else "a block needs a name before it"
            self.parser.report.error(token, f'unexpected "{token.text}"', hint)
            if token.kind == OPEN and self.surplus > 0:
                self.surplus -= 1  # written twice; it has no "}" of its own
            elif token.kind == OPEN:
                self._open(Statement(token), token, keep=False)

    def _close(self, token: Token) -> None:
        self.at += 1
        if len(self.frames) == 1:
            self.surplus += 1
            self.parser.report.error(token, 'unexpected "}"', "no block is open here")
            return
        frame = self.frames.pop()
        parent = self.frames[-1]
        last = parent.body[-1] if parent.body else None
        parent.closed = (last, token) if last is not None and last.block is frame.body else None

    def _statement(self) -> None:
        name = self.tokens[self.at]
        lacks_brace = self._lacks_brace(name)
        if not lacks_brace:
            self._mend_braces(name)
        args: list[Token] = []
        self.at += 1
        while (token := self.tokens[self.at]).kind == WORD:
            if lacks_brace and self._begins_body(token, name, len(args)):
                self._open_missing(Statement(name, tuple(args)))
                return
            if self._begins_statement(token):
                break
            args.append(token)
            self.at += 1
        statement = Statement(name, tuple(args))
        if token.kind == OPEN:
            self.at += 1
            self._open(statement, name, keep=True)
            return
        if token.kind == SEMICOLON:
            self.at += 1
        else:
            self._report_unterminated(args[-1] if args else name, name, token)
        self._keep(statement)

    def _report_unterminated(self, last: Token, name: Token, following: Token) -> None:
        hint = ""
        if following.kind == WORD:
            hint = f"write {quoted(following.text)} in quotes if it is meant as an argument"
        message = f'{quoted(name.text)} is not terminated by ";"'
        self.parser.report.error(last, message, hint, after=True)

    def _lacks_brace(self, name: Token) -> bool:
        """Whether this is a block whose "{" was forgotten: there are more "}", and what follows as
        an argument is a statement of such a block, to which a "{" behind it belongs."""
        grammar = self.parser.grammar
        if self.surplus >= 0 or not grammar.is_block(name.text, self.frames[-1].context):
            return False
        at = self.at + 1
        found: Token | None = None
        while self.tokens[at].kind == WORD:
            if found is None and self._begins_body(self.tokens[at], name, at - self.at - 1):
                found = self.tokens[at]
            at += 1
        if found is None or self.tokens[at].kind != OPEN:
            return found is not None
        return grammar.is_block(found.text, name.text) and found.line > name.line

    def _begins_body(self, word: Token, name: Token, position: int) -> bool:
        behind = self.parser.grammar.free_behind(name.text)
        if behind is not None:
            return position >= behind
        return self.parser.grammar.begins(word.text, name.text)

    def _open_missing(self, statement: Statement) -> None:
        last = statement.args[-1] if statement.args else statement.name
        message = f'{quoted(statement.name.text)} has no opening "{{"'
        self.parser.report.error(last, message, after=True)
        self.surplus += 1
        self._open(statement, statement.name, keep=True)

    def _begins_statement(self, word: Token) -> bool:
        """A bare word that starts a line and is a statement here: the one before lacks its `;`."""
        if word.quoted or not self.parser.grammar.begins(word.text, self.frames[-1].context):
            return False
        source, start = self.source, word.start
        line_start = source.text.rfind("\n", 0, start) + 1
        if line_start == 0 or source.text[line_start:start].strip(" \t"):
            return False
        return self.tokens[self.at - 1].start < line_start

    def _mend_braces(self, name: Token) -> None:
        """Where braces do not balance, the statement's name tells which is missing or extra."""
        grammar, frame = self.parser.grammar, self.frames[-1]
        if not self.surplus or name.quoted or not grammar.knows(name.text):
            return
        block = self._has_block()
        if grammar.allows(name.text, frame.context, block) and not self._looks_outer(name):
            return
        if self.surplus > 0:
            self._close_missing(name, block)
        elif frame.closed is not None:
            statement, brace = frame.closed
            if statement.block is not None and grammar.allows(
                name.text, statement.name.text, block
            ):
                self.parser.report.error(brace, 'unexpected "}"', "the block goes on behind it")
                self.surplus += 1
                frame.closed = None
                self.frames.append(_Frame(statement.name.text, statement.block, statement.name))

    def _looks_outer(self, name: Token) -> bool:
        """Whether a block that may stand in one of its own kind was written beside it."""
        opener = self.frames[-1].opener
        if self.surplus <= 0 or opener is None or opener.text != name.text:
            return False
        return name.line > opener.line and name.place.column <= opener.place.column

    def _has_block(self) -> bool:
        """Whether the statement that begins here is one with a block."""
        at = self.at
        while self.tokens[at].kind == WORD:
            at += 1
        return self.tokens[at].kind == OPEN

    def _close_missing(self, name: Token, block: bool) -> None:
        for index in range(len(self.frames) - 2, -1, -1):
            count = len(self.frames) - 1 - index
            if count > self.surplus:
                return
            if self.parser.grammar.allows(name.text, self.frames[index].context, block):
                for frame in self.frames[index + 1 :]:
                    assert frame.opener is not None
                    message = f'{quoted(frame.opener.text)} block is not closed by "}}"'
                    hint = f"before {quoted(name.text)} in line {name.line}"
                    self.parser.report.error(frame.opener, message, hint)
                self.surplus -= count
                del self.frames[index + 1 :]
                return

    def _keep(self, statement: Statement) -> None:
        frame = self.frames[-1]
        frame.closed = None
        if statement.name.text == "include" and not statement.name.quoted:
            self._include(statement, frame)
        else:
            frame.body.append(statement)

    def _include(self, statement: Statement, frame: _Frame) -> None:
        if len(statement.args) != 1:
            message = f'"include" takes one file name, not {len(statement.args)}'
            self.parser.report.error(statement.name, message)
            return
        contexts = (*self.outer, *(f.context for f in self.frames[1:]))
        for source in self.parser.files.included(statement.args[0]):
            frame.body.extend(self.parser.parse(source, contexts))

    def _open(self, statement: Statement, opener: Token, *, keep: bool) -> None:
        statement.block = []
        frame = self.frames[-1]
        frame.closed = None
        depth = len(self.outer) + len(self.frames)
        if depth > DEPTH_MAX:
            self.parser.report.error(opener, f"blocks are nested deeper than {DEPTH_MAX}")
            self.at = len(self.tokens) - 1
            self.too_deep = True
            return
        if keep:
            frame.body.append(statement)
        self.frames.append(_Frame(statement.name.text, statement.block, opener))

    def _finish(self) -> None:
        open_frames = self.frames[1:]
        if not open_frames or self.too_deep:
            return
        opener = open_frames[-1].opener
        assert opener is not None
        more = len(open_frames) - 1
        hint = f"{more} more open at the end of the file" if more else ""
        message = f'{quoted(opener.text)} block is not closed by "}}"'
        self.parser.report.error(opener, message, hint)
