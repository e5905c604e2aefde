//! A body without some of its members and with new ones in their place: what one engine is asked
//! about a request that another will answer. What stays comes out byte for byte.

use std::collections::HashSet;

use crate::json::{Cursor, Error, Span};
use crate::scan::Cuts;

/// Names of top-level members to leave out, however their keys are written and however often they
/// stand there.
pub type Names = HashSet<Vec<u8>>;

/// Where to write, and what to cut.
#[derive(Debug, Default)]
pub struct Plan {
    pub insert_at: usize,
    /// Members that stay.
    pub kept: usize,
    /// Sorted, disjoint.
    pub cuts: Vec<Span>,
}

/// The plan for one body, which must be one JSON object.
pub fn plan(text: &[u8], names: &Names) -> Result<Plan, Error> {
    let mut cursor = Cursor::new(text)?;
    cursor.skip_space();
    if cursor.peek() != Some(b'{') {
        return cursor.fail("expected \"{\": the body must be a JSON object");
    }
    let mut plan = Plan { insert_at: cursor.pos() + 1, ..Plan::default() };
    let mut cuts = Cuts::default();
    cursor.members(1, &mut |cursor, member| {
        cuts.key(&member, &mut plan.cuts);
        let forbidden = names.contains(&*member.name(cursor.text()));
        let end = cursor.value(2)?.end;
        cuts.value(&member, end, forbidden, &mut plan.cuts);
        Ok(())
    })?;
    plan.kept = cuts.kept();
    cuts.close(&mut plan.cuts);
    cursor.skip_space();
    match cursor.peek() {
        None => Ok(plan),
        Some(_) => cursor.fail("unexpected data after the JSON object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splice::{splice_into, spliced_len, Edit};

    fn run(text: &str, names: &[&str], members: &str) -> String {
        let names = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        let plan = plan(text.as_bytes(), &names).unwrap();
        let with = format!("{members}{}", if plan.kept > 0 { "," } else { "" });
        let at = Span { start: plan.insert_at, end: plan.insert_at };
        let mut edits = vec![Edit { span: at, with: with.as_bytes() }];
        edits.extend(plan.cuts.iter().map(|&span| Edit { span, with: b"" }));
        let mut out = vec![0; spliced_len(text.len(), &edits).unwrap()];
        splice_into(text.as_bytes(), &edits, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_named_goes_and_the_rest_stays_as_it_is() {
        for (before, after) in [
            (r#"{"n":2}"#, r#"{"x":1}"#),
            (r#"{}"#, r#"{"x":1}"#),
            (r#"{"n":2,"a":1.0}"#, r#"{"x":1,"a":1.0}"#),
            (r#"{ "a" : 1e-7 , "n":{"n":[1]} }"#, r#"{"x":1, "a" : 1e-7  }"#),
            (r#"{"a":1,"\u006e":3,"n":4,"b":"\u00e9"}"#, r#"{"x":1,"a":1,"b":"\u00e9"}"#),
            (r#"{"n":1,"n":2,"a":1,"a":12345678901234567890}"#,
             r#"{"x":1,"a":1,"a":12345678901234567890}"#),
        ] {
            assert_eq!(run(before, &["n"], r#""x":1"#), after, "{before}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for bad in ["", "[]", "{", r#"{"a":1}x"#, "1"] {
            assert!(plan(bad.as_bytes(), &Names::new()).is_err(), "{bad}");
        }
    }
}
