//! Fills a mounted volume with every kind of file and metadata, from a seed.
//!
//! [`every_kind`] makes one of each kind of object in btrfs, with a name that identifies the kind
//! in a failure. [`random_tree`] grows a seeded random tree. [`many_names`] makes a directory of
//! more than 100,000 names, some of which collide in their hash. [`names_of_one_hash`] returns any
//! number of names with one hash. Equal seeds make equal calls; the kernel's layout on disk may
//! differ from run to run.

pub mod every_kind;
pub mod many_names;
pub mod names_of_one_hash;
pub mod random_tree;

/// A small seeded generator (splitmix64): sufficient for test data, and equal on all systems.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator whose numbers depend on `seed` only.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `[0, end)`; 0 for an empty range.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.number() % end }
    }

    /// Returns `true` once in `n` calls on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns `length` bytes: repeated words if `compressible`, otherwise noise.
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
