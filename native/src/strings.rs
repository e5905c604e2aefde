//! The insides of JSON strings: finding where plain text ends, and decoding escapes.

/// Position of the next quote, backslash or control character at or after `pos`.
///
/// Eight bytes at a time. Each test may be wrong only above a byte where it is right, so the lowest
/// bit set in their union is always exact.
pub fn plain_end(text: &[u8], mut pos: usize) -> usize {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    while let Some(chunk) = text.get(pos..pos + 8) {
        let x = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        let quote = x ^ (LOW * b'"' as u64);
        let slash = x ^ (LOW * b'\\' as u64);
        let hit = (quote.wrapping_sub(LOW) & !quote)
            | (slash.wrapping_sub(LOW) & !slash)
            | (x.wrapping_sub(LOW * 0x20) & !x);
        if hit & HIGH != 0 {
            return pos + ((hit & HIGH).trailing_zeros() / 8) as usize;
        }
        pos += 8;
    }
    while pos < text.len() && text[pos] >= 0x20 && text[pos] != b'"' && text[pos] != b'\\' {
        pos += 1;
    }
    pos
}

/// Decodes a string's inside (no quotes) that the cursor has accepted. A surrogate escape without its
/// other half becomes U+FFFD.
pub fn unescape(inner: &[u8]) -> String {
    let mut out = Vec::with_capacity(inner.len());
    let mut pos = 0;
    while pos < inner.len() {
        if inner[pos] != b'\\' {
            let end = plain_end(inner, pos);
            out.extend_from_slice(&inner[pos..end]);
            pos = end;
            continue;
        }
        let plain = match inner[pos + 1] {
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let (c, used) = unicode_escape(&inner[pos..]);
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                pos += used;
                continue;
            }
            other => other,
        };
        out.push(plain);
        pos += 2;
    }
    // Input was UTF-8 and was cut at ASCII bytes only.
    String::from_utf8(out).unwrap_or_default()
}

/// The character of a `\uXXXX` escape, or of a pair of them, and the bytes it took.
fn unicode_escape(text: &[u8]) -> (char, usize) {
    let first = hex4(text).unwrap_or(0xFFFD);
    if (0xD800..0xDC00).contains(&first) {
        if let Some(second @ 0xDC00..0xE000) = hex4(&text[6..]) {
            let code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
            return (char::from_u32(code).unwrap_or('\u{FFFD}'), 12);
        }
    }
    (char::from_u32(first).unwrap_or('\u{FFFD}'), 6)
}

fn hex4(text: &[u8]) -> Option<u32> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_end_finds_the_first_special_byte_at_every_offset() {
        for special in [b'"', b'\\', 0u8, 0x1f, b'\n'] {
            for at in 0..40 {
                for fill in [b'a', 0x20, 0x7f, 0x80, 0xff, b'!', b'#', b'[', b']'] {
                    let mut text = vec![fill; 48];
                    text[at] = special;
                    text[at + 1] = b'"';
                    for start in 0..=at {
                        assert_eq!(plain_end(&text, start), at);
                    }
                }
            }
        }
        assert_eq!(plain_end(b"abcdefghijk", 0), 11);
    }

    #[test]
    fn surrogates_decode_in_pairs_or_to_the_replacement_character() {
        assert_eq!(unescape(br"\ud83d\ude00"), "\u{1F600}");
        assert_eq!(unescape(br"\ud83dx"), "\u{FFFD}x");
        assert_eq!(unescape(br"\ude00\ud83d"), "\u{FFFD}\u{FFFD}");
        assert_eq!(unescape(br"\ud83d\u0041"), "\u{FFFD}A");
        assert_eq!(unescape(br"kv\u005ftransfer"), "kv_transfer");
    }
}
