//! The added tokens of a tokenizer: their texts, flags and ids, as the `tokenizers` library settles them.
//!
//! The ids in `tokenizer.json` are a note, not the truth: the library takes a token's id from the model's
//! vocabulary where it is there, and counts on from the end where it is not. Whatever else reads the file
//! must be told those ids.

use std::collections::HashMap;

use serde_json::Value;

/// An added token. Flags as in `tokenizer.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedToken {
    pub content: String,
    pub single_word: bool,
    pub lstrip: bool,
    pub rstrip: bool,
    pub normalized: bool,
    pub special: bool,
}

impl AddedToken {
    /// A special token known by its text alone.
    fn named(content: &str) -> Self {
        Self {
            content: content.to_string(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
        }
    }

    /// From an entry of `added_tokens` or `added_tokens_decoder`; None if it has no text.
    pub fn of(entry: &Value) -> Option<Self> {
        let content = entry.get("content")?.as_str()?.to_string();
        let flag = |name: &str| entry.get(name).and_then(Value::as_bool);
        let special = flag("special").unwrap_or(false);
        Some(Self {
            content,
            single_word: flag("single_word").unwrap_or(false),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
            normalized: flag("normalized").unwrap_or(!special),
            special,
        })
    }
}

/// Can one token take what belongs to another? Then neither where texts can be cut nor what `fastokens`
/// makes of them is simple: a token that takes blanks at its side meets one with a blank at its edge, or
/// one matches depending on what follows.
pub fn entangled(added: &[(u32, AddedToken)]) -> bool {
    let blank = |token: &AddedToken| token.content.trim().len() != token.content.len();
    let any = |is: &dyn Fn(&AddedToken) -> bool| added.iter().any(|(_, token)| is(token));
    any(&|token| token.single_word) || (any(&|token| token.lstrip || token.rstrip) && any(&blank))
}

/// Names of special tokens in `tokenizer_config.json`, in the order in which `transformers` adds them.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The tokens that `transformers` adds for a `tokenizer_config.json`, beyond those of `tokenizer.json`:
/// changed or new ones of `added_tokens_decoder` by index, then special tokens that are only named.
pub fn of_config(config: &Value, known: &[AddedToken]) -> Vec<AddedToken> {
    let mut added = Vec::new();
    if let Some(decoder) = config.get("added_tokens_decoder").and_then(Value::as_object) {
        let mut entries: Vec<(u64, AddedToken)> = decoder
            .iter()
            .filter_map(|(index, entry)| Some((index.parse().ok()?, AddedToken::of(entry)?)))
            .filter(|(_, token)| !known.contains(token))
            .collect();
        entries.sort_by_key(|(index, _)| *index);
        added.extend(entries.into_iter().map(|(_, token)| token));
    }
    let mut name = |content: &str| {
        let is = |token: &AddedToken| token.content == content;
        if !content.is_empty() && !known.iter().any(is) && !added.iter().any(is) {
            added.push(AddedToken::named(content));
        }
    };
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        other => other.get("content").and_then(Value::as_str).map(str::to_string),
    };
    for key in NAMED {
        config.get(key).and_then(text).iter().for_each(|content| name(content));
    }
    for key in ["extra_special_tokens", "additional_special_tokens"] {
        match config.get(key) {
            Some(Value::Array(all)) => {
                all.iter().filter_map(text).for_each(|content| name(&content))
            }
            Some(Value::Object(all)) => {
                all.values().filter_map(text).for_each(|content| name(&content))
            }
            _ => {}
        }
    }
    added
}

/// Texts to ids of a model, as far as added tokens need it.
pub struct Vocabulary<'a> {
    model: &'a Value,
    /// Pieces of a Unigram model, which are a list.
    pieces: HashMap<&'a str, u32>,
    pub size: u32,
}

impl<'a> Vocabulary<'a> {
    pub fn of(model: &'a Value) -> Self {
        let vocab = model.get("vocab").unwrap_or(&Value::Null);
        let mut pieces = HashMap::new();
        if let Some(list) = vocab.as_array() {
            let text = |piece: &'a Value| piece.get(0).and_then(Value::as_str);
            pieces =
                list.iter().enumerate().filter_map(|(i, p)| Some((text(p)?, i as u32))).collect();
        }
        let size = vocab.as_object().map_or(pieces.len(), |map| map.len()) as u32;
        Self { model, pieces, size }
    }

    fn id(&self, text: &str) -> Option<u32> {
        if let Some(id) = self.pieces.get(text) {
            return Some(*id);
        }
        self.model.get("vocab")?.get(text)?.as_u64()?.try_into().ok()
    }
}

/// Added tokens with their ids, in the order of `tokens`; a later token replaces an earlier one of the
/// same id, and its flags win. `tokenizers` adds tokens batch by batch, and counts ids on in each.
pub fn assign(batches: &[Vec<AddedToken>], vocabulary: &Vocabulary) -> Vec<(u32, AddedToken)> {
    let mut settled: Vec<(u32, AddedToken)> = Vec::new();
    let mut ids: HashMap<String, u32> = HashMap::new();
    let mut places: HashMap<u32, usize> = HashMap::new();
    for batch in batches {
        let mut next = match settled.iter().map(|(id, _)| *id).max() {
            Some(most) if most >= vocabulary.size || vocabulary.size == 0 => most + 1,
            _ => vocabulary.size,
        };
        for token in batch.iter().filter(|token| !token.content.is_empty()) {
            let known = ids.get(&token.content).copied().or_else(|| vocabulary.id(&token.content));
            let id = known.unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            ids.insert(token.content.clone(), id);
            match places.get(&id) {
                Some(&place) => settled[place].1 = token.clone(),
                None => {
                    places.insert(id, settled.len());
                    settled.push((id, token.clone()));
                }
            }
        }
    }
    settled
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn token(content: &str) -> AddedToken {
        AddedToken::named(content)
    }

    #[test]
    fn ids_come_from_the_vocabulary_or_count_on_from_its_end() {
        let model = json!({"vocab": {"a": 0, "<s>": 1, "b": 2}});
        let vocabulary = Vocabulary::of(&model);
        let batches =
            [vec![token("<s>"), token("<x>"), token("<y>")], vec![token("<z>"), token("<x>")]];
        let ids: Vec<(u32, String)> =
            assign(&batches, &vocabulary).into_iter().map(|(id, t)| (id, t.content)).collect();
        let expected =
            [(1, "<s>"), (3, "<x>"), (4, "<y>"), (5, "<z>")].map(|(id, t)| (id, t.to_string()));
        assert_eq!(ids, expected);
    }

    #[test]
    fn tokens_are_entangled_through_blanks_and_words() {
        let all = |tokens: Vec<AddedToken>| entangled(&(0..).zip(tokens).collect::<Vec<_>>());
        let right = AddedToken { rstrip: true, ..token("<r>") };
        assert!(!all(vec![right.clone(), token("<s>")]));
        assert!(!all(vec![token("\n\n"), token("<s>")]));
        assert!(all(vec![right, token(" x")]));
        assert!(all(vec![AddedToken { single_word: true, ..token("word") }]));
    }

    #[test]
    fn a_list_of_pieces_is_a_vocabulary_too() {
        let model = json!({"vocab": [["<unk>", 0.0], ["▁a", -1.5]]});
        let vocabulary = Vocabulary::of(&model);
        assert_eq!((vocabulary.id("▁a"), vocabulary.size), (Some(1), 2));
        assert_eq!(vocabulary.id("b"), None);
    }

    #[test]
    fn a_config_adds_what_the_tokenizer_lacks() {
        let known = [token("<s>"), token("</s>")];
        let config = json!({
            "added_tokens_decoder": {
                "11": {"content": "<b>", "special": true, "normalized": false},
                "9": {"content": "<a>", "special": false, "normalized": false, "rstrip": true},
                "1": {"content": "<s>", "special": true, "normalized": false}
            },
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "<eos>", "normalized": true},
            "pad_token": null,
            "extra_special_tokens": {"image_token": "<image>"},
            "additional_special_tokens": ["<b>", "<c>"]
        });
        let added = of_config(&config, &known);
        let texts: Vec<&str> = added.iter().map(|t| t.content.as_str()).collect();
        assert_eq!(texts, ["<a>", "<b>", "<eos>", "<image>", "<c>"]);
        assert!(added[0].rstrip && !added[0].special);
    }
}
