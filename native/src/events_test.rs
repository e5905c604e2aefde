use super::*;
use crate::hash::Random;

/// Writes MessagePack, for tests.
fn text(out: &mut Vec<u8>, text: &str) {
    out.extend([0xd9, text.len() as u8]);
    out.extend(text.as_bytes());
}

fn numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    out.push(0xdc);
    out.extend((numbers.len() as u16).to_be_bytes());
    for number in numbers {
        out.push(0xcf);
        out.extend(number.to_be_bytes());
    }
}

fn batch(events: &[Vec<u8>], rest: &[u8]) -> Vec<u8> {
    let mut out = vec![0x92 + u8::from(!rest.is_empty())];
    out.push(0xcb);
    out.extend(12.5f64.to_be_bytes());
    out.push(0x90 + events.len() as u8);
    out.extend(events.concat());
    out.extend(rest);
    out
}

fn removed(hashes: &[u64]) -> Vec<u8> {
    let mut out = vec![0x82];
    text(&mut out, "type");
    text(&mut out, "BlockRemoved");
    text(&mut out, "block_hashes");
    numbers(&mut out, hashes);
    out
}

fn collect(payload: &[u8]) -> (Vec<String>, Header) {
    let mut seen = Vec::new();
    let header = Decoder::default().decode(payload, |event| {
        seen.push(match event {
            Event::Stored(it) => format!(
                "stored {:?} after {:?} tokens {:?} of {} {:?} {:?} {:?} group {:?} {:?} {} {:?}",
                it.hashes,
                it.parent,
                it.tokens,
                it.block_size,
                it.lora_id,
                it.lora_name.map(String::from_utf8_lossy),
                it.place.medium.map(String::from_utf8_lossy),
                it.place.group,
                it.kind.map(String::from_utf8_lossy),
                it.window,
                it.session.map(String::from_utf8_lossy),
            ),
            Event::Removed(hashes, place) => format!("removed {hashes:?} group {:?}", place.group),
            Event::Cleared => "cleared".into(),
            Event::Other => "other".into(),
        });
    });
    (seen, header)
}

#[test]
fn a_map_and_an_array_say_the_same() {
    let mut map = vec![0x8d];
    for (key, value) in [
        ("token_ids", vec![0x92, 7, 0xcd, 1, 0]),
        ("type", [&[0xab][..], b"BlockStored"].concat()),
        ("block_hashes", vec![0x91, 0xd3, 255, 255, 255, 255, 255, 255, 255, 255]),
        ("parent_block_hash", vec![0x05]),
        ("block_size", vec![0x02]),
        ("lora_id", vec![0x03]),
        ("medium", vec![0xa3, b'C', b'P', b'U']),
        ("lora_name", vec![0xa1, b'L']),
        ("a key of tomorrow", vec![0x81, 0xa1, b'x', 0x92, 1, 2]),
        ("group_idx", vec![0x01]),
        ("kv_cache_spec_kind", vec![0xa1, b'K']),
        ("kv_cache_spec_sliding_window", vec![0xcc, 128]),
        ("session_id", vec![0xa1, b'S']),
    ] {
        text(&mut map, key);
        map.extend(value);
    }
    let array = [
        &[0xdc, 0, 17, 0xab][..],
        b"BlockStored",
        &[0x91, 0xd3, 255, 255, 255, 255, 255, 255, 255, 255, 5, 0x92, 7, 0xcd, 1, 0, 2, 3],
        &[0xa3, b'C', b'P', b'U', 0xa1, b'L', 0xc0, 1, 0xa1, b'K', 0xcc, 128, 0xc0, 0xc0],
        &[0xa1, b'S', 0xc3, 0x91, 9],
    ]
    .concat();
    let (events, header) = collect(&batch(&[map, array], &[0x03]));
    assert_eq!((header.ts, header.rank, header.faults), (12.5, Some(3), [0; 4]));
    assert_eq!(events.len(), 2);
    assert_eq!(events[0], events[1]);
    assert_eq!(
        events[0],
        "stored [18446744073709551615] after Some(5) tokens [7, 256] of 2 Some(3) Some(\"L\") \
         Some(\"CPU\") group Some(1) Some(\"K\") 128 Some(\"S\")"
    );
}

#[test]
fn an_old_short_event_and_a_batch_of_two_are_taken() {
    let short = [&[0x96, 0xab][..], b"BlockStored", &[0x91, 1, 0xc0, 0x91, 9, 1, 0xc0]].concat();
    let cleared = [&[0x91, 0xb0][..], b"AllBlocksCleared"].concat();
    let (events, header) = collect(&batch(&[short, cleared], &[]));
    assert_eq!(header.rank, None);
    assert!(events[0].starts_with("stored [1] after None tokens [9] of 1 None"));
    assert_eq!(events[1], "cleared");
}

#[test]
fn long_hashes_are_their_last_eight_bytes() {
    let mut long = vec![0xc4, 32];
    long.extend(0u8..32);
    assert_eq!(hash(&mut Reader::new(&long)), Some(0x18191a1b1c1d1e1f));
    assert_eq!(hash(&mut Reader::new(&[0xc4, 2, 1, 2])), Some(0x102));
    assert_eq!(hash(&mut Reader::new(&[0xc4, 0])), None);
    assert_eq!(hash(&mut Reader::new(&[0xc0])), None);
}

#[test]
fn one_bad_event_does_not_take_the_others_with_it() {
    let mut wrong_field = vec![0x82];
    text(&mut wrong_field, "type");
    text(&mut wrong_field, "BlockRemoved");
    text(&mut wrong_field, "block_hashes");
    wrong_field.push(0xc3);
    let no_event = vec![0x07];
    let nameless = vec![0x80];
    let other = [&[0x91, 0xa1][..], b"?"].concat();
    let good = removed(&[1, 2]);
    let events = [good.clone(), wrong_field, no_event, nameless, other, good];
    let (seen, header) = collect(&batch(&events, &[0xc0, 0xc3]));
    assert_eq!(seen, ["removed [1, 2] group None", "other", "removed [1, 2] group None"]);
    assert_eq!(header.faults, [0, 0, 2, 1]);
}

#[test]
fn a_batch_cut_short_gives_what_came_whole() {
    let payload = batch(&[removed(&[1]), removed(&[2])], &[]);
    let (seen, header) = collect(&payload[..payload.len() - 1]);
    assert_eq!(seen, ["removed [1] group None"]);
    assert_eq!(header.faults, [1, 0, 0, 0]);
    for bad in [&[][..], &[0xc0], &[0x91, 1], &[0x92, 0xc0, 0x90], &[0x92, 1, 2]] {
        assert_eq!(collect(bad).1.faults, [0, 1, 0, 0], "{bad:?}");
    }
}

#[test]
fn tokens_outside_u32_make_a_field_bad() {
    let event = |token: &[u8]| {
        [&[0x95, 0xab][..], b"BlockStored", &[0x91, 1, 0xc0, 0x91], token, &[1]].concat()
    };
    for token in [&[0xff][..], &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0], &[0xca, 0, 0, 0, 0], &[0xc0]] {
        let (seen, header) = collect(&batch(&[event(token)], &[]));
        assert_eq!((seen.len(), header.faults), (0, [0, 0, 0, 1]), "{token:?}");
    }
}

/// Random bytes, and good batches with bytes changed, cut out and put in.
#[test]
fn no_input_panics() {
    let mut random = Random(3);
    let stored = [
        &[0x9c, 0xab][..],
        b"BlockStored",
        &[0x92, 1, 2, 0xc0, 0x94, 9, 9, 9, 9, 2, 0xc0, 0xa3, b'G', b'P', b'U', 0xc0],
        &[0x92, 0xc0, 0x91, 0xa1, b's', 0, 0xa1, b'f', 0xc0],
    ]
    .concat();
    let good = batch(&[removed(&[1, 2, 3]), stored, removed(&[4])], &[0x00]);
    let mut decoder = Decoder::default();
    let mut events = 0;
    for round in 0..60_000 {
        let mut payload = match round % 4 {
            0 => (0..random.below(60)).map(|_| random.below(256) as u8).collect(),
            _ => good.clone(),
        };
        for _ in 0..random.below(4) {
            if payload.is_empty() {
                break;
            }
            let at = random.below(payload.len() as u64) as usize;
            match random.below(4) {
                0 => drop(payload.remove(at)),
                1 => payload.insert(at, random.below(256) as u8),
                2 => payload.truncate(at),
                _ => payload[at] = random.below(256) as u8,
            }
        }
        decoder.decode(&payload, |_| events += 1);
    }
    assert!(events > 30_000, "mutations leave most events whole: {events}");
}
