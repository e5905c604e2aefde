//! What an event says of a block besides its tokens: LoRA, cache salt, images, embeddings.
//!
//! vLLM puts one entry per block into `extra_keys`, null or a list without tags: the LoRA name, then
//! `[id, offset]` pairs of multimodal items, then the cache salt (first block of a prompt only), then
//! digests of prompt embeddings. (`to_event_extra_keys` in `vllm/v1/core/kv_cache_utils.py`)

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::blocks;
use crate::events::Stored;
use crate::msgpack::Reader;

const KEYS: u64 = 0x6b65_7973;

/// Reads an event's extra keys block by block, in order.
pub struct Keys<'a> {
    entries: Option<Reader<'a>>,
    left: usize,
    lora: Option<&'a [u8]>,
    /// True until the first block of a prompt has been read.
    first: bool,
    salt: Option<&'a [u8]>,
    /// True if anything but a LoRA name was found.
    pub special: bool,
}

impl<'a> Keys<'a> {
    pub fn of(event: &Stored<'a>) -> Self {
        let mut entries = event.extra_keys;
        let left = entries.as_mut().and_then(|entries| entries.array()).unwrap_or(0);
        let first = event.parent.is_none();
        Self { entries, left, lora: event.lora_name, first, salt: None, special: false }
    }

    /// The hash of the next block's own keys, LoRA and salt not included; 0 for none.
    pub fn read(&mut self) -> u64 {
        let first = std::mem::take(&mut self.first);
        let Some(entries) = self.entries.as_mut().filter(|_| self.left > 0) else { return 0 };
        self.left -= 1;
        if entries.nil() {
            return 0;
        }
        let mut hash = 0;
        let items = entries.array();
        let mut lora = self.lora;
        for _ in 0..items.unwrap_or(1) {
            let at = entries.at();
            let mut ahead = *entries;
            let text = ahead.text();
            if entries.skip().is_none() {
                self.left = 0;
                break;
            }
            if lora.is_some() && text == lora {
                lora = None;
            } else if first && items.is_some() && text.is_some() && self.salt.is_none() {
                self.salt = text;
                self.special = true;
            } else {
                hash = blocks::extend(hash, xxh3_64_with_seed(entries.since(at), KEYS));
                self.special = true;
            }
        }
        hash
    }

    /// What stands before a prompt's first block, whose own keys have been read: the scope that
    /// `blocks::scope` gives for the same LoRA and salt.
    pub fn root(&self, event: &Stored<'_>) -> u64 {
        let numbered = event.lora_id.map(|id| format!("#{id}"));
        let lora = match event.lora_name {
            Some(name) => String::from_utf8_lossy(name),
            // Only the number is known; no prompt can have this name, so nothing is credited.
            None => numbered.unwrap_or_default().into(),
        };
        let salt = self.salt.map(String::from_utf8_lossy);
        blocks::root(blocks::scope(Some(&lora), salt.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lora: Option<&'static str>, root: bool, keys: &'static [u8]) -> (Vec<u64>, u64, bool) {
        let event = Stored {
            lora_name: lora.map(str::as_bytes),
            parent: (!root).then_some(1),
            extra_keys: Some(Reader::new(keys)),
            ..Stored::default()
        };
        let mut reader = Keys::of(&event);
        let own = vec![reader.read(), reader.read()];
        (own, reader.root(&event), reader.special)
    }

    fn root(lora: Option<&str>, salt: Option<&str>) -> u64 {
        blocks::root(blocks::scope(lora, salt))
    }

    #[test]
    fn salt_and_lora_are_the_scope_and_no_keys_of_a_block() {
        assert_eq!(read(None, true, &[0x92, 0xc0, 0xc0]), (vec![0, 0], root(None, None), false));
        let salted = read(None, true, &[0x92, 0x91, 0xa1, b's', 0xc0]);
        assert_eq!(salted, (vec![0, 0], root(None, Some("s")), true));
        let lora = read(Some("l"), true, &[0x92, 0x91, 0xa1, b'l', 0x91, 0xa1, b'l']);
        assert_eq!(lora, (vec![0, 0], root(Some("l"), None), false));
        let both = read(Some("l"), true, &[0x92, 0x92, 0xa1, b'l', 0xa1, b's', 0x91, 0xa1, b'l']);
        assert_eq!(both, (vec![0, 0], root(Some("l"), Some("s")), true));
        let same = read(Some("l"), true, &[0x91, 0x92, 0xa1, b'l', 0xa1, b'l']);
        assert_eq!(same, (vec![0, 0], root(Some("l"), Some("l")), true));
    }

    #[test]
    fn images_and_digests_are_the_blocks_own() {
        let image = read(None, true, &[0x92, 0xc0, 0x91, 0x92, 0xa1, b'i', 5]);
        let other = read(None, true, &[0x92, 0xc0, 0x91, 0x92, 0xa1, b'i', 6]);
        assert!(image.0[0] == 0 && image.0[1] != 0 && image.0 != other.0 && image.2);
        let digest = read(None, true, &[0x91, 0x91, 0xc4, 1, 9]);
        assert!(digest.0[0] != 0 && digest.1 == root(None, None), "bytes are no salt");
        let late = read(None, false, &[0x91, 0x91, 0xa1, b's']);
        assert!(late.0[0] != 0, "only a prompt's first block has a salt");
    }

    #[test]
    fn what_is_odd_or_missing_is_no_key_or_a_key_of_its_own() {
        for keys in [&[0x90][..], &[0x07], &[0x92, 0x92, 0xa1], &[]] {
            assert_eq!(read(None, true, keys).0, [0, 0], "{keys:?}");
        }
        assert!(read(None, true, &[0x91, 0xa1, b's']).0[0] != 0);
    }
}
