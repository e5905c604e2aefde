//! A strict, allocation-free cursor over one JSON text (RFC 8259, UTF-8).
//!
//! It accepts what the RFC's grammar accepts and nothing else: no NaN, no Infinity, no comments, no
//! trailing commas, no raw control characters, no byte order mark, no other encodings than UTF-8.
//! Lone surrogate escapes (`"\ud800"`) are grammatical and pass; decoding one gives U+FFFD.
//! Containers nest at most `DEPTH_MAX` deep. Values are skipped, never built.

use std::borrow::Cow;

use crate::strings::{plain_end, unescape};

/// Deepest nesting of objects and arrays; the outermost container is at depth 1.
pub const DEPTH_MAX: u32 = 128;

/// What was wrong and the byte offset where it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    pub what: &'static str,
    pub at: usize,
}

impl Error {
    /// `expected "," or "}" at byte 17 (line 1, column 18)`; columns count characters.
    pub fn render(&self, text: &[u8]) -> String {
        let before = &text[..self.at.min(text.len())];
        let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |p| p + 1);
        let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
        // Continuation bytes do not start a character.
        let column = 1 + before[line_start..].iter().filter(|&&b| b & 0xC0 != 0x80).count();
        format!("{} at byte {} (line {line}, column {column})", self.what, self.at)
    }
}

/// Half-open byte range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub fn of<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.start..self.end]
    }
}

/// One member of an object, handed out when its value is next to be read.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// The comma before the key; the opening brace for the first member.
    pub lead: usize,
    /// The key with its quotes.
    pub key: Span,
    /// The key has escapes and must be decoded before it is compared.
    pub escaped: bool,
}

impl Member {
    pub fn name<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        let inner = &text[self.key.start + 1..self.key.end - 1];
        match self.escaped {
            false => Cow::Borrowed(inner),
            true => Cow::Owned(unescape(inner).into_bytes()),
        }
    }
}

pub struct Cursor<'a> {
    text: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    /// Fails if the text is not UTF-8, so that everything after may cut it at ASCII bytes.
    pub fn new(text: &'a [u8]) -> Result<Self, Error> {
        match std::str::from_utf8(text) {
            Ok(_) => Ok(Self { text, pos: 0 }),
            Err(e) => Err(Error { what: "invalid UTF-8", at: e.valid_up_to() }),
        }
    }

    pub fn pos(&self) -> usize {
        self.pos
    }

    pub fn text(&self) -> &'a [u8] {
        self.text
    }

    pub fn peek(&self) -> Option<u8> {
        self.text.get(self.pos).copied()
    }

    pub fn fail<T>(&self, what: &'static str) -> Result<T, Error> {
        let at = self.pos.min(self.text.len());
        let what = if at == self.text.len() { "unexpected end of text" } else { what };
        Err(Error { what, at })
    }

    pub fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.pos += 1;
        }
    }

    /// Skips one value of any kind, white space around it excluded.
    pub fn value(&mut self, depth: u32) -> Result<Span, Error> {
        let start = self.pos;
        match self.peek() {
            Some(b'"') => {
                self.string()?;
            }
            Some(b'{') => {
                self.members(depth, &mut |cursor, _| cursor.value(depth + 1).map(drop))?
            }
            Some(b'[') => self.elements(depth)?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.literal(b"true")?,
            Some(b'f') => self.literal(b"false")?,
            Some(b'n') => self.literal(b"null")?,
            _ => return self.fail("expected a value"),
        }
        Ok(Span { start, end: self.pos })
    }

    /// Walks an object; `visit` must consume exactly the member's value.
    pub fn members(
        &mut self,
        depth: u32,
        visit: &mut dyn FnMut(&mut Self, Member) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut lead = self.open(depth)?;
        if self.peek() == Some(b'}') {
            self.pos += 1;
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return self.fail("expected a key in double quotes");
            }
            let start = self.pos;
            let escaped = self.string()?;
            let key = Span { start, end: self.pos };
            self.skip_space();
            if self.peek() != Some(b':') {
                return self.fail("expected \":\"");
            }
            self.pos += 1;
            self.skip_space();
            visit(self, Member { lead, key, escaped })?;
            self.skip_space();
            match self.peek() {
                Some(b',') => lead = self.pos,
                Some(b'}') => {
                    self.pos += 1;
                    return Ok(());
                }
                _ => return self.fail("expected \",\" or \"}\""),
            }
            self.pos += 1;
            self.skip_space();
        }
    }

    fn elements(&mut self, depth: u32) -> Result<(), Error> {
        self.open(depth)?;
        if self.peek() == Some(b']') {
            self.pos += 1;
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            self.skip_space();
            match self.peek() {
                Some(b',') => self.pos += 1,
                Some(b']') => {
                    self.pos += 1;
                    return Ok(());
                }
                _ => return self.fail("expected \",\" or \"]\""),
            }
            self.skip_space();
        }
    }

    /// Steps over an opening bracket; returns where it was.
    fn open(&mut self, depth: u32) -> Result<usize, Error> {
        if depth > DEPTH_MAX {
            return self.fail("nested deeper than 128 levels");
        }
        let at = self.pos;
        self.pos += 1;
        self.skip_space();
        Ok(at)
    }

    /// Skips a string that starts here; true if it has escapes.
    pub fn string(&mut self) -> Result<bool, Error> {
        let mut escaped = false;
        self.pos += 1;
        loop {
            self.pos = plain_end(self.text, self.pos);
            match self.peek() {
                Some(b'"') => {
                    self.pos += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return self.fail("control character in a string"),
                None => return self.fail("unterminated string"),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Error> {
        match self.text.get(self.pos + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.pos += 2,
            Some(b'u') => {
                let digits = self.text.get(self.pos + 2..self.pos + 6).unwrap_or(&[]);
                if digits.len() < 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
                    return self.fail("expected four hexadecimal digits after \"\\u\"");
                }
                self.pos += 6;
            }
            _ => return self.fail("unknown escape in a string"),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Error> {
        if self.peek() == Some(b'-') {
            self.pos += 1;
        }
        match self.peek() {
            Some(b'0') => self.pos += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return self.fail("expected a digit"),
        }
        if self.peek() == Some(b'.') {
            self.pos += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.pos += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.pos += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), Error> {
        let rest = &self.text[self.pos..];
        let count = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
        self.pos += count;
        if count == 0 {
            return self.fail("expected a digit");
        }
        Ok(())
    }

    fn literal(&mut self, word: &'static [u8]) -> Result<(), Error> {
        if !self.text[self.pos..].starts_with(word) {
            return self.fail("expected a value");
        }
        self.pos += word.len();
        Ok(())
    }
}

/// True for one JSON string with its quotes and nothing around it.
pub fn is_string(text: &[u8]) -> bool {
    match Cursor::new(text) {
        Ok(mut cursor) => {
            cursor.peek() == Some(b'"') && cursor.string().is_ok() && cursor.pos == text.len()
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &[u8]) -> Result<(), Error> {
        let mut cursor = Cursor::new(text)?;
        cursor.skip_space();
        cursor.value(1)?;
        cursor.skip_space();
        match cursor.peek() {
            None => Ok(()),
            Some(_) => cursor.fail("data after the value"),
        }
    }

    #[test]
    fn accepts_the_grammar() {
        for text in [
            r#"{"a":[1,-0,0.5e-3,1E+9,true,false,null,"x\u00e9\n\"\\\/\b\f\r\t"],"":{}}"#,
            " [ ] ",
            r#""\ud800""#,
            "-0.0",
            "\"\u{7f}\u{1F600}\"",
        ] {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            "{",
            "[1,]",
            r#"{"a":1,}"#,
            "01",
            "1.",
            "1e",
            "-",
            "+1",
            ".5",
            "NaN",
            "Infinity",
            "-Infinity",
            "tru",
            "nulll",
            "'a'",
            "{a:1}",
            r#"{"a" 1}"#,
            r#"{"a":1 "b":2}"#,
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\u123",
            "\"abc",
            "[1 2]",
            "1 2",
            "\u{feff}{}",
            "/**/1",
        ] {
            assert!(check(text.as_bytes()).is_err(), "{text}");
        }
        assert!(check(b"\"\xed\xa0\x80\"").is_err());
        assert!(check(b"\"\xff\"").is_err());
    }

    #[test]
    fn depth_is_bounded() {
        let nest = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
        assert_eq!(check(&nest(128)), Ok(()));
        assert_eq!(check(&nest(129)).unwrap_err().what, "nested deeper than 128 levels");
        assert!(check(&vec![b'['; 1 << 20]).is_err());
    }

    #[test]
    fn a_string_is_whole_and_alone() {
        assert!(is_string(br#""a\"b""#) && is_string(b"\"\""));
        for text in ["", "\"", "\"\\\"", "\"a\"b\"", "a", "\"a\" ", "\"\n\""] {
            assert!(!is_string(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn errors_name_the_place() {
        let text = "{\n \"é\" 1}".as_bytes();
        let error = check(text).unwrap_err();
        assert_eq!(error.render(text), "expected \":\" at byte 8 (line 2, column 6)");
    }
}
