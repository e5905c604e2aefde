//! What Python's strings and dicts do, as far as chat templates ask for it: no less, and nothing nearly.
//!
//! Whatever is not here is an error, and whoever renders falls back to Python.

use std::fmt::{self, Write};
use std::sync::Arc;

use minijinja::value::{from_args, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::input;

/// `str.isspace` of Python: White_Space of Unicode, and four separators that it counts besides.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// The ends of lines that `str.splitlines` knows.
fn ends_line(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

fn lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends_line) {
        lines.push(&rest[..at]);
        let end = rest[at..].chars().next().map_or(1, char::len_utf8);
        let end = if rest[at..].starts_with("\r\n") { 2 } else { end };
        rest = &rest[at + end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Jinja2's filter `trim`.
pub fn trim(text: &str, chars: Option<&str>) -> String {
    strip(text, chars, true, true).to_string()
}

/// Jinja2's filter `indent` with spaces.
pub fn indent(text: &str, width: usize, first: bool, blank: bool) -> String {
    let indention = " ".repeat(width.min(256));
    let mut out = String::with_capacity(text.len() + 64);
    for (at, line) in lines(&format!("{text}\n")).iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    out
}

fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(drop) } else { text };
    if right {
        text.trim_end_matches(drop)
    } else {
        text
    }
}

/// `str.split`; `most` < 0 = no limit.
fn split(text: &str, separator: Option<&str>, most: i64) -> Result<Vec<Value>, Error> {
    let limit = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
    match separator {
        Some("") => Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) => Ok(text.splitn(limit, separator).map(Value::from).collect()),
        None if most < 0 => {
            let words = text.split(is_space).filter(|word| !word.is_empty());
            Ok(words.map(Value::from).collect())
        }
        None => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// `startswith` and `endswith`: a string, or one of a tuple of them.
fn any_affix(affixes: &Value, fits: impl Fn(&str) -> bool) -> Result<Value, Error> {
    let unfit = || Error::new(ErrorKind::InvalidOperation, "an affix that is no string");
    if let Some(affix) = affixes.as_str() {
        return Ok(Value::from(fits(affix)));
    }
    if !affixes.is_tuple() {
        return Err(unfit());
    }
    for affix in affixes.try_iter()? {
        if fits(affix.as_str().ok_or_else(unfit)?) {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(Value::from(strip(text, chars, method != "rstrip", method != "lstrip")))
        }
        "split" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            Ok(Value::from(split(text, separator, most.unwrap_or(-1))?))
        }
        "replace" => {
            let (old, new): (&str, &str) = from_args(args)?;
            Ok(Value::from(text.replace(old, new)))
        }
        "startswith" => {
            let (affixes,): (&Value,) = from_args(args)?;
            any_affix(affixes, |affix| text.starts_with(affix))
        }
        "endswith" => {
            let (affixes,): (&Value,) = from_args(args)?;
            any_affix(affixes, |affix| text.ends_with(affix))
        }
        "removeprefix" => {
            let (affix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(affix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (affix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(affix).unwrap_or(text)))
        }
        "find" => {
            let (what,): (&str,) = from_args(args)?;
            let at = text.find(what).map_or(-1, |at| text[..at].chars().count() as i64);
            Ok(Value::from(at))
        }
        "lower" | "upper" => {
            let () = from_args(args)?;
            let changed = if method == "lower" { text.to_lowercase() } else { text.to_uppercase() };
            Ok(Value::from(changed))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn of_dict(dict: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "get" => {
            let (key, default): (&Value, Option<&Value>) = from_args(args)?;
            let found = dict.get_item(key)?;
            let default = || default.cloned().unwrap_or(Value::from(()));
            Ok(if found.is_undefined() { default() } else { found })
        }
        "keys" | "values" | "items" => {
            let () = from_args(args)?;
            let of = |key: Value| -> Result<Value, Error> {
                match method {
                    "keys" => Ok(key),
                    "values" => dict.get_item(&key),
                    _ => Ok(Value::from(vec![key.clone(), dict.get_item(&key)?])),
                }
            };
            dict.try_iter()?.map(of).collect::<Result<Vec<Value>, Error>>().map(Value::from)
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// Methods of values, as Python has them.
pub fn method(_: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => of_text(text, method, args),
        (ValueKind::Map, _) => of_dict(value, method, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// A string of Jinja2's filter `safe`: it prints as it is, and whatever is added to it would be escaped,
/// which is not done here: adding is an error.
#[derive(Debug)]
pub struct Safe(String);

impl Object for Safe {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Jinja2's filter `safe`.
pub fn safe(text: &str) -> Value {
    Value::from_object(Safe(text.to_string()))
}

/// Is it a `str`?
pub fn is_string(value: &Value) -> bool {
    value.as_str().is_some() || value.downcast_object_ref::<Safe>().is_some()
}

/// An error unless `str()` of Python gives the same text. Of a list or dict it does not: there strings are
/// quoted, and what cannot be printed is escaped.
pub fn prints(value: &Value) -> Result<(), Error> {
    use ValueKind::{Bool, None, Number, String, Undefined};
    let alike = match value.kind() {
        String | Bool | None | Undefined => true,
        Number => input::is_plain_number(value),
        _ => value.downcast_object_ref::<Safe>().is_some(),
    };
    if alike {
        return Ok(());
    }
    let text = format!("a {} is printed in another way in Python", value.kind());
    Err(Error::new(ErrorKind::InvalidOperation, text))
}

/// Jinja2's filter `string`.
pub fn string(value: &Value) -> Result<String, Error> {
    prints(value)?;
    Ok(value.to_string())
}

/// Jinja2's filter `join`, without its attribute.
pub fn join(values: &Value, between: Option<&str>) -> Result<String, Error> {
    let mut out = String::new();
    for (at, value) in values.try_iter()?.enumerate() {
        if at > 0 {
            out.push_str(between.unwrap_or_default());
        }
        prints(&value)?;
        write!(out, "{value}")?;
    }
    Ok(out)
}

/// Can Python iterate over it?
pub fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
}

/// Has it a length, and items by key or place? A slice of a list is an iterator here.
pub fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String};
    matches!(value.kind(), String | Seq | Map | Iterable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_are_those_of_python() {
        assert_eq!(trim("\u{1f} \u{a0}x\u{200b}\u{85}\u{1c}", None), "x\u{200b}");
        assert_eq!(trim("xxaxbx", Some("xb")), "a");
        let words = split(" a\u{1d}b  c\u{3000}", None, -1).expect("no separator is fine");
        assert_eq!(Value::from(words).to_string(), "['a', 'b', 'c']");
    }

    #[test]
    fn indent_is_that_of_jinja2() {
        let all = |first, blank| indent("a\n\nb\r\nc", 2, first, blank);
        assert_eq!(all(false, false), "a\n\n  b\n  c");
        assert_eq!(all(true, false), "  a\n\n  b\n  c");
        assert_eq!(all(false, true), "a\n  \n  b\n  c");
        assert_eq!(indent("", 4, false, false), "");
        assert_eq!(indent("a\n", 4, false, false), "a\n");
        assert_eq!(indent("\u{2028}x\u{b}", 4, false, false), "\n    x\n");
    }
}
