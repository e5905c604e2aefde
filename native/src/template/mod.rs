//! Chat templates without Python, for those that render the same here.
//!
//! The reference is Jinja2 as `transformers` sets it up. What is known to differ is an error here, at once or
//! when a text brings it up; who calls has Jinja2 to fall back to, and tries a template before trusting it.

mod dumps;
mod input;
mod python;

use std::ffi::CString;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};

/// The name under which the one template of an environment is kept.
const NAME: &str = "chat";
/// Filters of the engine that Jinja2 lacks or that differ on some value.
const UNLIKE: [&str; 23] = [
    "abs",
    "attr",
    "batch",
    "bool",
    "capitalize",
    "chain",
    "e",
    "escape",
    "float",
    "format",
    "groupby",
    "int",
    "lines",
    "max",
    "min",
    "pprint",
    "round",
    "slice",
    "split",
    "sum",
    "title",
    "unique",
    "zip",
];
/// Attributes that are methods of a Python dict even where the dict has such a key.
const DICT_METHODS: [&str; 10] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "update", "values"];

/// A compiled template; threads share it.
pub struct Template {
    environment: Environment<'static>,
}

impl Template {
    /// Compiles `source`. The error says why it is left to Jinja2.
    pub fn new(source: &str) -> Result<Self, String> {
        let source = adapted(source);
        if let Some(name) = method_as_value(&source) {
            return Err(format!("`.{name}` is a method of dicts in Jinja2, and is not called"));
        }
        let mut environment = environment().map_err(|error| told(&error))?;
        environment.add_template_owned(NAME, source).map_err(|error| told(&error))?;
        Ok(Self { environment })
    }

    /// The text for a context in JSON. `now_s`: the time that the template may ask for, in seconds since
    /// 1970. The error says what went wrong; Jinja2 may still render.
    pub fn render(&self, context: &[u8], now_s: i64) -> Result<String, String> {
        let mut members = input::members(context)?;
        members.push((Value::from("strftime_now"), clock(now_s)));
        let template = self.environment.get_template(NAME).map_err(|error| told(&error))?;
        template.render(Value::from_pairs(members)).map_err(|error| told(&error))
    }
}

/// An error in one line, without what the template or the context hold.
fn told(error: &Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!(" in line {line}"));
    match error.detail() {
        Some(detail) => format!("{}: {detail}{line}", error.kind()),
        None => format!("{}{line}", error.kind()),
    }
}

/// What Jinja2 and its extensions read in another way than the engine here: line ends, and the marks around
/// what the model generates, which render what they enclose.
fn adapted(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let inner = &tag[2..];
        let Some(end) = inner.find("%}") else {
            out.push_str(tag);
            return out;
        };
        let (open, word) = match inner.as_bytes().first() {
            Some(b'-' | b'+') => inner[..end].split_at(1),
            _ => ("", &inner[..end]),
        };
        let (word, close) = match word.as_bytes().last() {
            Some(b'-' | b'+') => word.split_at(word.len() - 1),
            _ => (word, ""),
        };
        let instead = match word.trim() {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match instead {
            Some(instead) => out.push_str(&format!("{{%{open} {instead} {close}%}}")),
            None => out.push_str(&tag[..2 + end + 2]),
        }
        rest = &tag[2 + end + 2..];
    }
    out.push_str(rest);
    out
}

/// A method of dicts that is named and not called. Jinja2 finds the method before the key.
fn method_as_value(source: &str) -> Option<&'static str> {
    let called = |after: &str| after.trim_start().starts_with('(');
    let whole = |after: &str| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    DICT_METHODS.into_iter().find(|name| {
        let mut parts = source.split('.').skip(1);
        parts.any(|part| part.strip_prefix(*name).is_some_and(|rest| whole(rest) && !called(rest)))
    })
}

fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    UNLIKE.iter().for_each(|name| environment.remove_filter(name));
    environment.remove_global("debug");
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", dumps::tojson);
    environment.add_filter("trim", python::trim);
    environment.add_filter("indent", indent);
    environment.add_filter("join", python::join);
    environment.add_filter("string", python::string);
    environment.set_formatter(|out, state, value| {
        python::prints(value)?;
        minijinja::escape_formatter(out, state, value)
    });
    environment.add_filter("safe", python::safe);
    environment.add_test("string", python::is_string);
    environment.add_test("iterable", python::is_iterable);
    environment.add_test("sequence", python::is_sequence);
    environment.add_function("raise_exception", raise_exception);
    Ok(environment)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
}

/// Jinja2's filter `indent(width=4, first=False, blank=False)`.
fn indent(text: &str, width: Option<usize>, options: Kwargs) -> Result<String, Error> {
    let width = match width {
        None => options.get::<Option<usize>>("width")?,
        given => given,
    };
    let first = options.get::<Option<bool>>("first")?.unwrap_or(false);
    let blank = options.get::<Option<bool>>("blank")?.unwrap_or(false);
    options.assert_all_used()?;
    Ok(python::indent(text, width.unwrap_or(4), first, blank))
}

/// `strftime_now(format)`: local time, as C's `strftime` writes it, which is also Python's.
fn clock(now_s: i64) -> Value {
    Value::from_function(move |format: &str| {
        strftime(format, now_s)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "a time that cannot be written"))
    })
}

fn strftime(format: &str, now_s: i64) -> Option<String> {
    let format = CString::new(format).ok()?;
    let mut out = vec![0u8; 256 + 16 * format.as_bytes().len()];
    // SAFETY: `tm` is plain data that `localtime_r` fills before it is read; `strftime` writes at most
    // `out.len()` bytes and says how many.
    let written = unsafe {
        let mut tm = std::mem::zeroed::<libc::tm>();
        if libc::localtime_r(&now_s, &mut tm).is_null() {
            return None;
        }
        libc::strftime(out.as_mut_ptr().cast(), out.len(), format.as_ptr(), &tm)
    };
    out.truncate(written);
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, context: &str) -> Result<String, String> {
        Template::new(source)?.render(context.as_bytes(), 0)
    }

    #[test]
    fn what_jinja2_does_not_read_is_rewritten() {
        assert_eq!(
            adapted("{%- generation -%}a{% endgeneration +%}"),
            "{%- if true -%}a{% endif +%}"
        );
        assert_eq!(adapted("a\r\nb\rc{% if x %}{{ '{%' }}"), "a\nb\nc{% if x %}{{ '{%' }}");
        let text = render("{% generation %}{{ a }}{% endgeneration %}!", r#"{"a": "b"}"#);
        assert_eq!(text.as_deref(), Ok("b!"));
    }

    #[test]
    fn json_is_that_of_python() {
        let context = r#"{"a": {"z": [1, "é\"\u0001\u007f/<", null], "b": {}, "c": []}}"#;
        let text = render("{{ a | tojson }}", context);
        assert_eq!(
            text.as_deref(),
            Ok("{\"z\": [1, \"é\\\"\\u0001\u{7f}/<\", null], \"b\": {}, \"c\": []}")
        );
        let text = render("{{ [a.b, a.z[:1]] | tojson(indent=2) }}", context);
        assert_eq!(text.as_deref(), Ok("[\n  {},\n  [\n    1\n  ]\n]"));
        let text = render("{{ {'b': '😀', 'a': true} | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}", "{}");
        assert_eq!(text.as_deref(), Ok("{\"a\":true,\"b\":\"\\ud83d\\ude00\"}"));
    }

    #[test]
    fn what_would_differ_is_an_error() {
        assert!(render("{{ a }}", r#"{"a": 1e-7}"#).is_err());
        assert!(render("{{ (a | safe) + '<' }}", r#"{"a": "b"}"#).is_err());
        assert!(render("{{ '<' + (a | safe) }}", r#"{"a": "b"}"#).is_err());
        assert!(render("{{ a | safe | trim }}", r#"{"a": "b"}"#).is_err());
        let text =
            render("{% set s = a | safe %}{{ s }}{{ s ~ '<' }}{{ s is string }}", r#"{"a": "<b"}"#);
        assert_eq!(text.as_deref(), Ok("<b<b<True"));
        assert!(render("{{ a.items }}", "{}").is_err());
        assert!(render("{{ (1 / 100000) | tojson }}", "{}").is_err());
        assert!(render("{{ a | tojson }}", "{}").is_err());
        assert!(render("{{ a }}", r#"{"a": ["b"]}"#).is_err());
        assert!(render("{{ [a] | join }}", r#"{"a": {}}"#).is_err());
        assert!(render("{{ a | string }}", r#"{"a": {}}"#).is_err());
        let raised = render("{{ raise_exception('no ' ~ a) }}", r#"{"a": "b"}"#);
        assert!(raised.is_err_and(|error| error.contains("no b")));
    }

    #[test]
    fn none_cannot_be_iterated_over() {
        let text = render("{{ none is iterable }} {{ 'a' is sequence }} {{ x is iterable }}", "{}");
        assert_eq!(text.as_deref(), Ok("False True True"));
    }

    #[test]
    fn keys_that_are_names_of_methods_are_no_methods() {
        let context = r#"{"a": {"items": 1, "b": 2}}"#;
        let text = render("{% for k, v in a.items() %}{{ k }}{{ v }}{% endfor %}", context);
        assert!(text.is_err() || text.as_deref() == Ok("items1b2"), "{text:?}");
    }
}
