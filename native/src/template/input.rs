//! The context of a template: JSON to values of the template engine, keys in order.
//!
//! Numbers that Python prints in another way are refused: whoever renders falls back to Python.

use std::cell::Cell;
use std::fmt;

use minijinja::value::ValueKind;
use minijinja::Value;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A value read from JSON.
struct Read(Value);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Read)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("JSON without floats")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    /// Whole numbers beyond 64 bits come as floats too.
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        FLOATS.set(true);
        if prints_alike(value) {
            return Ok(Value::from(value));
        }
        Err(E::custom("a number that Python prints with an exponent"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::with_capacity(items.size_hint().unwrap_or(4));
        while let Some(Read(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::from(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::with_capacity(members.size_hint().unwrap_or(4));
        while let Some((key, Read(value))) = members.next_entry::<String, Read>()? {
            pairs.push((Value::from(key), value));
        }
        Ok(Value::from_pairs(pairs))
    }
}

/// Does Python print this float without an exponent, as is done here?
fn prints_alike(value: f64) -> bool {
    value == 0.0 || (1e-4..1e16).contains(&value.abs())
}

/// Is it a number that Python prints alike?
pub fn is_plain_number(value: &Value) -> bool {
    value.is_integer() || f64::try_from(value.clone()).is_ok_and(prints_alike)
}

thread_local! {
    /// The JSON being read holds a float.
    static FLOATS: Cell<bool> = const { Cell::new(false) };
}

/// Digits up to which a float is read to the last bit.
const DIGITS_MAX: usize = 15;

/// Is there a float of more digits than are read to the last bit?
fn has_long_float(json: &[u8]) -> bool {
    let (mut digits, mut float, mut within, mut escaped) = (0, false, false, false);
    for &byte in json {
        if within {
            within = escaped || byte != b'"';
            escaped = byte == b'\\' && !escaped;
            continue;
        }
        match byte {
            b'"' => within = true,
            b'0'..=b'9' => digits += 1,
            b'.' | b'e' | b'E' | b'+' | b'-' if digits > 0 => float = true,
            _ => (digits, float) = (0, false),
        }
        if float && digits > DIGITS_MAX {
            return true;
        }
    }
    false
}

/// The members of a JSON object.
pub fn members(json: &[u8]) -> Result<Vec<(Value, Value)>, String> {
    FLOATS.set(false);
    let Read(value) = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if FLOATS.get() && has_long_float(json) {
        return Err("a float with more digits than are sure to be read as in Python".into());
    }
    if value.kind() != ValueKind::Map {
        return Err("a context is a JSON object".into());
    }
    let keys = value.try_iter().map_err(|error| error.to_string())?;
    keys.map(|key| Ok((key.clone(), value.get_item(&key).map_err(|error| error.to_string())?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order() {
        let members = members(br#"{"z": 1, "a": [true, null, -7], "z": "last"}"#).expect("JSON");
        let shown: Vec<String> = members.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(shown, ["z=last", "a=[True, None, -7]"]);
    }

    #[test]
    fn floats_are_taken_where_they_print_alike() {
        let shown = |json: &str| members(json.as_bytes()).map(|all| all[0].1.to_string());
        for (json, text) in
            [("1.0", "1.0"), ("0.0001", "0.0001"), ("-0.0", "-0.0"), ("1e2", "100.0")]
        {
            assert_eq!(shown(&format!("{{\"a\": {json}}}")).as_deref(), Ok(text));
        }
        let texts = "{\"a\": 0.5, \"b\": \"\\\"1234567890.1234567890\\\\\"}";
        assert_eq!(shown(texts).as_deref(), Ok("0.5"));
        for json in
            ["1e-7", "1e16", "18446744073709551616", "0.30000000000000004", "0.1234567890123456"]
        {
            assert!(shown(&format!("{{\"a\": {json}}}")).is_err(), "{json}");
        }
        let beside = "{\"a\": 123456789012345678, \"b\": 0.5}";
        assert_eq!(shown(beside).as_deref(), Ok("123456789012345678"));
        // Whole numbers are exact however long they are.
        assert_eq!(shown("{\"a\": 18446744073709551615}").as_deref(), Ok("18446744073709551615"));
    }

    #[test]
    fn a_context_is_an_object() {
        assert!(members(b"[]").is_err() && members(b"{").is_err());
    }
}
