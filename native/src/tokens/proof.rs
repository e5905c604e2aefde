//! Do both libraries normalise and split texts alike? Asked when a tokenizer is loaded.
//!
//! They run the same patterns on different regex engines, and those differ where patterns get rare. What
//! they differ in does not show before a text brings it up, so odd texts are tried at once.

use fastokens::pre_tokenized;
use serde_json::Value;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
};

use super::added::AddedToken;
use crate::hash::Random;

const TEXTS: u64 = 256;
const FRAGMENTS: u64 = 24;

/// What texts are made of: words, digits, blanks and line ends of all sorts, marks, letters of other
/// scripts, composed and decomposed, wide and astral ones, controls, and what looks like an added token.
const ODD: [&str; 60] = [
    "hello",
    " world",
    "The",
    " Quick",
    "ÉTÉ",
    "ǅ",
    "ß",
    "İ",
    "don't",
    "WE'LL",
    "'s",
    "x",
    "_",
    "$",
    "123",
    " 4567",
    "3.14",
    "Ⅷ",
    "½",
    "٣",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    " ",
    "  ",
    "   ",
    "\t",
    "\u{a0}",
    "\u{2028}",
    "\u{3000}",
    "\u{85}",
    "\u{b}",
    "\u{200b}",
    "\u{200d}",
    "\u{feff}",
    "\0",
    "\u{4}",
    "\u{7f}",
    "é",
    "e\u{301}",
    "\u{300}",
    "\u{1112}\u{1161}\u{11ab}",
    "한국",
    "这是",
    "、",
    "テスト",
    "ｆｕｌｌ",
    "مرحبا",
    "ไทย\u{e33}",
    "हिन्दी",
    "🙂",
    "👍🏽",
    "👨\u{200d}👩",
    "𝒳",
    "\u{10fffd}",
    "<|im_start|>",
    "</s>",
    "▁",
    "{\"a\": [1, 2]}",
];

fn texts() -> impl Iterator<Item = String> {
    let mut random = Random(7);
    (0..TEXTS).map(move |_| {
        let fragments = 1 + random.below(FRAGMENTS);
        (0..fragments).map(|_| ODD[random.below(ODD.len() as u64) as usize]).collect()
    })
}

/// Does a token of `added` normalise to nothing? `tokenizers` finds it everywhere, without end.
pub fn has_empty(normalizer: &Value, added: &[(u32, AddedToken)]) -> Result<bool, String> {
    let Some(normalizer) = serde_json::from_value::<Option<NormalizerWrapper>>(normalizer.clone())
        .map_err(|error| error.to_string())?
    else {
        return Ok(false);
    };
    for (_, token) in added.iter().filter(|(_, token)| token.normalized) {
        let mut content = NormalizedString::from(token.content.as_str());
        normalizer.normalize(&mut content).map_err(|error| error.to_string())?;
        if content.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Ok if `fast` does what the reference does with these steps of its file; else what differs.
pub fn alike(
    fast: &fastokens::Tokenizer,
    normalizer: Value,
    pre_tokenizer: Value,
) -> Result<(), String> {
    let told = |error: serde_json::Error| error.to_string();
    let normalizer: Option<NormalizerWrapper> = serde_json::from_value(normalizer).map_err(told)?;
    let splitter: Option<PreTokenizerWrapper> =
        serde_json::from_value(pre_tokenizer).map_err(told)?;
    for text in texts() {
        let mut normalized = NormalizedString::from(text.as_str());
        if let Some(normalizer) = &normalizer {
            normalizer.normalize(&mut normalized).map_err(|error| error.to_string())?;
        }
        let ours = match fast.normalizer() {
            Some(normalizer) => normalizer.normalize(&text).into_owned(),
            None => text,
        };
        if ours != normalized.get() {
            return Err("its normaliser does something else here".into());
        }
        if pieces(splitter.as_ref(), &ours)? != fast_pieces(fast.pre_tokenizer(), &ours)? {
            return Err("its pre-tokenizer splits texts in another way here".into());
        }
    }
    Ok(())
}

fn pieces(splitter: Option<&PreTokenizerWrapper>, text: &str) -> Result<Vec<String>, String> {
    let mut pieces = PreTokenizedString::from(text);
    if let Some(splitter) = splitter {
        splitter.pre_tokenize(&mut pieces).map_err(|error| error.to_string())?;
    }
    let pieces = pieces.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
    Ok(pieces.into_iter().map(|(piece, _, _)| piece.to_string()).collect())
}

fn fast_pieces(
    splitter: Option<&fastokens::PreTokenizer>,
    text: &str,
) -> Result<Vec<String>, String> {
    let mut pieces = pre_tokenized::PreTokenizedString::from_text(text);
    if let Some(splitter) = splitter {
        splitter.pre_tokenize(&mut pieces).map_err(|error| error.to_string())?;
    }
    Ok(pieces.splits().iter().map(|piece| pieces.split_text(piece).to_string()).collect())
}
