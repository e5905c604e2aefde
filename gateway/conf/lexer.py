"""Text -> tokens, by nginx's rules.

Words end at a blank, `;`, `{` or `}`. A quote at the start of a word quotes up to the same quote;
inside a word it is an ordinary character. A backslash keeps the next character; `\\"`, `\\'`,
`\\\\`, `\\t`, `\\r`, `\\n` stand for one character, any other pair stays as written. `#` at the
start of a word begins a comment. `${name}` keeps its braces. Differences from nginx: a lone `}`
always ends a word (there it is swallowed, which hides a missing `;`), and `${` without a name and
`}` is an error here.

The lexer never gives up: after a mistake it goes on where the next statement probably begins.
"""

from __future__ import annotations

import re

from gateway.conf.errors import Report
from gateway.conf.sources import CLOSE, END, OPEN, SEMICOLON, WORD, Source, Token

_BLANK_OR_COMMENT = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)+")
_WORD = re.compile(r"(?:[^ \t\r\n;{}\\$]++|\\.|\$\{[A-Za-z0-9_]+\}|\$(?!\{)|\\\Z)++", re.DOTALL)
_QUOTED = {
    '"': re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL),
    "'": re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL),
}
_COUNT = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_OPEN_VARIABLE = re.compile(r"\$\{(?![A-Za-z0-9_]+\})")
_ESCAPE = re.compile(r"""\\(["'\\trn])""")
_CONTROL = {"t": "\t", "r": "\r", "n": "\n"}
_SIGNS = {";": SEMICOLON, "{": OPEN, "}": CLOSE}
_AFTER_QUOTE = frozenset((*" \t\r\n;{})", ""))  # ")" as in nginx's if; "": the end of the file
_MISTAKES_MAX = 50  # a file with more bad quotes than this is not a configuration file


def tokenise(source: Source, report: Report) -> list[Token]:
    """All tokens of a source, the last one of kind END. Mistakes go to `report`; never raises."""
    text, size = source.text, len(source.text)
    tokens: list[Token] = []
    at = 1 if text.startswith("\ufeff") else 0
    before = len(report.found)
    while True:
        blank = _BLANK_OR_COMMENT.match(text, at)
        if blank:
            at = blank.end()
        if at >= size or len(report.found) - before > _MISTAKES_MAX:
            tokens.append(Token(END, "", source, size, size))
            return tokens
        char = text[at]
        if char in _SIGNS:
            tokens.append(Token(_SIGNS[char], char, source, at, at + 1))
            at += 1
            continue
        token = _quoted(source, at, report) if char in _QUOTED else _bare(source, at, report)
        tokens.append(token)
        at = token.end


def _bare(source: Source, at: int, report: Report) -> Token:
    text, end = source.text, at
    while True:
        match = _WORD.match(text, end)
        if match:
            end = match.end()
        count = _COUNT.match(text, end)
        if count and end > at:
            # A block opens behind a blank; here a regular expression is meant.
            hint = "write a regular expression with braces in quotes"
            report.error_in(source, end, 'unexpected "{" inside a word', hint)
            end = count.end()
            continue
        if not text.startswith("${", end):
            # What was reported is left out, or the variable would be reported as well.
            written = _OPEN_VARIABLE.sub("", text[at:end])
            return Token(WORD, _unescape(written), source, at, end)
        report.error_in(source, end, '"${" needs a variable name and a closing "}"')
        end += 2


def _quoted(source: Source, at: int, report: Report) -> Token:
    text = source.text
    mark = text[at]
    match = _QUOTED[mark].match(text, at)
    if match is None or (
        "\n" in match[0] and text[match.end() : match.end() + 1] not in _AFTER_QUOTE
    ):
        # No partner, or a partner that clearly belongs to another word: this one was never closed.
        report.error_in(source, at, f"quote {mark} is not closed", "add the closing quote")
        return _rest_of_line(source, at)
    end = match.end()
    token = Token(WORD, _unescape(match[1]), source, at, end, True)
    if end < len(text) and text[end] not in _AFTER_QUOTE:
        what = "quote" if text[end] in _QUOTED else f'"{text[end]}"'
        report.error_in(
            source, end, f"unexpected {what} after a closing quote", "put a blank between"
        )
        return Token(WORD, token.text, source, at, _glued_end(source, end), True)
    return token


def _glued_end(source: Source, at: int) -> int:
    """Where the text ends that stands against a closing quote: it is taken as part of that word."""
    text = source.text
    while text[at : at + 1] in _QUOTED:
        match = _QUOTED[text[at]].match(text, at)
        if match is None:
            return len(text)
        at = match.end()
    return _bare(source, at, Report()).end


def _rest_of_line(source: Source, at: int) -> Token:
    """The word an unclosed quote stands for: up to its line's end, or a `;` or `{` there."""
    end = source.text.find("\n", at)
    end = len(source.text) if end < 0 else end
    line = source.text[at:end]
    body = re.sub(r"[ \t\r]*(?:[;{][ \t\r]*(?:#.*)?)?$", "", line)
    body = body or line[:1]
    return Token(WORD, body[1:], source, at, at + len(body), True)


def _unescape(written: str) -> str:
    if "\\" not in written:
        return written
    return _ESCAPE.sub(lambda m: _CONTROL.get(m[1], m[1]), written)
