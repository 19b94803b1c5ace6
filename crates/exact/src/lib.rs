//! Arithmetic on the program's own numbers, and the error for a broken invariant.
//!
//! Numbers from a disk, a stream or a user can have any value: code checks them with `checked_*`
//! and reports an ordinary error. The program's own numbers (positions in a buffer, counts of its
//! own lists, lengths that a check has bounded) obey invariants. A clamp would turn a broken
//! invariant into a plausible number. This crate has three answers instead:
//!
//! | situation | answer |
//! |---|---|
//! | continuing could lose data | [`Defect`], with the numbers: [`defect::add`], [`defect::take`], [`defect::usize_of`], [`copy_into`] |
//! | the result can only be wrong if another check is also wrong | [`Exact`]: debug builds assert, release builds stop at the bound |
//! | a sum may legitimately end at a bound (statistics, "all the rest") | `saturating_*`, with a comment `Clamp: …` that states the reason |
//!
//! Clamps: the behaviour of release builds.
#![forbid(unsafe_code)]

pub mod defect;

pub use defect::Defect;

use core::fmt::Display;
use core::ops::Range;

// Offsets in tree blocks are `u32`, and lengths in memory become `u64` on disk.
const _: () = assert!(usize::BITS >= u32::BITS && usize::BITS <= u64::BITS);

/// Returns a 32-bit size as a size in memory.
#[inline]
#[must_use]
pub const fn usize_of(value: u32) -> usize {
    // No size of any target is narrower (asserted above).
    value as usize
}

/// Returns a size in memory as a 64-bit number.
#[inline]
#[must_use]
pub const fn u64_of(value: usize) -> u64 {
    value as u64
}

/// Returns the smaller of a 64-bit length and a size in memory.
#[inline]
#[must_use]
pub fn at_most(value: u64, limit: usize) -> usize {
    match usize::try_from(value) {
        Ok(value) if value < limit => value,
        _ => limit,
    }
}

/// Copies `bytes` to `range` of `target`. The source bytes and the target range must have the same
/// length.
///
/// # Errors
/// Fails if `range` is not in `target`, or has another length than `bytes`. On an error, `target`
/// is unchanged.
#[inline]
pub fn copy_into(
    target: &mut [u8],
    range: Range<usize>,
    bytes: &[u8],
    what: &'static str,
) -> Result<(), Defect> {
    let target_bytes = target.len();
    match target.get_mut(range.clone()) {
        Some(place) if place.len() == bytes.len() => {
            place.copy_from_slice(bytes);
            Ok(())
        }
        _ => Err(Defect::new(what)
            .with("start", u64_of(range.start))
            .with("end", u64_of(range.end))
            .with("bytes", u64_of(bytes.len()))
            .with("target_bytes", u64_of(target_bytes))),
    }
}

/// Arithmetic whose result exists in every correct program.
///
/// Debug builds assert that the result exists. In release builds, the result stops at the type's
/// bound, like that of the `saturating_*` methods.
pub trait Exact: Copy + Display + PartialOrd {
    /// The largest value.
    const LARGEST: Self;

    /// Returns the sum.
    #[must_use]
    fn exact_add(self, more: Self) -> Self;

    /// Returns the difference. For unsigned numbers, `less` must not be larger than this number.
    #[must_use]
    fn exact_sub(self, less: Self) -> Self;

    /// Returns the product.
    #[must_use]
    fn exact_mul(self, factor: Self) -> Self;

    /// Returns this number divided by `by`, rounded down; `by` is not zero.
    #[must_use]
    fn quotient(self, by: Self) -> Self;

    /// Returns the remainder of the division by `by`, which is not zero.
    #[must_use]
    fn remainder(self, by: Self) -> Self;

    /// Returns the same number in another type, which must be able to hold it.
    #[inline]
    #[must_use]
    #[track_caller]
    fn narrow<T: Exact + TryFrom<Self>>(self) -> T {
        let narrow = T::try_from(self).ok();
        debug_assert!(narrow.is_some(), "{self} is larger than {}", T::LARGEST);
        narrow.unwrap_or(T::LARGEST)
    }
}

macro_rules! exact {
    ($($int:ident)*) => {$(
        impl Exact for $int {
            const LARGEST: Self = Self::MAX;

            #[inline]
            #[track_caller]
            fn exact_add(self, more: Self) -> Self {
                debug_assert!(self.checked_add(more).is_some(), "{self} + {more} is no {}", stringify!($int));
                self.saturating_add(more)
            }

            #[inline]
            #[track_caller]
            fn exact_sub(self, less: Self) -> Self {
                debug_assert!(self.checked_sub(less).is_some(), "{self} - {less} is no {}", stringify!($int));
                self.saturating_sub(less)
            }

            #[inline]
            #[track_caller]
            fn exact_mul(self, factor: Self) -> Self {
                debug_assert!(self.checked_mul(factor).is_some(), "{self} * {factor} is no {}", stringify!($int));
                self.saturating_mul(factor)
            }

            #[inline]
            #[track_caller]
            fn quotient(self, by: Self) -> Self {
                debug_assert!(by != 0, "{self} / 0");
                self.checked_div(by).unwrap_or(0)
            }

            #[inline]
            #[track_caller]
            fn remainder(self, by: Self) -> Self {
                debug_assert!(by != 0, "{self} % 0");
                self.checked_rem(by).unwrap_or(0)
            }
        }
    )*};
}

exact!(u8 u16 u32 u64 u128 usize i32 i64 i128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_results_are_those_of_plain_arithmetic() {
        assert_eq!(
            (3_u64.exact_add(4), 7_usize.exact_sub(7), 6_u32.exact_mul(7)),
            (7, 0, 42)
        );
        assert_eq!((17_u64.quotient(5), 17_u64.remainder(5)), (3, 2));
        assert_eq!((255_u64.narrow::<u8>(), usize_of(u32::MAX)), (255, 0xffff_ffff));
        assert_eq!((at_most(u64::MAX, 7), at_most(6, 7), at_most(7, 7)), (7, 6, 7));
    }

    /// Runs `wrong`, which panics in debug builds and returns `in_release` in others.
    fn expect_assertion<T: PartialEq + core::fmt::Debug>(wrong: fn() -> T, in_release: T) {
        let found = std::panic::catch_unwind(wrong);
        assert_eq!(found.is_err(), cfg!(debug_assertions));
        if let Ok(found) = found {
            assert_eq!(found, in_release);
        }
    }

    #[test]
    fn impossible_results_are_asserted_in_debug_builds() {
        expect_assertion(|| 2_u64.exact_sub(3), 0);
        expect_assertion(|| u64::MAX.exact_add(1), u64::MAX);
        expect_assertion(|| usize::MAX.exact_mul(2), usize::MAX);
        expect_assertion(|| 1_u64.quotient(0), 0);
        expect_assertion(|| 1_u64.remainder(0), 0);
        expect_assertion(|| 256_u64.narrow::<u8>(), 255);
    }

    #[test]
    fn bytes_of_another_length_are_not_copied() {
        let mut target = [0; 8];
        assert_eq!(copy_into(&mut target, 2..4, b"ab", "a piece"), Ok(()));
        assert_eq!(target, *b"\0\0ab\0\0\0\0");
        for (range, bytes) in [(2..5, &b"ab"[..]), (2..3, b"ab"), (7..9, b"ab"), (9..9, b"")] {
            let error = copy_into(&mut target, range.clone(), bytes, "a piece").unwrap_err();
            let numbers = format!("a piece (start {}, end {}", range.start, range.end);
            assert!(error.to_string().contains(&numbers), "{error}");
        }
        assert_eq!(target, *b"\0\0ab\0\0\0\0");
    }
}
