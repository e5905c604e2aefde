//! Reading MessagePack in place. Every read says None where the bytes are not what was asked for or
//! end too early; nothing is allocated, and no input panics or recurses.

/// Of numbers of up to 32 bits that are not negative, by first byte: bytes taken (0 for other values),
/// and the shifts, left then right, that make the number of the eight bytes that begin with it.
static WIDTHS: [[u8; 3]; 256] = {
    let mut widths = [[0, 0, 32]; 256];
    let mut byte = 0;
    while byte < 0x80 {
        widths[byte] = [1, 0, 56];
        byte += 1;
    }
    widths[0xcc] = [2, 8, 56];
    widths[0xcd] = [3, 8, 48];
    widths[0xce] = [5, 8, 32];
    widths
};

/// A cursor. After a read that failed its place is where it was.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// What lies between an earlier place and this one.
    pub fn since(&self, at: usize) -> &'a [u8] {
        &self.bytes[at..self.at]
    }

    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The big-endian number of `N` bytes that starts `after` bytes from here.
    #[inline]
    fn number<const N: usize>(&self, after: usize) -> Option<u64> {
        let bytes = self.bytes.get(self.at + after..)?.first_chunk::<N>()?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    #[inline]
    fn taken<T>(&mut self, bytes: usize, value: T) -> Option<T> {
        self.at += bytes;
        Some(value)
    }

    /// Takes a nil, if there is one.
    #[inline]
    pub fn nil(&mut self) -> bool {
        let is = self.peek() == Some(0xc0);
        self.at += usize::from(is);
        is
    }

    /// A number that is not negative, of any width.
    #[inline]
    pub fn unsigned(&mut self) -> Option<u64> {
        match self.peek()? {
            byte @ 0..=0x7f => self.taken(1, u64::from(byte)),
            0xcc => self.number::<1>(1).and_then(|it| self.taken(2, it)),
            0xcd => self.number::<2>(1).and_then(|it| self.taken(3, it)),
            0xce => self.number::<4>(1).and_then(|it| self.taken(5, it)),
            0xcf => self.number::<8>(1).and_then(|it| self.taken(9, it)),
            0xd0..=0xd3 => {
                let mut ahead = *self;
                let value = u64::try_from(ahead.signed()?).ok()?;
                *self = ahead;
                Some(value)
            }
            _ => None,
        }
    }

    /// Takes small non-negative numbers, up to `most` of them, for as long as the next is one of at most
    /// 32 bits and is not near the end of the bytes. Hands each to `take`.
    ///
    /// Widths in a list of token ids are as good as random, so no branch is made on them: the next
    /// eight bytes are shifted by what a table says of the first.
    #[inline]
    pub fn run(&mut self, most: usize, mut take: impl FnMut(u32)) -> usize {
        let mut taken = 0;
        while taken < most {
            let Some(word) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>())
            else {
                break;
            };
            let [len, left, right] = WIDTHS[word[0] as usize];
            if len == 0 {
                break;
            }
            take((u64::from_be_bytes(*word) << left >> right) as u32);
            self.at += len as usize;
            taken += 1;
        }
        taken
    }

    /// A number that fits into i64.
    pub fn signed(&mut self) -> Option<i64> {
        match self.peek()? {
            byte @ 0xe0..=0xff => self.taken(1, i64::from(byte as i8)),
            0xd0 => self.number::<1>(1).and_then(|it| self.taken(2, i64::from(it as i8))),
            0xd1 => self.number::<2>(1).and_then(|it| self.taken(3, i64::from(it as i16))),
            0xd2 => self.number::<4>(1).and_then(|it| self.taken(5, i64::from(it as i32))),
            0xd3 => self.number::<8>(1).and_then(|it| self.taken(9, it as i64)),
            0..=0x7f | 0xcc..=0xcf => {
                let mut ahead = *self;
                let value = i64::try_from(ahead.unsigned()?).ok()?;
                *self = ahead;
                Some(value)
            }
            _ => None,
        }
    }

    /// A floating-point number, or a whole one.
    pub fn float(&mut self) -> Option<f64> {
        match self.peek()? {
            0xca => {
                let bits = self.number::<4>(1)?;
                self.taken(5, f64::from(f32::from_bits(bits as u32)))
            }
            0xcb => self.number::<8>(1).and_then(|it| self.taken(9, f64::from_bits(it))),
            0xcf => self.unsigned().map(|it| it as f64),
            _ => self.signed().map(|it| it as f64),
        }
    }

    /// The bytes of a string or of binary data.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let (head, len) = match self.peek()? {
            byte @ 0xa0..=0xbf => (1, u64::from(byte & 31)),
            0xc4 | 0xd9 => (2, self.number::<1>(1)?),
            0xc5 | 0xda => (3, self.number::<2>(1)?),
            0xc6 | 0xdb => (5, self.number::<4>(1)?),
            _ => return None,
        };
        let start = self.at + head;
        let bytes = self.bytes.get(start..)?.get(..len as usize)?;
        self.taken(head + len as usize, bytes)
    }

    /// The bytes of a string, not of binary data.
    pub fn text(&mut self) -> Option<&'a [u8]> {
        match self.peek()? {
            0xa0..=0xbf | 0xd9..=0xdb => self.bytes(),
            _ => None,
        }
    }

    /// The head of an array: how many items follow.
    #[inline]
    pub fn array(&mut self) -> Option<usize> {
        match self.peek()? {
            byte @ 0x90..=0x9f => self.taken(1, usize::from(byte & 15)),
            0xdc => self.number::<2>(1).and_then(|it| self.taken(3, it as usize)),
            0xdd => self.number::<4>(1).and_then(|it| self.taken(5, it as usize)),
            _ => None,
        }
    }

    /// The head of a map: how many pairs follow.
    pub fn map(&mut self) -> Option<usize> {
        match self.peek()? {
            byte @ 0x80..=0x8f => self.taken(1, usize::from(byte & 15)),
            0xde => self.number::<2>(1).and_then(|it| self.taken(3, it as usize)),
            0xdf => self.number::<4>(1).and_then(|it| self.taken(5, it as usize)),
            _ => None,
        }
    }

    /// Passes over one value, whatever is in it. None if the bytes end within it, or are none.
    pub fn skip(&mut self) -> Option<()> {
        let mut ahead = *self;
        // Values still to pass; a count of items that cannot be there ends at the end of the bytes.
        let mut left = 1u64;
        while left > 0 {
            left -= 1;
            if let Some(items) = ahead.array() {
                left += items as u64;
            } else if let Some(pairs) = ahead.map() {
                left += 2 * pairs as u64;
            } else if ahead.bytes().is_none() {
                ahead.skip_scalar()?;
            }
        }
        *self = ahead;
        Some(())
    }

    fn skip_scalar(&mut self) -> Option<()> {
        let len = match self.peek()? {
            0..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 1,
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 | 0xd4 => 3,
            0xd5 => 4,
            0xca | 0xce | 0xd2 => 5,
            0xd6 => 6,
            0xcb | 0xcf | 0xd3 => 9,
            0xd7 => 10,
            0xd8 => 18,
            0xc7 => 3 + self.number::<1>(1)? as usize,
            0xc8 => 4 + self.number::<2>(1)? as usize,
            0xc9 => 6 + self.number::<4>(1)? as usize,
            _ => return None,
        };
        self.bytes.get(self.at..)?.get(..len)?;
        self.taken(len, ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;

    #[test]
    fn numbers_of_every_width_and_sign() {
        let unsigned = |bytes: &[u8]| Reader::new(bytes).unsigned();
        let signed = |bytes: &[u8]| Reader::new(bytes).signed();
        assert_eq!(unsigned(&[0x7f]), Some(127));
        assert_eq!(unsigned(&[0xcc, 200]), Some(200));
        assert_eq!(unsigned(&[0xcd, 1, 0]), Some(256));
        assert_eq!(unsigned(&[0xce, 0, 1, 0, 0]), Some(65536));
        assert_eq!(unsigned(&[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]), Some(u64::MAX));
        assert_eq!(unsigned(&[0xd1, 0, 9]), Some(9));
        assert_eq!(unsigned(&[0xd0, 0xff]), None);
        assert_eq!(unsigned(&[0xff]), None);
        assert_eq!(signed(&[0xff]), Some(-1));
        assert_eq!(signed(&[0xd3, 255, 255, 255, 255, 255, 255, 255, 254]), Some(-2));
        assert_eq!(signed(&[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]), None);
        assert_eq!(Reader::new(&[0xca, 0x3f, 0x80, 0, 0]).float(), Some(1.0));
        assert_eq!(Reader::new(&[0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0]).float(), Some(1.0));
        assert_eq!(Reader::new(&[5]).float(), Some(5.0));
    }

    #[test]
    fn a_run_of_numbers_is_what_reading_them_one_by_one_gives() {
        let mut random = Random(9);
        for _ in 0..500 {
            let mut bytes = Vec::new();
            for _ in 0..random.below(20) {
                let value = random.below(1 << 33) >> random.below(33);
                match random.below(6) {
                    0 => bytes.push(value as u8 & 0x7f),
                    1 => bytes.extend([0xcc, value as u8]),
                    2 => bytes.extend([&[0xcd][..], &(value as u16).to_be_bytes()].concat()),
                    3 => bytes.extend([&[0xce][..], &(value as u32).to_be_bytes()].concat()),
                    4 => bytes.extend([&[0xcf][..], &value.to_be_bytes()].concat()),
                    _ => bytes.extend([&[0xce][..], &(value as u32).to_be_bytes()].concat()),
                }
            }
            let (mut fast, mut slow) = (Reader::new(&bytes), Reader::new(&bytes));
            let mut run = Vec::new();
            let most = random.below(20) as usize;
            assert_eq!(fast.run(most, |value| run.push(value)), run.len());
            assert!(run.len() <= most);
            let one_by_one: Vec<_> = run.iter().map_while(|_| slow.unsigned()).collect();
            assert_eq!(run.iter().map(|it| u64::from(*it)).collect::<Vec<_>>(), one_by_one);
            assert_eq!(fast.at(), slow.at());
            if run.len() < most && fast.left() >= 8 {
                assert_eq!(fast.peek(), Some(0xcf), "only what is wider ends a run early");
            }
        }
    }

    #[test]
    fn what_is_cut_short_is_refused_and_the_place_kept() {
        let whole: &[&[u8]] = &[
            &[0xcf, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xa3, b'a', b'b', b'c'],
            &[0xc4, 2, 1, 2],
            &[0x92, 1, 0x81, 0xa1, b'k', 0xc0],
            &[0xc7, 2, 1, 9, 9],
            &[0xd8; 18],
        ];
        for bytes in whole {
            let mut reader = Reader::new(bytes);
            assert_eq!((reader.skip(), reader.at()), (Some(()), bytes.len()));
            for end in 0..bytes.len() {
                let mut reader = Reader::new(&bytes[..end]);
                assert_eq!((reader.skip(), reader.at()), (None, 0), "{bytes:?} cut at {end}");
            }
        }
    }

    #[test]
    fn deep_and_boastful_input_ends() {
        assert_eq!(Reader::new(&[0x91; 100_000]).skip(), None);
        let mut deep = vec![0x91; 100_000];
        deep.push(1);
        assert_eq!(Reader::new(&deep).skip(), Some(()));
        assert_eq!(Reader::new(&[0xdd, 255, 255, 255, 255, 1]).skip(), None);
        assert_eq!(Reader::new(&[0xdf, 255, 255, 255, 255, 1]).skip(), None);
        assert_eq!(Reader::new(&[0xc6, 255, 255, 255, 255, 1]).bytes(), None);
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = Random(7);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random.below(40)).map(|_| random.below(256) as u8).collect();
            let mut reader = Reader::new(&bytes);
            while reader.skip().is_some() {}
            for read in 0..6 {
                let mut reader = Reader::new(&bytes);
                match read {
                    0 => drop(reader.unsigned()),
                    1 => drop(reader.signed()),
                    2 => drop(reader.float()),
                    3 => drop(reader.bytes()),
                    4 => drop(reader.array()),
                    _ => drop(reader.map()),
                }
                assert!(reader.at() <= bytes.len());
            }
        }
    }
}
