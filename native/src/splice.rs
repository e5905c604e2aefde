//! Edits of a body at known spans. What no edit covers comes out byte for byte.

use crate::fields::{self, Field};
use crate::json::Span;
use crate::scan::Scan;

/// Replace `span` (empty: insert there) by `with`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit<'a> {
    pub span: Span,
    pub with: &'a [u8],
}

/// What `rewrite` is to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// A JSON string, quotes included.
    pub model: Option<&'a [u8]>,
    pub strip: bool,
    pub include_usage: bool,
    /// Likewise.
    pub cache_salt: Option<&'a [u8]>,
}

/// Length after the edits; an error if they are unsorted, overlap or leave the body.
pub fn spliced_len(len: usize, edits: &[Edit]) -> Result<usize, &'static str> {
    let mut pos = 0;
    let mut total = len;
    for edit in edits {
        if edit.span.start < pos || edit.span.end < edit.span.start {
            return Err("edits must be sorted and must not overlap");
        }
        if edit.span.end > len {
            return Err("edit lies outside the body");
        }
        pos = edit.span.end;
        total = total - (edit.span.end - edit.span.start) + edit.with.len();
    }
    Ok(total)
}

/// `out` must be as long as `spliced_len` said.
pub fn splice_into(body: &[u8], edits: &[Edit], out: &mut [u8]) {
    let mut from = 0;
    let mut to = 0;
    let mut put = |piece: &[u8]| {
        out[to..to + piece.len()].copy_from_slice(piece);
        to += piece.len();
    };
    for edit in edits {
        put(&body[from..edit.span.start]);
        put(edit.with);
        from = edit.span.end;
    }
    put(&body[from..]);
}

const USAGE: &[u8] = br#"{"include_usage":true}"#;
const USAGE_MEMBER: &[u8] = br#""include_usage":true"#;
const USAGE_MEMBER_FIRST: &[u8] = br#""include_usage":true,"#;

/// The edits for `wanted`, sorted. `inserted` holds the text of new members for the edits to borrow.
///
/// Usage is asked for only of a request that streams (an engine refuses `stream_options` otherwise), and
/// a `stream_options` that is neither object nor null is left for the engine to refuse.
pub fn rewrite<'a>(
    scan: &Scan,
    body: &'a [u8],
    wanted: Wanted<'a>,
    inserted: &'a mut Vec<u8>,
) -> Vec<Edit<'a>> {
    let mut edits = Vec::with_capacity(4 + scan.strip.len());
    let mut replace = |span, with| edits.push(Edit { span, with });
    for (value, field) in [(wanted.model, Field::Model), (wanted.cache_salt, Field::CacheSalt)] {
        match (value, scan.span(field)) {
            (Some(value), Some(span)) if span.of(body) == value => {}
            (Some(value), Some(span)) => replace(span, value),
            (Some(value), None) => {
                member(inserted, field);
                inserted.extend_from_slice(value);
            }
            (None, _) => {}
        }
    }
    let streams =
        || scan.span(Field::Stream).is_some_and(|s| fields::boolean(s.of(body)) == Some(true));
    if wanted.include_usage && streams() {
        match scan.stream_options {
            Some(options) => {
                if let Some((span, with)) = usage_edit(&options, body) {
                    replace(span, with);
                }
            }
            None => {
                member(inserted, Field::StreamOptions);
                inserted.extend_from_slice(USAGE);
            }
        }
    }
    if wanted.strip {
        scan.strip.iter().for_each(|&span| replace(span, b""));
    }
    let members = if wanted.strip { scan.members_kept } else { scan.members };
    if !inserted.is_empty() {
        if members > 0 {
            inserted.push(b',');
        }
        edits.push(Edit {
            span: Span { start: scan.insert_at, end: scan.insert_at },
            with: inserted,
        });
    }
    edits.sort_by_key(|edit| (edit.span.start, edit.span.end));
    edits
}

/// Begins one more new member.
fn member(inserted: &mut Vec<u8>, field: Field) {
    if !inserted.is_empty() {
        inserted.push(b',');
    }
    inserted.push(b'"');
    inserted.extend_from_slice(Field::NAMES[field as usize].as_bytes());
    inserted.extend_from_slice(b"\":");
}

fn usage_edit(options: &crate::scan::StreamOptions, body: &[u8]) -> Option<(Span, &'static [u8])> {
    if !options.is_object {
        return (options.span.of(body) == b"null").then_some((options.span, USAGE));
    }
    if let Some(span) = options.include_usage {
        return (fields::boolean(span.of(body)) != Some(true)).then_some((span, b"true"));
    }
    let at = options.span.start + 1;
    let with = if options.is_empty { USAGE_MEMBER } else { USAGE_MEMBER_FIRST };
    Some((Span { start: at, end: at }, with))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::scan;

    fn run(body: &str, wanted: Wanted) -> String {
        let scan = scan(body.as_bytes()).unwrap();
        let mut inserted = Vec::new();
        let edits = rewrite(&scan, body.as_bytes(), wanted, &mut inserted);
        let mut out = vec![0; spliced_len(body.len(), &edits).unwrap()];
        splice_into(body.as_bytes(), &edits, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rewrites_in_one_go() {
        let all =
            Wanted { model: Some(b"\"m\""), strip: true, include_usage: true, cache_salt: None };
        for (before, after) in [
            (r#"{}"#, r#"{"model":"m"}"#),
            (
                r#"{"kv_transfer_params":1,"stream":1}"#,
                r#"{"model":"m","stream_options":{"include_usage":true},"stream":1}"#,
            ),
            (r#"{"kv_transfer_params":1}"#, r#"{"model":"m"}"#),
            (
                r#"{"model":"x","stream":true,"stream_options":null}"#,
                r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream_options":{},"model":"x","stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"model":"m","stream":true}"#,
            ),
            (
                r#"{"stream_options":{"a":1},"model":"x","stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"a":1},"model":"m","stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":false},"model":"x","stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"model":"m","stream":true}"#,
            ),
            (r#"{"model":"x","stream":false}"#, r#"{"model":"m","stream":false}"#),
            (
                r#"{"model":"x","stream":true,"stream_options":7}"#,
                r#"{"model":"m","stream":true,"stream_options":7}"#,
            ),
        ] {
            assert_eq!(run(before, all), after, "{before}");
        }
        let body = r#"{ "model" : "x","kv_transfer_params":1 }"#;
        assert_eq!(run(body, Wanted::default()), body);
    }

    #[test]
    fn a_salt_is_added_or_put_in_the_place_of_one() {
        let salted = Wanted { cache_salt: Some(b"\"s\""), ..Wanted::default() };
        for (before, after) in [
            (r#"{}"#, r#"{"cache_salt":"s"}"#),
            (r#"{"a":1}"#, r#"{"cache_salt":"s","a":1}"#),
            (r#"{"a":1,"cache_salt":"x","b":2}"#, r#"{"a":1,"cache_salt":"s","b":2}"#),
            (r#"{"cache\u005fsalt":null}"#, r#"{"cache\u005fsalt":"s"}"#),
        ] {
            assert_eq!(run(before, salted), after, "{before}");
        }
        let both = Wanted { model: Some(b"\"m\""), ..salted };
        assert_eq!(run(r#"{"a":1}"#, both), r#"{"model":"m","cache_salt":"s","a":1}"#);
    }

    #[test]
    fn bad_edits_are_refused() {
        let edit = |start, end| Edit { span: Span { start, end }, with: b"xy" };
        assert_eq!(spliced_len(10, &[edit(0, 0), edit(0, 3), edit(3, 3)]), Ok(13));
        assert!(spliced_len(10, &[edit(4, 6), edit(5, 7)]).is_err());
        assert!(spliced_len(10, &[edit(4, 3)]).is_err());
        assert!(spliced_len(10, &[edit(9, 11)]).is_err());
    }
}
