//! Parity of RAID5 and RAID6 rows.
//!
//! A row holds data blocks `D[0] … D[n-1]`, `P` and, for RAID6, `Q`, all of equal length:
//!
//! - `P = D[0] + D[1] + …`
//! - `Q = g^0·D[0] + g^1·D[1] + …`
//!
//! byte by byte in GF(2^8) with the polynomial `x^8 + x^4 + x^3 + x^2 + 1` (0x11d) and generator `g
//! = 2`, as in H. Peter Anvin, "The mathematics of RAID-6". Addition is XOR.
//!
//! Invariants: block order is column order (not device order: parity rotates over devices, see
//! [`crate::layout`]); `g` has order 255, so a RAID6 row has at most [`MAX_RAID6_DATA_BLOCKS`] data
//! blocks. The loops are plain byte loops over slices, in a form that the compiler vectorises. If
//! the blocks have unequal lengths, only the length of the shortest counts. Left out: reading and
//! writing rows.

/// The maximum number of data blocks for which the coefficients of `Q` are distinct.
pub const MAX_RAID6_DATA_BLOCKS: usize = 255;

/// The way to rebuild a block of a row from other blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// Rebuilds a column from the other data blocks and `P`.
    WithP,
    /// Rebuilds from the other data blocks and `Q`; `P` is not read.
    WithQ,
    /// Rebuilds from `P`, `Q` and the data blocks, without the block of column `other`, which may
    /// be bad too.
    WithPAndQ {
        /// The second column that is not read.
        other: usize,
    },
}

/// Returns `a · 2` in the Galois field of RAID6.
const fn double(a: u8) -> u8 {
    (a << 1) ^ (if a & 0x80 != 0 { 0x1d } else { 0 })
}

/// Returns `a · b`.
#[must_use]
pub const fn multiply(a: u8, b: u8) -> u8 {
    let mut product = 0;
    let mut term = a;
    let mut rest = b;
    while rest != 0 {
        if rest & 1 != 0 {
            product ^= term;
        }
        term = double(term);
        rest >>= 1;
    }
    product
}

/// Returns `g^exponent`.
#[must_use]
pub fn power_of_generator(exponent: usize) -> u8 {
    (0..exponent % 255).fold(1, |value, _| double(value))
}

/// Returns the inverse of `a` in GF(2^8), or 0 for 0, which has no inverse.
#[must_use]
pub fn invert(a: u8) -> u8 {
    // a^255 = 1, so a^254 is the inverse.
    (0..254).fold(u8::from(a != 0), |value, _| multiply(value, a))
}

/// Computes `into += block`.
pub fn add(into: &mut [u8], block: &[u8]) {
    for (byte, other) in into.iter_mut().zip(block) {
        *byte ^= other;
    }
}

/// Returns `a / 2`.
const fn halve(a: u8) -> u8 {
    (a >> 1) ^ (if a & 1 != 0 { 0x8e } else { 0 })
}

/// Computes `block *= factor`. The first columns use low powers of the generator and their
/// inverses, which are cheap to multiply.
fn scale(block: &mut [u8], factor: u8) {
    let inverse = invert(factor);
    if factor.is_power_of_two() {
        for _ in 0..factor.trailing_zeros() {
            block.iter_mut().for_each(|byte| *byte = double(*byte));
        }
    } else if inverse.is_power_of_two() {
        for _ in 0..inverse.trailing_zeros() {
            block.iter_mut().for_each(|byte| *byte = halve(*byte));
        }
    } else {
        scale_by_any(block, factor);
    }
}

fn scale_by_any(block: &mut [u8], factor: u8) {
    let masks: [u8; 8] = core::array::from_fn(|bit| if factor >> bit & 1 != 0 { u8::MAX } else { 0 });
    for byte in block {
        let mut term = *byte;
        let mut product = 0;
        for mask in masks {
            product ^= term & mask;
            term = double(term);
        }
        *byte = product;
    }
}

/// Computes `into = into·2 + block`: one step of evaluating `Q` by Horner's rule, from the last
/// column down.
fn double_and_add(into: &mut [u8], block: &[u8]) {
    for (byte, other) in into.iter_mut().zip(block) {
        *byte = double(*byte) ^ other;
    }
}

/// Computes `P` of the data blocks in column order.
pub fn compute_p<'a>(data: impl IntoIterator<Item = &'a [u8]>, p: &mut [u8]) {
    p.fill(0);
    for block in data {
        add(p, block);
    }
}

/// Computes `Q` of the data blocks in column order. `None` stands for a block of zeros.
pub fn compute_q<'a, I>(data: I, q: &mut [u8])
where
    I: IntoIterator<Item = Option<&'a [u8]>>,
    I::IntoIter: DoubleEndedIterator,
{
    q.fill(0);
    for block in data.into_iter().rev() {
        match block {
            Some(block) => double_and_add(q, block),
            None => q.iter_mut().for_each(|byte| *byte = double(*byte)),
        }
    }
}

/// A row of which some blocks were read. Slots of blocks that `recovery` does not need may be
/// `None`.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Data blocks in column order.
    pub data: Vec<Option<&'a [u8]>>,
    /// Parity `P`.
    pub p: Option<&'a [u8]>,
    /// Parity `Q`.
    pub q: Option<&'a [u8]>,
}

impl Row<'_> {
    /// Rebuilds the data block of column `target` into `out`. Does not read the block in that slot.
    ///
    /// Returns `None` and leaves arbitrary bytes in `out` if a block that `recovery` needs is
    /// absent. Also returns `None` if `target` is not a column, or if the second column is the
    /// target itself.
    pub fn rebuild(&self, target: usize, recovery: Recovery, out: &mut [u8]) -> Option<()> {
        let columns = self.data.len();
        let second = match recovery {
            Recovery::WithPAndQ { other } => Some(other),
            Recovery::WithP | Recovery::WithQ => None,
        };
        if target >= columns || second.is_some_and(|other| other >= columns || other == target) {
            return None;
        }
        let trusted = |column: usize| column != target && Some(column) != second;
        if self
            .data
            .iter()
            .enumerate()
            .any(|(column, block)| trusted(column) && block.is_none())
        {
            return None;
        }
        let present = self
            .data
            .iter()
            .enumerate()
            .map(|(column, block)| block.filter(|_| trusted(column)));
        match recovery {
            Recovery::WithP => {
                compute_p(present.flatten(), out);
                add(out, self.p?);
            }
            Recovery::WithQ => {
                compute_q(present, out);
                add(out, self.q?);
                scale(out, invert(power_of_generator(target)));
            }
            Recovery::WithPAndQ { other } => {
                // With A = D[x] + D[y] and B = g^x·D[x] + g^y·D[y]:  D[x] = (B + g^y·A) / (g^x +
                // g^y).
                let mut sum = vec![0; out.len()];
                compute_p(present.clone().flatten(), &mut sum);
                add(&mut sum, self.p?);
                compute_q(present, out);
                add(out, self.q?);
                let (x, y) = (power_of_generator(target), power_of_generator(other));
                scale(&mut sum, y);
                add(out, &sum);
                scale(out, invert(x ^ y));
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Multiplies by long division: a carry-less product, then a reduction modulo 0x11d.
    fn multiply_by_long_division(a: u8, b: u8) -> u8 {
        let mut product = (0..8)
            .filter(|bit| b >> bit & 1 != 0)
            .fold(0u16, |sum, bit| sum ^ u16::from(a) << bit);
        for bit in (8..16).rev() {
            if product >> bit & 1 != 0 {
                product ^= 0x11d << (bit - 8);
            }
        }
        u8::try_from(product).unwrap()
    }

    #[test]
    fn the_field_is_the_one_of_the_polynomial() {
        for a in 0..=u8::MAX {
            for b in 0..=u8::MAX {
                assert_eq!(multiply(a, b), multiply_by_long_division(a, b), "{a} * {b}");
                let mut block = [a];
                scale(&mut block, b);
                assert_eq!(block[0], multiply(a, b), "{a} * {b}");
            }
            assert_eq!(multiply(a, invert(a)), u8::from(a != 0), "{a}");
        }
        let powers: std::collections::BTreeSet<u8> = (0..255).map(power_of_generator).collect();
        assert_eq!(powers.len(), 255, "the generator has full order");
        assert_eq!(power_of_generator(8), 0x1d);
        assert_eq!(power_of_generator(255), 1);
    }

    fn rows() -> impl Strategy<Value = Vec<Vec<u8>>> {
        (1usize..9, 1usize..100).prop_flat_map(|(columns, length)| {
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), length), columns)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn q_is_the_sum_of_scaled_blocks(data in rows()) {
            let mut q = vec![0; data[0].len()];
            compute_q(data.iter().map(|block| Some(block.as_slice())), &mut q);
            for (position, byte) in q.iter().enumerate() {
                let sum = data.iter().enumerate()
                    .fold(0, |sum, (column, block)| sum ^ multiply(power_of_generator(column), block[position]));
                prop_assert_eq!(*byte, sum);
            }
        }

        #[test]
        fn any_two_lost_blocks_are_rebuilt(data in rows()) {
            let length = data[0].len();
            let (mut p, mut q) = (vec![0; length], vec![0; length]);
            compute_p(data.iter().map(Vec::as_slice), &mut p);
            compute_q(data.iter().map(|block| Some(block.as_slice())), &mut q);
            let noise = vec![0x5a; length];
            for target in 0..data.len() {
                let mut row = Row {
                    data: data.iter().map(|block| Some(block.as_slice())).collect(),
                    p: Some(&p),
                    q: None,
                };
                row.data[target] = None;
                let mut out = vec![1; length];
                prop_assert!(row.rebuild(target, Recovery::WithP, &mut out).is_some());
                prop_assert_eq!(&out, &data[target]);
                prop_assert!(row.rebuild(target, Recovery::WithQ, &mut out).is_none(), "no Q was given");

                row.p = None;
                row.q = Some(&q);
                prop_assert!(row.rebuild(target, Recovery::WithQ, &mut out).is_some());
                prop_assert_eq!(&out, &data[target]);

                row.p = Some(&p);
                for other in (0..data.len()).filter(|other| *other != target) {
                    let kept = row.data[other];
                    // The rebuild must ignore the noise in the untrusted column.
                    row.data[other] = Some(&noise);
                    out.fill(2);
                    let recovery = Recovery::WithPAndQ { other };
                    prop_assert!(row.rebuild(target, recovery, &mut out).is_some());
                    prop_assert_eq!(&out, &data[target]);
                    row.data[other] = kept;
                }
            }
        }
    }

    #[test]
    fn rebuild_fails_without_a_needed_block() {
        let block = [1u8; 4];
        let row = Row {
            data: vec![None, Some(&block), None],
            p: Some(&block),
            q: Some(&block),
        };
        let mut out = [0; 4];
        assert!(row.rebuild(0, Recovery::WithP, &mut out).is_none());
        assert!(
            row.rebuild(0, Recovery::WithPAndQ { other: 2 }, &mut out)
                .is_some()
        );
        assert!(
            row.rebuild(0, Recovery::WithPAndQ { other: 0 }, &mut out)
                .is_none()
        );
        assert!(
            row.rebuild(0, Recovery::WithPAndQ { other: 9 }, &mut out)
                .is_none()
        );
        assert!(row.rebuild(3, Recovery::WithP, &mut out).is_none());
    }
}
