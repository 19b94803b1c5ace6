//! An encoder of LZO1X: greedy, with one candidate match for each position.
//!
//! A table maps a hash of four bytes to their last position. If the four bytes at both positions
//! are equal, the encoder extends the match as far as possible. If a position has no match, the
//! encoder advances, in longer steps the more positions had none. Matches are at least four bytes
//! long and reach back up to [`DISTANCE_MAX`]. Length and distance select the instruction, by the
//! table in the documentation of the decoder. Incompressible content grows by one byte in 255, plus
//! the end mark.
//!
//! Streams begin with a literal, never with 17, which would announce the run-length extension.

use super::END_DISTANCE;
use buttress_exact::usize_of;

/// The maximum content of one stream. The table stores positions in 16 bits.
pub(in crate::compression) const CONTENT_BYTES_MAX: usize = 1 << 16;

/// The maximum distance in bytes from a match back to the content that it repeats.
const DISTANCE_MAX: usize = 49_151;
const WORD_BYTES: usize = 4;
const TABLE_BITS: u32 = 13;
/// The binary logarithm of the number of positions without a match that lengthens the step by one.
const STEP_SHIFT: u32 = 5;

/// The encoder with its table, kept from one stream to the next.
pub(in crate::compression) struct Encoder {
    places: Box<[u16]>,
}

impl Encoder {
    pub(in crate::compression) fn new() -> Self {
        Self {
            places: vec![0; 1 << TABLE_BITS].into_boxed_slice(),
        }
    }

    /// Appends the stream of `content` to `out`. Content beyond [`CONTENT_BYTES_MAX`] is encoded as
    /// literals.
    pub(in crate::compression) fn compress(&mut self, content: &[u8], out: &mut Vec<u8>) {
        self.places.fill(0);
        let mut stream = Stream {
            start: out.len(),
            out,
        };
        let searched = content.get(..CONTENT_BYTES_MAX).unwrap_or(content);
        let mut position = 0_usize;
        let mut literals_from = 0_usize;
        while let Some(word) = word_at(searched, position) {
            let Some(distance) = self.seen_before(searched, word, position) else {
                let tried = position.saturating_sub(literals_from);
                position = position.saturating_add(1).saturating_add(tried >> STEP_SHIFT);
                continue;
            };
            let length = common_length(searched, position.saturating_sub(distance), position);
            stream.literals(searched.get(literals_from..position).unwrap_or_default());
            stream.a_match(distance, length);
            position = position.saturating_add(length);
            literals_from = position;
        }
        stream.literals(content.get(literals_from..).unwrap_or_default());
        stream.out.extend_from_slice(&[0x11, 0, 0]);
    }

    /// Returns the distance to the last occurrence of the word at `position`, if the table holds
    /// one. Stores `position`.
    #[inline]
    fn seen_before(&mut self, content: &[u8], word: u32, position: usize) -> Option<usize> {
        let slot = usize::try_from(word.wrapping_mul(0x9e37_79b1) >> (u32::BITS - TABLE_BITS)).ok()?;
        let place = self.places.get_mut(slot)?;
        let before = usize::from(core::mem::replace(place, u16::try_from(position).ok()?));
        let distance = position.checked_sub(before)?;
        let is_near = (1..=DISTANCE_MAX).contains(&distance);
        (is_near && word_at(content, before) == Some(word)).then_some(distance)
    }
}

#[inline]
fn word_at(content: &[u8], position: usize) -> Option<u32> {
    let word = content.get(position..)?.first_chunk::<WORD_BYTES>()?;
    Some(u32::from_le_bytes(*word))
}

/// Returns how many bytes are equal from the offsets `earlier` and `later` of `content` on, up to
/// its end.
#[inline]
fn common_length(content: &[u8], earlier: usize, later: usize) -> usize {
    let later_part = content.get(later..).unwrap_or_default();
    let earlier_part = content.get(earlier..).unwrap_or_default();
    let mut length = 0_usize;
    let (own, _) = later_part.as_chunks::<8>();
    let (other, _) = earlier_part.as_chunks::<8>();
    for (own, other) in own.iter().zip(other) {
        let different = u64::from_le_bytes(*own) ^ u64::from_le_bytes(*other);
        if different != 0 {
            let same = usize_of(different.trailing_zeros() >> 3);
            return length.saturating_add(same);
        }
        length = length.saturating_add(8);
    }
    let rest = later_part
        .iter()
        .skip(length)
        .zip(earlier_part.iter().skip(length));
    length.saturating_add(rest.take_while(|(own, other)| own == other).count())
}

struct Stream<'a> {
    out: &'a mut Vec<u8>,
    /// The offset in `out` at which the stream begins.
    start: usize,
}

impl Stream<'_> {
    /// Writes the pending literals before a match or before the end.
    fn literals(&mut self, literals: &[u8]) {
        let count = literals.len();
        if count == 0 {
            return;
        }
        let is_first = self.out.len() == self.start;
        if let (true, Ok(few @ 1..=238)) = (is_first, u8::try_from(count)) {
            self.out.push(few.saturating_add(17));
        } else if let (false, Ok(few @ 1..=3)) = (is_first, u8::try_from(count)) {
            // The second byte from the end of every match instruction has two bits for the number
            // of literals that follow.
            let at = self.out.len().saturating_sub(2);
            if let Some(byte) = self.out.get_mut(at) {
                *byte |= few;
            }
        } else {
            self.number(0, 3, 15, count);
        }
        self.out.extend_from_slice(literals);
    }

    fn a_match(&mut self, distance: usize, length: usize) {
        let last = distance.saturating_sub(1);
        if length <= 8 && distance <= 2048 {
            // Lengths 3 and 4 have the code 01L, lengths 5 to 8 the code 1LL. In both instructions,
            // the length minus 1 begins at bit 5.
            let code = (length.saturating_sub(1) << 5) | ((last & 7) << 2);
            self.out.extend_from_slice(&[low(code), low(last >> 3)]);
        } else if distance <= END_DISTANCE {
            self.number(0x20, 2, 31, length);
            self.word(last << 2);
        } else {
            let beyond = distance.saturating_sub(END_DISTANCE);
            let far = (beyond >> 11) & 8;
            self.number(low(0x10 | far), 2, 7, length);
            self.word((beyond & 0x3fff) << 2);
        }
    }

    /// Writes a code with `number` minus `base` in its low bits, if it is between 1 and `most`.
    /// Otherwise the low bits are zero and an extension follows.
    fn number(&mut self, code: u8, base: usize, most: usize, number: usize) {
        let less = number.saturating_sub(base);
        if less <= most {
            self.out.push(code | low(less));
            return;
        }
        self.out.push(code);
        let mut rest = less.saturating_sub(most);
        while rest > 255 {
            self.out.push(0);
            rest = rest.saturating_sub(255);
        }
        self.out.push(low(rest));
    }

    fn word(&mut self, word: usize) {
        self.out.extend_from_slice(&[low(word), low(word >> 8)]);
    }
}

/// Returns the lowest eight bits.
fn low(number: usize) -> u8 {
    let [byte, ..] = number.to_le_bytes();
    byte
}
