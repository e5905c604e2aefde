//! The two libraries that turn text into ids, each behind a wall: no panic of theirs passes.
//!
//! `tokenizers` is what engines use and so the reference; `fastokens` is many times faster and takes most
//! of the tokenizers that matter.

use std::cell::Cell;
use std::panic::{catch_unwind, set_hook, take_hook, AssertUnwindSafe};
use std::sync::Once;

use serde_json::Value;
use tokenizers::AddedToken as ReferenceToken;

use super::added::{self, AddedToken};
use super::load::{Later, Source};
use super::proof;

thread_local! {
    static WALLED: Cell<bool> = const { Cell::new(false) };
}

/// Panics behind the wall are neither printed nor told: their messages may hold a piece of a prompt.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |panic| {
            if !WALLED.get() {
                report(panic);
            }
        }));
    });
}

/// Runs `work`; a panic becomes an error.
fn walled<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    keep_quiet();
    let outer = WALLED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    WALLED.set(outer);
    done.unwrap_or_else(|_| Err("the library failed on it".into()))
}

/// An error if the libraries would not do with `source` at all.
pub fn check(source: &Source) -> Result<(), String> {
    let normalizer = source.json.get("normalizer").unwrap_or(&Value::Null);
    match walled(|| proof::has_empty(normalizer, &source.added))? {
        true => Err("an added token normalises to nothing".into()),
        false => Ok(()),
    }
}

pub struct Fast(fastokens::Tokenizer);

impl Fast {
    /// From `source`, whose JSON this takes. The error says what `fastokens` does not do.
    pub fn load(source: &mut Source) -> Result<Self, String> {
        if added::entangled(&source.added) {
            return Err("added tokens that take from each other".into());
        }
        if source.first_differs {
            return Err("a Metaspace with the prepend scheme `first`".into());
        }
        let json = source.json.take();
        let step = |name: &str| json.get(name).cloned().unwrap_or_default();
        let (normalizer, pre_tokenizer) = (step("normalizer"), step("pre_tokenizer"));
        walled(|| {
            let fast = fastokens::Tokenizer::from_json(json).map_err(|error| error.to_string())?;
            proof::alike(&fast, normalizer, pre_tokenizer)?;
            Ok(Self(fast))
        })
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let encode = || self.0.encode_with_special_tokens(text, add_special_tokens);
        walled(|| encode().map_err(|error| error.to_string()))
    }
}

pub struct Reference(tokenizers::Tokenizer);

impl Reference {
    pub fn load(source: &Later) -> Result<Self, String> {
        let bytes = source.bytes()?;
        walled(|| {
            let mut tokenizer =
                tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
            tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
            tokenizer.with_padding(None);
            let extra = source.extra.iter().map(reference_token);
            tokenizer.add_tokens(extra).map_err(|error| error.to_string())?;
            Ok(Self(tokenizer))
        })
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        walled(|| {
            let encoding = self.0.encode_fast(text, add_special_tokens);
            Ok(encoding.map_err(|error| error.to_string())?.get_ids().to_vec())
        })
    }

    /// Has it these added tokens, with these ids, and no others?
    pub fn agrees(&self, added: &[(u32, AddedToken)]) -> bool {
        let own = self.0.get_added_tokens_decoder();
        let same = |(id, token): &(u32, AddedToken)| own.get(id) == Some(&reference_token(token));
        own.len() == added.len() && added.iter().all(same)
    }
}

fn reference_token(token: &AddedToken) -> ReferenceToken {
    ReferenceToken {
        content: token.content.clone(),
        single_word: token.single_word,
        lstrip: token.lstrip,
        rstrip: token.rstrip,
        normalized: token.normalized,
        special: token.special,
    }
}
