//! One pass over a request body: is it a JSON object, what does the gateway need from it, and which
//! bytes must go before a stranger's request reaches an engine.
//!
//! Duplicate members mean what they mean to the engine (Python's `json`): the last one wins. Members
//! to strip are found in every duplicate and however their key is written. Nothing is interpreted that
//! is not in `fields`; everything else is skipped in place.

use crate::fields::{self, Field};
use crate::json::{Cursor, Error, Member, Span};

/// What the engine will see of `stream_options`, and where to write in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    pub span: Span,
    pub is_object: bool,
    pub is_empty: bool,
    pub include_usage: Option<Span>,
}

/// Where the value of each field stands, by the field's number.
#[derive(Debug)]
pub struct Spans([Option<Span>; Field::COUNT]);

impl Default for Spans {
    fn default() -> Self {
        Self([None; Field::COUNT])
    }
}

#[derive(Debug, Default)]
pub struct Scan {
    /// Length of the scanned body, to refuse edits of another one.
    pub len: usize,
    pub spans: Spans,
    pub stream_options: Option<StreamOptions>,
    /// Just after the opening brace: where a new member can be written.
    pub insert_at: usize,
    /// Members in all, and how many stay after the strip.
    pub members: usize,
    pub members_kept: usize,
    pub models: usize,
    /// Sorted, disjoint spans; without them the text is still valid and the forbidden fields are gone.
    pub strip: Vec<Span>,
}

impl Scan {
    pub fn span(&self, field: Field) -> Option<Span> {
        self.spans.0[field as usize]
    }
}

/// Cuts members out of one object, each with the comma that becomes superfluous: the one before it when
/// a member before it stays, else the one after it.
#[derive(Default)]
pub struct Cuts {
    kept: usize,
    /// A cut that starts at a key and ends at the next key, or with its value when it is the last.
    open: Option<Span>,
}

impl Cuts {
    pub fn key(&mut self, member: &Member, strip: &mut Vec<Span>) {
        if let Some(cut) = self.open.take() {
            strip.push(Span { start: cut.start, end: member.key.start });
        }
    }

    pub fn value(&mut self, member: &Member, end: usize, forbidden: bool, strip: &mut Vec<Span>) {
        if !forbidden {
            self.kept += 1;
        } else if self.kept > 0 {
            strip.push(Span { start: member.lead, end });
        } else {
            self.open = Some(Span { start: member.key.start, end });
        }
    }

    /// Members that stay so far.
    pub fn kept(&self) -> usize {
        self.kept
    }

    pub fn close(self, strip: &mut Vec<Span>) {
        strip.extend(self.open);
    }
}

pub fn scan(text: &[u8]) -> Result<Scan, Error> {
    let mut cursor = Cursor::new(text)?;
    cursor.skip_space();
    if cursor.peek() != Some(b'{') {
        return cursor.fail("expected \"{\": the body must be a JSON object");
    }
    let mut scan = Scan { len: text.len(), insert_at: cursor.pos() + 1, ..Scan::default() };
    let mut cuts = Cuts::default();
    cursor.members(1, &mut |cursor, member| top_member(cursor, &member, &mut cuts, &mut scan))?;
    scan.members_kept = cuts.kept;
    cuts.close(&mut scan.strip);
    cursor.skip_space();
    match cursor.peek() {
        None => Ok(scan),
        Some(_) => cursor.fail("unexpected data after the JSON object"),
    }
}

fn top_member(
    cursor: &mut Cursor,
    member: &Member,
    cuts: &mut Cuts,
    scan: &mut Scan,
) -> Result<(), Error> {
    cuts.key(member, &mut scan.strip);
    scan.members += 1;
    let field = Field::of(&member.name(cursor.text()));
    let start = cursor.pos();
    match field {
        Some(Field::VllmXargs) if cursor.peek() == Some(b'{') => xargs(cursor, &mut scan.strip)?,
        Some(Field::StreamOptions) => scan.stream_options = Some(stream_options(cursor)?),
        _ => drop(cursor.value(2)?),
    }
    let span = Span { start, end: cursor.pos() };
    if let Some(field) = field {
        scan.spans.0[field as usize] = Some(span);
        scan.models += usize::from(field == Field::Model);
    }
    let forbidden = matches!(field, Some(Field::KvTransferParams | Field::EcTransferParams));
    cuts.value(member, span.end, forbidden, &mut scan.strip);
    Ok(())
}

fn xargs(cursor: &mut Cursor, strip: &mut Vec<Span>) -> Result<(), Error> {
    let mut cuts = Cuts::default();
    cursor.members(2, &mut |cursor, member| {
        cuts.key(&member, strip);
        let forbidden = fields::forbidden_xarg(&member.name(cursor.text()));
        let end = cursor.value(3)?.end;
        cuts.value(&member, end, forbidden, strip);
        Ok(())
    })?;
    cuts.close(strip);
    Ok(())
}

fn stream_options(cursor: &mut Cursor) -> Result<StreamOptions, Error> {
    let start = cursor.pos();
    let is_object = cursor.peek() == Some(b'{');
    let mut is_empty = true;
    let mut include_usage = None;
    if is_object {
        cursor.members(2, &mut |cursor, member| {
            is_empty = false;
            let wanted = *member.name(cursor.text()) == *b"include_usage";
            let span = cursor.value(3)?;
            if wanted {
                include_usage = Some(span);
            }
            Ok(())
        })?;
    } else {
        cursor.value(2)?;
    }
    Ok(StreamOptions {
        span: Span { start, end: cursor.pos() },
        is_object,
        is_empty,
        include_usage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(text: &str) -> String {
        let scan = scan(text.as_bytes()).unwrap();
        let mut out = String::new();
        let mut pos = 0;
        for cut in &scan.strip {
            assert!(pos <= cut.start && cut.start < cut.end);
            out.push_str(&text[pos..cut.start]);
            pos = cut.end;
        }
        out.push_str(&text[pos..]);
        out
    }

    #[test]
    fn strips_with_the_right_comma() {
        for (before, after) in [
            (r#"{"kv_transfer_params":1}"#, "{}"),
            (r#"{ "kv_transfer_params" : {"a":[1,2]} }"#, "{  }"),
            (r#"{"kv_transfer_params":1, "a":2}"#, r#"{"a":2}"#),
            (r#"{"a":2 , "kv_transfer_params":1}"#, r#"{"a":2 }"#),
            (r#"{"a":2,"ec_transfer_params":1,"b":3}"#, r#"{"a":2,"b":3}"#),
            (r#"{"ec_transfer_params":1,"kv_transfer_params":1,"b":3}"#, r#"{"b":3}"#),
            (r#"{"ec_transfer_params":1,"kv_transfer_params":1}"#, "{}"),
            (r#"{"a":1,"kv_transfer_params":1,"kv_transfer_params":2,"b":3}"#, r#"{"a":1,"b":3}"#),
            (r#"{"kv\u005ftransfer_params":1,"\u006bv_transfer_params":1,"b":3}"#, r#"{"b":3}"#),
            (r#"{"KV_transfer_params":1}"#, r#"{"KV_transfer_params":1}"#),
            (r#"{"x":{"kv_transfer_params":1}}"#, r#"{"x":{"kv_transfer_params":1}}"#),
            (
                r#"{"kv_transfer_params":1,"vllm_xargs":{"kv_transfer_params":1,"b":2,"kv_cache_report_mode":1}}"#,
                r#"{"vllm_xargs":{"b":2}}"#,
            ),
            (
                r#"{"vllm_xargs":{"kv_cache_report_mode":{"a":1}},"a":1,"vllm\u005fxargs":{"ec_transfer_params":1}}"#,
                r#"{"vllm_xargs":{},"a":1,"vllm\u005fxargs":{}}"#,
            ),
            (
                r#"{"kv_cache_report_mode":1,"vllm_xargs":[1]}"#,
                r#"{"kv_cache_report_mode":1,"vllm_xargs":[1]}"#,
            ),
        ] {
            assert_eq!(stripped(before), after, "{before}");
        }
    }

    #[test]
    fn last_duplicate_wins() {
        let text = br#"{"model":"a","stream":true,"model":"b","stream":null}"#;
        let scan = scan(text).unwrap();
        assert_eq!(scan.span(Field::Model).unwrap().of(text), b"\"b\"");
        assert_eq!(scan.span(Field::Stream).unwrap().of(text), b"null");
        assert_eq!((scan.models, scan.members), (2, 4));
    }

    #[test]
    fn only_an_object_will_do() {
        for text in ["", " ", "[]", "null", "1", "\"{}\"", "{}{}", "{} x", "{"] {
            assert!(scan(text.as_bytes()).is_err(), "{text}");
        }
        assert!(scan(b" \n{ } ").is_ok());
    }

    #[test]
    fn depth_counts_the_object_itself() {
        let nest = |n: usize| format!(r#"{{"vllm_xargs":{}{}}}"#, "[".repeat(n), "]".repeat(n));
        assert!(scan(nest(127).as_bytes()).is_ok());
        assert!(scan(nest(128).as_bytes()).is_err());
    }
}
