//! Fills a mounted volume with every kind of file and metadata, from a seed.
//!
//! Three parts: [`every_kind`] plants one of each thing that btrfs can hold (by name, so that a failure
//! says what is broken); [`random_tree`] grows a seeded random tree; [`many_names`] makes one directory of
//! more than 100,000 names, some of which collide in their hash; [`names_of_one_hash`] are any number of names that all do.
//! The same seed makes the same calls; the
//! kernel's layout on disk may differ from run to run.

pub mod every_kind;
pub mod many_names;
pub mod names_of_one_hash;
pub mod random_tree;

/// A small seeded generator (splitmix64): enough for test data, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that always gives the same numbers for `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `[0, end)`; 0 for an empty range.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.number() % end }
    }

    /// `true` once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns `length` bytes; `compressible` content repeats words, other content is noise.
    pub fn bytes(&mut self, length: usize, compressible: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 16);
        while bytes.len() < length {
            let number = self.number();
            if compressible {
                let words: [&[u8]; 8] = [
                    b"stripe ",
                    b"chunk ",
                    b"leaf ",
                    b"cursor\n",
                    b"snapshot ",
                    b"extent ",
                    b"block group ",
                    b"mirror ",
                ];
                let count = 1 + (number >> 8) % 6;
                for _ in 0..count {
                    bytes.extend_from_slice(words[(number % 8) as usize]);
                }
            } else {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        bytes.truncate(length);
        bytes
    }
}
