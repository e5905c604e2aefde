//! Reading a tokenizer's files, and what must be known of them whichever library encodes.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{json, Value};
use xxhash_rust::xxh3::xxh3_128;

use super::added::{self, AddedToken, Vocabulary};

/// Larger files are no tokenizers.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// A `tokenizer.json` and its neighbour `tokenizer_config.json`.
pub struct Source {
    pub path: PathBuf,
    /// Hash of the file, to notice when it was replaced between two reads.
    fingerprint: u128,
    /// The file with the ids that added tokens really get, and neither truncation nor padding: engines
    /// switch both off.
    pub json: Value,
    /// Added tokens with their ids.
    pub added: Vec<(u32, AddedToken)>,
    /// Those of them that only `tokenizer_config.json` asks for.
    pub extra: Vec<AddedToken>,
    /// Normalising changes no text.
    pub identity: bool,
    /// There is no normaliser, yet tokens for raw and for normalised text.
    pub mixed: bool,
    /// The text that starts a prompt is tokenised in another way than any other.
    pub first_differs: bool,
}

/// Reads `path`, a `tokenizer.json` or the folder that holds one.
pub fn read(path: &Path) -> Result<Source, String> {
    let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_path_buf() };
    let bytes = bytes(&path)?;
    let json: Value =
        serde_json::from_slice(&bytes).map_err(|error| format!("not JSON: {error}"))?;
    let config = match fs::read(path.with_file_name("tokenizer_config.json")) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| format!("`tokenizer_config.json` beside it is not JSON: {error}"))?,
        Err(_) => Value::Null,
    };
    Source::new(path, xxh3_128(&bytes), json, &config)
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("{size} bytes are too many for a tokenizer, at most {FILE_BYTES_MAX}"));
    }
    fs::read(path).map_err(|error| error.to_string())
}

impl Source {
    fn new(
        path: PathBuf,
        fingerprint: u128,
        mut json: Value,
        config: &Value,
    ) -> Result<Self, String> {
        let model =
            json.get("model").filter(|model| model.is_object()).ok_or("it has no `model`")?;
        if model.get("dropout").and_then(Value::as_f64).is_some_and(|dropout| dropout > 0.0) {
            return Err("`model.dropout` is set: its ids are random".into());
        }
        let listed = json.get("added_tokens").and_then(Value::as_array);
        let listed: Vec<AddedToken> =
            listed.map_or_else(Vec::new, |list| list.iter().filter_map(AddedToken::of).collect());
        let extra = added::of_config(config, &listed);
        let mixed_flags =
            |wanted: bool| listed.iter().chain(&extra).any(|t| t.normalized == wanted);
        let mixed = mixed_flags(true) && mixed_flags(false);
        let added = added::assign(&[listed, extra.clone()], &Vocabulary::of(model));
        let normalizer = json.get("normalizer").unwrap_or(&Value::Null);
        let (no_normalizer, identity) = (normalizer.is_null(), is_identity(normalizer));
        let first_differs = json.get("pre_tokenizer").is_some_and(has_first_metaspace);
        json["added_tokens"] = added.iter().map(|(id, token)| entry(*id, token)).collect();
        json["truncation"] = Value::Null;
        json["padding"] = Value::Null;
        let mixed = mixed && no_normalizer;
        Ok(Self { path, fingerprint, json, added, extra, identity, mixed, first_differs })
    }

    /// The file once more, and what is needed to load it later; frees the rest.
    pub fn into_later(self) -> Later {
        Later { path: self.path, fingerprint: self.fingerprint, extra: self.extra }
    }
}

/// A tokenizer's file that may be read again.
pub struct Later {
    path: PathBuf,
    fingerprint: u128,
    pub extra: Vec<AddedToken>,
}

impl Later {
    /// The bytes of the file. An error if it is not the same file any more.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        let bytes = bytes(&self.path)?;
        if xxh3_128(&bytes) != self.fingerprint {
            return Err("the file changed since it was loaded".into());
        }
        Ok(bytes)
    }
}

fn entry(id: u32, token: &AddedToken) -> Value {
    json!({
        "id": id,
        "content": token.content,
        "single_word": token.single_word,
        "lstrip": token.lstrip,
        "rstrip": token.rstrip,
        "normalized": token.normalized,
        "special": token.special,
    })
}

fn is_identity(normalizer: &Value) -> bool {
    match normalizer.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            let steps = normalizer.get("normalizers").and_then(Value::as_array);
            steps.is_some_and(|steps| steps.iter().all(is_identity))
        }
        Some(_) => false,
        None => normalizer.is_null(),
    }
}

/// Does a `Metaspace` put its mark before the first piece of a text only?
fn has_first_metaspace(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer.get("type").and_then(Value::as_str) {
        Some("Metaspace") => {
            pre_tokenizer.get("prepend_scheme").and_then(Value::as_str) == Some("first")
        }
        Some("Sequence") => {
            let steps = pre_tokenizer.get("pretokenizers").and_then(Value::as_array);
            steps.is_some_and(|steps| steps.iter().any(has_first_metaspace))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = r#"{"model": {"vocab": {"a": 0}}}"#;

    fn file(name: &str, content: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("kvgate-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for the test");
        fs::write(folder.join("tokenizer.json"), content).expect("a file for the test");
        folder
    }

    #[test]
    fn a_file_that_changed_is_not_mixed_with_what_it_was() {
        let folder = file("changed", MODEL);
        let later = read(&folder).expect("it can be read").into_later();
        assert_eq!(later.bytes().as_deref(), Ok(MODEL.as_bytes()));
        fs::write(folder.join("tokenizer.json"), "{}").expect("a file for the test");
        assert!(later.bytes().is_err_and(|error| error.contains("changed")));
        fs::remove_dir_all(folder).expect("the folder of the test");
        assert!(later.bytes().is_err());
    }

    #[test]
    fn truncation_and_padding_are_off_and_ids_those_of_the_vocabulary() {
        let json = r#"{"truncation": {"max_length": 5}, "padding": {}, "normalizer": null,
            "added_tokens": [{"id": 9, "content": "a", "special": true, "normalized": true},
                             {"id": 7, "content": "<b>", "normalized": false}],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}]},
            "model": {"vocab": {"a": 0}}}"#;
        let folder = file("steps", json);
        let source = read(&folder.join("tokenizer.json")).expect("it can be read");
        fs::remove_dir_all(folder).expect("the folder of the test");
        assert!(source.json["truncation"].is_null() && source.json["padding"].is_null());
        let ids: Vec<u32> = source.added.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [0, 1]);
        assert_eq!(source.json["added_tokens"][1]["id"], 1);
        assert!(source.identity && source.mixed && source.first_differs);
    }
}
