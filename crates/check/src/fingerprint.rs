//! Sums of hashes that show whether two sides state equal facts, without keeping the facts.
//!
//! Each fact (a reference, a name, a link) has a 64-bit hash. The first side of a comparison adds
//! the hash, the other subtracts it. Sums do not depend on order, so all cores can read the blocks
//! of a volume in any order. The facts of tree parts that several trees share are added once. A sum
//! of zero means that the sides agree, with an error chance of 1 in 2^64. The check collects and
//! compares the facts themselves only if a sum is not zero.
//!
//! A [`Ledger`] holds sums of hashes for ranges of addresses, so that few facts need to be
//! collected.
//!
//! The hashes mix well but are not secret. An attacker may craft a damaged volume that the check
//! reports as valid, with no other harm.

use buttress_exact::{Exact as _, u64_of};
use buttress_format::Logical;
use core::sync::atomic::{AtomicU64, Ordering};

/// The kind of a hashed fact: facts of different kinds never cancel out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Fact {
    /// A keyed reference to a tree block: address, tree.
    TreeBlock = 0xd6e8_feb8_6659_fd93,
    /// A full back reference to a tree block: address, parent.
    SharedBlock = 0xa076_1d64_78bd_642f,
    /// A keyed reference to data: address, length, tree, inode, offset.
    Data = 0xe703_7ed1_a0b4_28db,
    /// A full back reference to data: address, length, leaf.
    SharedData = 0x8ebc_6af0_9c88_c6e3,
    /// A tree block: address, level, generation.
    Block = 0x5899_65cc_7537_4cc3,
    /// A hard link of an inode: the inode.
    Link = 0x1d8e_4e27_c47d_124f,
    /// The file type of an inode, once for each link: inode, type.
    Kind = 0xeb44_acca_b455_d165,
    /// A byte of a directory's size: the directory.
    DirectorySize = 0x9c6e_6877_736c_46e3,
    /// A byte of a file's extents, as a fact: the inode.
    FileBytes = 0x3f84_d5b5_b547_0917,
    /// An inode without links: the inode.
    Orphan = 0xc2b2_ae3d_27d4_eb4f,
    /// A name as index and inode reference record it: directory, index, inode, name.
    Name = 0x27d4_eb2f_1656_67c5,
    /// An entry that both its index item and its hash item record: directory, location, type, name.
    Entry = 0x85eb_ca77_c2b2_ae63,
}

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the two halves of a product, folded into one word.
const fn fold(left: u64, right: u64) -> u64 {
    let product = (left as u128).wrapping_mul(right as u128);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let folded = (product as u64) ^ (product >> 64) as u64;
    folded
}

/// The hash of a fact, built word by word. A hash is always odd, so no multiple below 2^64 is zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash(u64);

impl Hash {
    pub(crate) const fn of(fact: Fact) -> Self {
        Self(fact as u64)
    }

    pub(crate) const fn number(self, number: u64) -> Self {
        Self(fold(self.0 ^ number, MULTIPLIER ^ self.0.rotate_left(29)).wrapping_add(number))
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let mut hash = self.number(bytes.len() as u64);
        let mut words = bytes.chunks_exact(8);
        for word in words.by_ref() {
            let mut number = [0; 8];
            number.copy_from_slice(word);
            hash = hash.number(u64::from_le_bytes(number));
        }
        let rest = words.remainder();
        if !rest.is_empty() {
            let mut number = [0; 8];
            for (to, from) in number.iter_mut().zip(rest) {
                *to = *from;
            }
            hash = hash.number(u64::from_le_bytes(number));
        }
        hash
    }

    pub(crate) const fn get(self) -> u64 {
        fold(self.0 ^ MULTIPLIER, self.0.rotate_left(32) | 1) | 1
    }

    /// Returns the hash multiplied by a count.
    pub(crate) const fn times(self, count: u64) -> u64 {
        self.get().wrapping_mul(count)
    }
}

/// The length of an address range with one sum of hashes, as a power of two.
const STRETCH_SHIFT: u32 = 20;

/// Sums of hashes by address. Several ranges may share one sum.
#[derive(Debug)]
pub(crate) struct Ledger {
    sums: Vec<AtomicU64>,
}

impl Ledger {
    /// Returns a ledger for a volume with this many bytes of extents: between 4,096 and 1,048,576
    /// sums.
    pub(crate) fn new(used_bytes: u64) -> Self {
        let count = (used_bytes >> STRETCH_SHIFT)
            .clamp(1 << 12, 1 << 20)
            .next_power_of_two();
        Self {
            sums: (0..count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns the number of sums.
    pub(crate) fn len(&self) -> u64 {
        u64_of(self.sums.len())
    }

    /// Returns the index of the sum that covers the address `logical`.
    pub(crate) fn place(&self, logical: Logical) -> usize {
        let mixed = fold((logical.get() >> STRETCH_SHIFT) ^ MULTIPLIER, MULTIPLIER | 1);
        let mask = self.sums.len().saturating_sub(1);
        mixed.narrow::<usize>() & mask
    }

    pub(crate) fn add(&self, logical: Logical, value: u64) {
        if let Some(sum) = self.sums.get(self.place(logical)) {
            sum.fetch_add(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn take(&self, logical: Logical, value: u64) {
        self.add(logical, value.wrapping_neg());
    }

    /// Returns the indexes of the sums that are not zero.
    pub(crate) fn differing(&self) -> Vec<usize> {
        let sums = self.sums.iter().enumerate();
        sums.filter(|(_, sum)| sum.load(Ordering::Relaxed) != 0)
            .map(|(place, _)| place)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn facts_do_not_cancel_by_chance() {
        let mut seen = HashSet::new();
        for fact in [Fact::TreeBlock, Fact::SharedBlock, Fact::Link, Fact::FileBytes] {
            for address in 0..2000_u64 {
                for other in [0, 1, 5, 256] {
                    let hash = Hash::of(fact).number(address << 12).number(other).get();
                    assert!(seen.insert(hash), "{fact:?} {address} {other}");
                }
            }
        }
    }

    #[test]
    fn names_of_all_lengths_differ() {
        let mut seen = HashSet::new();
        let mut name = Vec::new();
        for byte in 0..=255_u8 {
            assert!(seen.insert(Hash::of(Fact::Name).bytes(&name).get()));
            name.push(byte);
            let mut other = name.clone();
            other[usize::from(byte) / 2] ^= 1;
            assert!(seen.insert(Hash::of(Fact::Entry).bytes(&other).get()));
        }
    }

    #[test]
    fn ledger_balances_in_any_order_and_names_differences() {
        let ledger = Ledger::new(1 << 30);
        let facts: Vec<(Logical, u64)> = (0..5000_u64)
            .map(|number| {
                let logical = Logical::new(number * 16384);
                (
                    logical,
                    Hash::of(Fact::TreeBlock).number(number).times(number % 5),
                )
            })
            .collect();
        for (logical, value) in &facts {
            ledger.add(*logical, *value);
        }
        for (logical, value) in facts.iter().rev().skip(1) {
            ledger.take(*logical, *value);
        }
        let (last, value) = facts[4999];
        assert_eq!(ledger.differing(), [ledger.place(last)]);
        ledger.take(last, value);
        assert!(ledger.differing().is_empty());
    }
}
