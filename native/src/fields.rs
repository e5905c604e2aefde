//! The request fields the gateway reads, and how loosely their values are read.
//!
//! Engines validate requests with pydantic in lax mode, where `"stream": 1` streams and `"n": "2"` is
//! two; reading those strictly here would make the gateway believe something else than the engine.

use crate::strings::unescape;

macro_rules! fields {
    ($($variant:ident = $name:literal),+ $(,)?) => {
        /// A top-level member whose place is kept.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Field { $($variant),+ }

        impl Field {
            pub const NAMES: &'static [&'static str] = &[$($name),+];
            pub const COUNT: usize = Self::NAMES.len();

            /// Exact, case-sensitive match of a decoded key.
            pub fn of(key: &[u8]) -> Option<Self> {
                $(if key == $name.as_bytes() { return Some(Self::$variant); })+
                None
            }
        }
    };
}

fields! {
    Model = "model",
    Messages = "messages",
    Prompt = "prompt",
    Input = "input",
    System = "system",
    Instructions = "instructions",
    Stream = "stream",
    StreamOptions = "stream_options",
    MaxTokens = "max_tokens",
    MaxCompletionTokens = "max_completion_tokens",
    MaxOutputTokens = "max_output_tokens",
    MinTokens = "min_tokens",
    N = "n",
    Logprobs = "logprobs",
    Tools = "tools",
    ToolChoice = "tool_choice",
    ResponseFormat = "response_format",
    PreviousResponseId = "previous_response_id",
    User = "user",
    SessionId = "session_id",
    PromptCacheKey = "prompt_cache_key",
    CacheSalt = "cache_salt",
    Priority = "priority",
    KvTransferParams = "kv_transfer_params",
    EcTransferParams = "ec_transfer_params",
    VllmXargs = "vllm_xargs",
    Echo = "echo",
    BestOf = "best_of",
    UseBeamSearch = "use_beam_search",
    PromptLogprobs = "prompt_logprobs",
    PromptEmbeds = "prompt_embeds",
    TruncatePromptTokens = "truncate_prompt_tokens",
    Truncation = "truncation",
    Background = "background",
}

/// Members of `vllm_xargs` that a stranger must not set.
pub fn forbidden_xarg(key: &[u8]) -> bool {
    matches!(key, b"kv_transfer_params" | b"ec_transfer_params" | b"kv_cache_report_mode")
}

/// A JSON string's text; `None` for any other value.
pub fn text(value: &[u8]) -> Option<String> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    Some(unescape(inner))
}

/// `None` for null and for what no engine takes as a boolean.
pub fn boolean(value: &[u8]) -> Option<bool> {
    match value {
        b"true" => return Some(true),
        b"false" => return Some(false),
        _ => {}
    }
    let Some(word) = text(value) else {
        return match number(value)? {
            1.0 => Some(true),
            0.0 => Some(false),
            _ => None,
        };
    };
    match word.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Some(true),
        "0" | "false" | "f" | "no" | "n" | "off" => Some(false),
        _ => None,
    }
}

/// `None` for null and for what no engine takes as an integer; saturates at 64 bits.
pub fn integer(value: &[u8]) -> Option<i64> {
    if let Some(word) = text(value) {
        let word = word.trim().replace('_', "");
        let plain = word.bytes().all(|b| b.is_ascii_digit() || b"+-.".contains(&b));
        return if plain { exact(&word) } else { None };
    }
    match value {
        b"true" => Some(1),
        b"false" => Some(0),
        [b'-' | b'0'..=b'9', ..] => exact(std::str::from_utf8(value).ok()?),
        _ => None,
    }
}

fn exact(word: &str) -> Option<i64> {
    word.parse().ok().or_else(|| whole(word.parse().ok()?))
}

fn number(value: &[u8]) -> Option<f64> {
    match value.first()? {
        b'-' | b'0'..=b'9' => std::str::from_utf8(value).ok()?.parse().ok(),
        _ => None,
    }
}

fn whole(x: f64) -> Option<i64> {
    (x.fract() == 0.0).then_some(x as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_only_exactly() {
        for (i, name) in Field::NAMES.iter().enumerate() {
            assert_eq!(Field::of(name.as_bytes()).map(|f| f as usize), Some(i));
            assert_eq!(Field::of(name.to_uppercase().as_bytes()), None);
        }
        assert_eq!(Field::of(b""), None);
    }

    #[test]
    fn values_are_read_as_the_engine_reads_them() {
        for yes in ["true", "1", "1.0", "\"true\"", "\"ON\"", "\"y\"", r#""\u0031""#] {
            assert_eq!(boolean(yes.as_bytes()), Some(true), "{yes}");
        }
        for no in ["false", "0", "-0.0", "\"off\""] {
            assert_eq!(boolean(no.as_bytes()), Some(false), "{no}");
        }
        for neither in ["null", "2", "\"\"", "[]", "{}"] {
            assert_eq!(boolean(neither.as_bytes()), None, "{neither}");
        }
        assert_eq!(integer(b"-3"), Some(-3));
        assert_eq!(integer(b"2.0"), Some(2));
        assert_eq!(integer(b"1e2"), Some(100));
        assert_eq!(integer(b"\" 7 \""), Some(7));
        assert_eq!(integer(b"99999999999999999999"), Some(i64::MAX));
        assert_eq!((integer(b"true"), integer(b"\"1_000\"")), (Some(1), Some(1000)));
        for none in ["1.5", "null", "\"inf\"", "\"\"", "[1]"] {
            assert_eq!(integer(none.as_bytes()), None, "{none}");
        }
    }
}
