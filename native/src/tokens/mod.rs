//! Text to token ids, as the engine does it, at a cost that grows with new text only.
//!
//! The ids are those of the `tokenizers` library for the whole text, always: `fastokens` encodes where it
//! takes the tokenizer and the text, and texts are cut only where that cannot be seen in the ids.

pub mod added;
pub mod cache;
mod library;
pub mod load;
mod proof;
pub mod split;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

use cache::Cache;
use library::{Fast, Reference};
use load::Later;
use split::{Part, Segment, Splitter};

/// Which library encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// `fastokens`, or `tokenizers` where it refuses.
    Auto,
    /// `tokenizers`, always.
    Reference,
    /// `tokenizers` on the whole text, cut nowhere, nothing kept: what the others must equal.
    Whole,
}

/// A prompt's text that only shows how fast encoding is; several scripts, code and marks.
const SAMPLE: &str =
    "You are a helpful assistant.\n\n    def add(a: int, b: int) -> int:\n        \
    return a + b  # 1 + 2 == 3\n{\"name\": \"value\", \"list\": [1.5, null, true]}\n\
    Что это? 这是什么？ これは何ですか。 هذا اختبار 🙂 naïve café — “quoted”…\r\n\t<b>x</b>";

enum Failure {
    /// The text cannot be cut here after all.
    Uncut,
    Encode(String),
}

/// A loaded tokenizer; threads share it.
pub struct Tokenizer {
    fast: Option<Fast>,
    /// Why `fastokens` does not encode.
    refused: Option<String>,
    later: Later,
    reference: OnceLock<Result<Reference, String>>,
    /// None: this tokenizer's texts cannot be cut.
    splitter: Option<Splitter>,
    /// `fastokens` must see the parts of a segment one by one.
    by_part: bool,
    /// A token to put before a segment, so that it is not the first of the text.
    marker: Option<(String, u32)>,
    first_differs: bool,
    /// Ids around every prompt with special tokens; None if it is not that simple.
    affixes: Option<(Vec<u32>, Vec<u32>)>,
    cache: Cache,
    fallbacks: AtomicU64,
    failures: AtomicU64,
}

impl Tokenizer {
    /// Loads `path`, a `tokenizer.json` or its folder. The error says what is wrong with the file.
    pub fn load(path: &Path, cache_bytes: usize, choice: Choice) -> Result<Self, String> {
        let mut source = load::read(path)?;
        library::check(&source)?;
        let fast = match choice {
            Choice::Auto => Fast::load(&mut source),
            Choice::Reference | Choice::Whole => Err("not asked for".into()),
        };
        let (fast, refused) = match fast {
            Ok(fast) => (Some(fast), None),
            Err(why) => (None, Some(why)),
        };
        let reference = OnceLock::new();
        let mut splitter = Splitter::new(&source.added, source.identity)?;
        let safe = |(_, token): &&(u32, added::AddedToken)| {
            !(token.lstrip || token.rstrip || token.normalized || token.single_word)
        };
        let marker = source.added.iter().find(safe).map(|(id, token)| (token.content.clone(), *id));
        let (added, by_part) = (std::mem::take(&mut source.added), source.mixed);
        let first_differs = source.first_differs;
        if choice == Choice::Whole || (first_differs && marker.is_none()) {
            splitter = None;
        }
        let cache_bytes = if choice == Choice::Whole { 0 } else { cache_bytes };
        let later = source.into_later();
        let whole = fast.as_ref().is_some_and(|fast| fast.encode(&every_byte(), false).is_ok());
        if !whole {
            // It will be needed, and then there is no time to load it.
            let loaded = Reference::load(&later).map_err(|error| {
                let refused = refused.as_deref().unwrap_or_default();
                format!("no library loads it: tokenizers: {error}; fastokens: {refused}")
            })?;
            if !loaded.agrees(&added) {
                splitter = None;
            }
            reference.get_or_init(|| Ok(loaded));
        }
        let mut tokenizer = Self {
            fast,
            refused,
            later,
            reference,
            splitter,
            by_part,
            marker,
            first_differs,
            affixes: None,
            cache: Cache::new(cache_bytes),
            fallbacks: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        };
        if choice != Choice::Whole {
            tokenizer.affixes = tokenizer.find_affixes();
        }
        give_back();
        Ok(tokenizer)
    }

    pub fn kind(&self) -> &'static str {
        if self.fast.is_some() {
            "fastokens"
        } else {
            "tokenizers"
        }
    }

    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Encodes a sample, so that the calling thread's tables are there when a request comes.
    pub fn warm(&self) -> Result<(), String> {
        self.engine(SAMPLE, false).map(drop)
    }

    /// Ids of `text`; `add_special_tokens` as the tokenizer's post-processor has it. The error says why
    /// no library encodes it.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let ids = match (&self.affixes, add_special_tokens) {
            (Some((before, after)), true) => {
                let mut ids = Vec::with_capacity(capacity(text));
                ids.extend_from_slice(before);
                self.inner(text, &mut ids).map(|()| {
                    ids.extend_from_slice(after);
                    ids
                })
            }
            (None, true) => self.engine(text, true),
            (_, false) => {
                let mut ids = Vec::with_capacity(capacity(text));
                self.inner(text, &mut ids).map(|()| ids)
            }
        };
        if ids.is_err() {
            self.failures.fetch_add(1, Relaxed);
        }
        ids
    }

    /// Bytes of `text` that are in no cached segment.
    pub fn cold_bytes(&self, text: &str) -> usize {
        let Some(segments) = self.segments(text) else {
            return if self.cache.holds(text, true) { 0 } else { text.len() };
        };
        let cold = |segment: &Segment| match segment {
            Segment::Id(_) => 0,
            Segment::Text(range) => {
                let held = self.cache.holds(&text[range.clone()], self.is_first(range.start));
                if held {
                    0
                } else {
                    range.len()
                }
            }
        };
        segments.iter().map(cold).sum()
    }

    pub fn usage(&self) -> cache::Use {
        self.cache.usage()
    }

    /// Segments that `fastokens` could not encode and `tokenizers` could.
    pub fn fallbacks(&self) -> u64 {
        self.fallbacks.load(Relaxed)
    }

    /// Texts that none could encode.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Appends the ids of `text`, without special tokens around it.
    fn inner(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), String> {
        let from = ids.len();
        match self.by_segments(text, ids) {
            Err(Failure::Encode(error)) => Err(error),
            Ok(()) => Ok(()),
            Err(Failure::Uncut) => {
                ids.truncate(from);
                ids.extend_from_slice(&self.engine(text, false)?);
                Ok(())
            }
        }
    }

    fn by_segments(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Failure> {
        let Some(segments) = self.segments(text) else {
            return self.cache.through(text, true, ids, |ids| {
                ids.extend_from_slice(&self.engine(text, false).map_err(Failure::Encode)?);
                Ok(())
            });
        };
        for segment in segments {
            match segment {
                Segment::Id(id) => ids.push(id),
                Segment::Text(range) => {
                    let first = self.is_first(range.start);
                    let text = &text[range];
                    self.cache.through(text, first, ids, |ids| self.segment(text, first, ids))?;
                }
            }
        }
        Ok(())
    }

    fn segments(&self, text: &str) -> Option<Vec<Segment>> {
        Some(self.splitter.as_ref()?.segments(text))
    }

    fn is_first(&self, start: usize) -> bool {
        self.first_differs && start == 0
    }

    /// Appends the ids of a segment that is not cached.
    fn segment(&self, text: &str, first: bool, ids: &mut Vec<u32>) -> Result<(), Failure> {
        let Some((marker, id)) = self.marker.as_ref().filter(|_| self.first_differs && !first)
        else {
            let parts = self.splitter.as_ref().filter(|_| self.by_part && self.fast.is_some());
            let encoded = match parts.map(|splitter| splitter.parts(text)) {
                Some(parts) => self.parts(text, parts),
                None => self.engine(text, false),
            };
            ids.extend_from_slice(&encoded.map_err(Failure::Encode)?);
            return Ok(());
        };
        let marked = self.engine(&format!("{marker}{text}"), false).map_err(Failure::Encode)?;
        match marked.split_first() {
            Some((first, rest)) if first == id => {
                ids.extend_from_slice(rest);
                Ok(())
            }
            // The marker and the text make another token together.
            _ => Err(Failure::Uncut),
        }
    }

    fn parts(&self, text: &str, parts: Vec<Part>) -> Result<Vec<u32>, String> {
        let mut ids = Vec::with_capacity(capacity(text));
        for part in parts {
            match part {
                Part::Token { id, .. } => ids.push(id),
                Part::Text(range) => ids.extend_from_slice(&self.engine(&text[range], false)?),
            }
        }
        Ok(ids)
    }

    /// Ids of `text` by the fast library, else by the reference.
    fn engine(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        if let Some(fast) = &self.fast {
            if let Ok(ids) = fast.encode(text, add_special_tokens) {
                return Ok(ids);
            }
            self.fallbacks.fetch_add(1, Relaxed);
        }
        let reference = self.reference.get_or_init(|| Reference::load(&self.later));
        reference.as_ref().map_err(Clone::clone)?.encode(text, add_special_tokens)
    }

    /// Ids that the post-processor puts before and after every text; None if probes do not agree.
    fn find_affixes(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let around = self.engine("", true).ok()?;
        let mut places: Vec<usize> = (0..=around.len()).collect();
        for probe in ["a", "0 b"] {
            let (plain, full) = (self.engine(probe, false).ok()?, self.engine(probe, true).ok()?);
            places.retain(|&place| full == [&around[..place], &plain, &around[place..]].concat());
        }
        let place = *places.first()?;
        Some((around[..place].to_vec(), around[place..].to_vec()))
    }
}

/// A text in which every byte occurs that may occur in one.
fn every_byte() -> String {
    let planes = (0x1000..0x11_0000).step_by(0x1000);
    (0..0x900).chain(planes).filter_map(char::from_u32).collect()
}

/// Returns to the system what reading the file took: several times its size.
fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it only releases free memory at the end of the allocator's arenas.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Ids that `text` may have: about one per three bytes.
fn capacity(text: &str) -> usize {
    text.len() / 3 + 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_text_is_probed() {
        let text = every_byte();
        let missing =
            (0..=255u8).filter(|byte| !text.as_bytes().contains(byte)).collect::<Vec<_>>();
        let never: Vec<u8> = [0xc0, 0xc1].into_iter().chain(0xf5..=0xff).collect();
        assert_eq!(missing, never);
    }
}
