//! Where added tokens cut a text, exactly as the `tokenizers` library cuts it.
//!
//! The library first finds the added tokens that match raw text, then normalises what lies between and
//! finds the others there. Every piece left is tokenised on its own, whatever stands around it. So ids of
//! the whole are the ids of its parts, and a part tokenised before need not be tokenised again.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use super::added::{self, AddedToken};

/// A matched added token or the text between two of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Text(Range<usize>),
    /// `cut`: segments end here; else the token lies within one.
    Token {
        id: u32,
        range: Range<usize>,
        cut: bool,
    },
}

impl Part {
    fn range(&self) -> &Range<usize> {
        match self {
            Part::Text(range) | Part::Token { range, .. } => range,
        }
    }
}

/// What is cached as one: text with no cutting token in it, or the id of a cutting token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    Text(Range<usize>),
    Id(u32),
}

/// The tokens of one stage: all found in one pass, leftmost first, longest first.
struct Stage {
    automaton: AhoCorasick,
    tokens: Vec<(u32, AddedToken)>,
}

impl Stage {
    /// None without tokens.
    fn new(tokens: Vec<(u32, AddedToken)>) -> Result<Option<Self>, String> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(_, token)| &token.content))
            .map_err(|error| format!("the added tokens make no automaton: {error}"))?;
        Ok(Some(Self { automaton, tokens }))
    }

    /// Appends the parts of `text[within]`. Of a token that takes the blanks at its side, the blanks are a
    /// part.
    fn split(&self, text: &str, within: Range<usize>, parts: &mut Vec<Part>) {
        let piece = &text[within.clone()];
        let mut done = 0;
        for found in self.automaton.find_iter(piece) {
            let (id, token) = &self.tokens[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            if token.lstrip {
                start = piece[..start].trim_end().len().max(done);
            }
            if token.rstrip {
                let rest = &piece[end..];
                end += rest.len() - rest.trim_start().len();
            }
            if done < start {
                parts.push(Part::Text(within.start + done..within.start + start));
            }
            let range = within.start + start..within.start + end;
            parts.push(Part::Token { id: *id, range, cut: cuts(token) });
            done = end;
        }
        if done != piece.len() {
            parts.push(Part::Text(within.start + done..within.end));
        }
    }
}

/// Do segments end at this token? At the marks of a chat template, not at the runs of blanks or pieces of
/// markup that some vocabularies have by the thousand: segments should be worth keeping.
fn cuts(token: &AddedToken) -> bool {
    token.special || (token.content.starts_with('<') && token.content.ends_with('>'))
}

/// Cuts texts for one tokenizer.
pub struct Splitter {
    /// Tokens that match raw text.
    raw: Option<Stage>,
    /// Tokens that match normalised text, where normalising changes nothing.
    plain: Option<Stage>,
}

impl Splitter {
    /// `identity`: the tokenizer does not normalise. None if texts cannot be cut.
    pub fn new(added: &[(u32, AddedToken)], identity: bool) -> Result<Option<Self>, String> {
        if added::entangled(added) {
            return Ok(None);
        }
        let (plain, raw) = added.iter().cloned().partition(|(_, token)| token.normalized);
        let plain = if identity { plain } else { Vec::new() };
        Ok(Some(Self { raw: Stage::new(raw)?, plain: Stage::new(plain)? }))
    }

    /// The parts of `text` in order.
    pub fn parts(&self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        match &self.raw {
            Some(stage) => stage.split(text, 0..text.len(), &mut parts),
            None => parts.push(Part::Text(0..text.len())),
        }
        let Some(stage) = &self.plain else { return parts };
        let mut finer = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Part::Text(range) => stage.split(text, range, &mut finer),
                token => finer.push(token),
            }
        }
        finer
    }

    /// The segments of `text` in order; none is empty.
    pub fn segments(&self, text: &str) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut open: Option<Range<usize>> = None;
        for part in self.parts(text) {
            match part {
                Part::Token { id, cut: true, .. } => {
                    segments.extend(open.take().map(Segment::Text));
                    segments.push(Segment::Id(id));
                }
                within => {
                    let start = open.map_or(within.range().start, |range| range.start);
                    open = Some(start..within.range().end);
                }
            }
        }
        segments.extend(open.map(Segment::Text));
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(content: &str) -> AddedToken {
        AddedToken {
            content: content.into(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
        }
    }

    fn segments(tokens: Vec<AddedToken>, identity: bool, text: &str) -> Vec<String> {
        let added: Vec<(u32, AddedToken)> = (0..).zip(tokens).collect();
        let splitter = Splitter::new(&added, identity).expect("an automaton").expect("cuts");
        let show = |segment: Segment| match segment {
            Segment::Text(range) => text[range].to_string(),
            Segment::Id(id) => format!("#{id}"),
        };
        splitter.segments(text).into_iter().map(show).collect()
    }

    #[test]
    fn special_tokens_cut_and_the_longest_wins() {
        let tokens = vec![token("<a>"), token("<a>b"), token("c<a>")];
        assert_eq!(
            segments(tokens.clone(), true, "x<a>y<a><a>bz"),
            ["x", "#0", "y", "#0", "#1", "z"]
        );
        assert_eq!(segments(tokens.clone(), true, "xc<a>b"), ["x", "#2", "b"]);
        assert_eq!(segments(tokens.clone(), true, "plain"), ["plain"]);
        assert!(segments(tokens, true, "").is_empty());
    }

    #[test]
    fn tokens_take_the_blanks_at_their_side() {
        let left = AddedToken { lstrip: true, ..token("<l>") };
        let right = AddedToken { rstrip: true, ..token("<r>") };
        let tokens = vec![left, right];
        assert_eq!(segments(tokens.clone(), true, "a \n<l> b"), ["a", "#0", " b"]);
        assert_eq!(segments(tokens.clone(), true, "a <r> \u{3000}b"), ["a ", "#1", "b"]);
        assert_eq!(segments(tokens, true, "<r>  <l>  "), ["#1", "#0", "  "]);
    }

    #[test]
    fn tokens_that_do_not_cut_stay_within_their_segment() {
        let blank = AddedToken { special: false, ..token("\n\n") };
        let think = AddedToken { special: false, ..token("<think>") };
        let text = "a\n\nb<think>\n\n<s>";
        assert_eq!(
            segments(vec![blank, think, token("<s>")], true, text),
            ["a\n\nb", "#1", "\n\n", "#2"]
        );
    }

    #[test]
    fn tokens_of_normalised_text_cut_only_where_nothing_is_normalised() {
        let user = AddedToken { normalized: true, ..token("<user>") };
        let tokens = vec![user, token("<s>")];
        assert_eq!(segments(tokens.clone(), true, "<s>a<user>b"), ["#1", "a", "#0", "b"]);
        assert_eq!(segments(tokens, false, "<s>a<user>b"), ["#1", "a<user>b"]);
    }

    #[test]
    fn entangled_tokens_are_not_cut_at() {
        let word = AddedToken { single_word: true, ..token("word") };
        assert!(Splitter::new(&[(0, word)], true).expect("no error").is_none());
    }
}
