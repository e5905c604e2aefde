"""Tokens: nginx's quoting, places, and recovery; the lexer takes any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conf.errors import Report
from gateway.conf.lexer import tokenise
from gateway.conf.sources import END, WORD, Source, Token


def lex(text: str) -> tuple[list[Token], Report]:
    report = Report()
    return tokenise(Source("f", text), report), report


def words(text: str) -> list[str]:
    tokens, report = lex(text)
    assert not report.found, report.found
    return [token.text if token.kind == WORD else token.kind for token in tokens[:-1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b;", ["a", "b", ";"]),
        ("a{b;}", ["a", "{", "b", ";", "}"]),
        ("a 'b c' \"d e\";", ["a", "b c", "d e", ";"]),
        ("a x\"y' z;", ["a", "x\"y'", "z", ";"]),
        ('a "";', ["a", "", ";"]),
        ("a # comment ; {\nb;", ["a", "b", ";"]),
        ("a x#y;", ["a", "x#y", ";"]),
        ("a ${x}b $y;", ["a", "${x}b", "$y", ";"]),
        ("a ${x}{ }", ["a", "${x}", "{", "}"]),
        ("a \\;b \\{ \\ c;", ["a", "\\;b", "\\{", "\\ c", ";"]),
        ("a \"x\\\"y\" 'x\\'y';", ["a", 'x"y', "x'y", ";"]),
        ('a "\\\\d\\t\\r\\n\\d";', ["a", "\\d\t\r\n\\d", ";"]),
        ("a \\.php$ \\\\.x;", ["a", "\\.php$", "\\.x", ";"]),
        ('a "line\nbreak";', ["a", "line\nbreak", ";"]),
        ('a "x"{', ["a", "x", "{"]),
        ("\ufeffa b;", ["a", "b", ";"]),
        ("a\r\nb\t;", ["a", "b", ";"]),
        ("a é日本;", ["a", "é日本", ";"]),
        ("a b\x0cc;", ["a", "b\x0cc", ";"]),  # only nginx's four blanks part words
        ("a \\", ["a", "\\"]),
    ],
)
def test_words_are_nginxs(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ('a "b;\nc d;', 1, 3, 'quote " is not closed'),
        ("a\n\t'b;\n", 2, 2, "quote ' is not closed"),
        ('a "b"c;', 1, 6, 'unexpected "c" after a closing quote'),
        ("a ${x;", 1, 3, '"${" needs a variable name and a closing "}"'),
        ("a b ${};", 1, 5, '"${" needs a variable name and a closing "}"'),
        ("a [0-9]{2};", 1, 8, 'unexpected "{" inside a word'),
    ],
)
def test_mistake_is_reported_where_it_begins(
    text: str, line: int, column: int, message: str
) -> None:
    _, report = lex(text)
    (error,) = report.found
    assert (error.place.line, error.place.column, error.message) == (line, column, message)


def test_statements_behind_an_open_quote_are_still_read() -> None:
    tokens, report = lex('a "b;\nc d;\ne "f";\n')
    assert len(report.found) == 1
    assert [t.text for t in tokens if t.kind == WORD] == ["a", "b", "c", "d", "e", "f"]


ODD = "ab1${}{};#'\"\\ \t\r\n=~^/é\x00\x0b\ud800"
SOURCE_TEXT = st.text(alphabet=st.sampled_from(ODD), max_size=80)


@given(SOURCE_TEXT | st.text(max_size=60))
def test_any_text_gives_tokens_in_order_with_right_places(text: str) -> None:
    tokens, report = lex(text)
    assert tokens[-1].kind == END
    at = 0
    for token in tokens:
        assert at <= token.start <= token.end <= len(text)
        at = token.end
        place = token.place
        before = text[: token.start]
        assert place.line == before.count("\n") + 1
        assert place.column == token.start - (before.rfind("\n") + 1) + 1
        if token.kind not in (WORD, END):
            assert text[token.start] == token.kind
    for error in report.found:
        assert 1 <= error.place.line <= text.count("\n") + 1


PLAIN = st.text(alphabet="abcXYZ019_-./:=~^*$[]()é", min_size=1, max_size=12)
ANY_VALUE = st.text(alphabet="ab ;{}#\\\"'\t\r\n$é", max_size=12)


def quote(value: str, mark: str) -> str:
    """`value` written in quotes, so that the lexer must give it back."""
    return mark + value.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark


@given(st.lists(st.tuples(ANY_VALUE, st.sampled_from("\"'")), max_size=8))
def test_quoted_values_come_back(values: list[tuple[str, str]]) -> None:
    text = " ".join(quote(value, mark) for value, mark in values)
    assert words(text) == [value for value, _ in values]


@given(st.lists(PLAIN, min_size=1, max_size=8), st.sampled_from([" ", "\t", "\n", " # x\n"]))
def test_plain_words_come_back(values: list[str], blank: str) -> None:
    assert words(blank.join(values)) == values


@given(SOURCE_TEXT)
def test_what_the_tokens_leave_out_is_blank_or_comment(text: str) -> None:
    tokens, report = lex(text)
    if report.found:
        return
    at = 1 if text.startswith("\ufeff") else 0
    for token in tokens:
        gap = text[at : token.start]
        lines = [line.partition("#")[0] for line in gap.split("\n")]
        assert not "".join(lines).strip(" \t\r"), repr(gap)
        at = token.end


@pytest.mark.parametrize("piece", ['"\\"\n', "'", '"a"b ', "${", "a{2}", "{", "}", ";", "\\"])
def test_time_is_linear_in_bad_input(piece: str) -> None:
    tokens, _ = lex(piece * 10_000)
    assert tokens[-1].kind == END
