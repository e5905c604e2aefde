//! `json.dumps` of Python, as the `tojson` filter of chat templates has it.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use std::fmt::Write;

use super::input;

struct Style {
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    between: String,
    after_key: String,
}

fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

impl Style {
    fn of(options: &Kwargs) -> Result<Self, Error> {
        let indent = match options.get::<Option<Value>>("indent")? {
            None => None,
            Some(value) if value.is_none() => None,
            Some(value) => Some(match (value.as_str(), value.as_i64()) {
                (Some(text), _) => text.to_string(),
                (None, Some(columns)) => " ".repeat(columns.clamp(0, 64) as usize),
                (None, None) => return Err(refused("tojson: an indent that is no number")),
            }),
        };
        let between = if indent.is_some() { "," } else { ", " };
        let mut style = Self {
            ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
            sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
            indent,
            between: between.to_string(),
            after_key: ": ".to_string(),
        };
        if let Some(separators) = options.get::<Option<Value>>("separators")? {
            if !separators.is_none() {
                let pair: Vec<Value> = separators.try_iter()?.collect();
                let [between, after_key] = pair.as_slice() else {
                    return Err(refused("tojson: separators are two"));
                };
                (style.between, style.after_key) = (between.to_string(), after_key.to_string());
            }
        }
        options.assert_all_used()?;
        Ok(style)
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if input::is_plain_number(value) => write!(out, "{value}")?,
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            // A slice of a list is an iterator here.
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                self.container(value, depth, out)?
            }
            kind => return Err(refused(format!("tojson: {kind} is not written here"))),
        }
        Ok(())
    }

    fn container(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let map = value.kind() == ValueKind::Map;
        let mut items: Vec<Value> = value.try_iter()?.collect();
        if map && self.sorted {
            if items.iter().any(|key| key.as_str().is_none()) {
                return Err(refused("tojson: keys that are no strings are not sorted here"));
            }
            items.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        }
        out.push(if map { '{' } else { '[' });
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(&self.between);
            }
            self.line(depth + 1, out);
            if map {
                let Some(key) = item.as_str() else {
                    return Err(refused("tojson: a key that is no string is not written here"));
                };
                self.text(key, out);
                out.push_str(&self.after_key);
                self.write(&value.get_item(item)?, depth + 1, out)?;
            } else {
                self.write(item, depth + 1, out)?;
            }
        }
        if !items.is_empty() {
            self.line(depth, out);
        }
        out.push(if map { '}' } else { ']' });
        Ok(())
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// The filter: `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let style = Style::of(&options)?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}
