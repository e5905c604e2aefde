//! The two libraries that turn text into ids, each behind a wall: no panic of theirs passes.
//!
//! `tokenizers` is what engines use and so the reference; `fastokens` is many times faster and takes most
//! of the tokenizers that matter.

use std::panic::{catch_unwind, AssertUnwindSafe};

use tokenizers::AddedToken as ReferenceToken;

use super::added::AddedToken;
use super::load::{Later, Source};

/// Runs `work`; a panic becomes an error.
fn walled<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text =
            text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Err(format!("it panicked: {text}"))
    })
}

pub struct Fast(fastokens::Tokenizer);

impl Fast {
    /// From `source`, whose JSON this takes. The error says what `fastokens` does not do.
    pub fn load(source: &mut Source) -> Result<Self, String> {
        if source.added.iter().any(|(_, token)| token.single_word) {
            return Err("added tokens that match single words only".into());
        }
        if source.first_differs {
            return Err("a Metaspace with the prepend scheme `first`".into());
        }
        let json = source.json.take();
        walled(|| {
            fastokens::Tokenizer::from_json(json).map(Self).map_err(|error| error.to_string())
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
