//! Replacements of names of at least five bytes: the same length and the same hash.
//!
//! All bytes but the last four are pseudorandom, and the last four are solved
//! ([`super::algebra`]). Two of the free bytes count up from random ones until the solved bytes are in
//! the alphabet: with 64 characters, one of 256 tries fits.
//!
//! A name of five bytes has one free byte and thus 256 names of its hash, of which less than two are
//! printable on average. Of a name of six bytes, about 16 names are tidy. A secret number of places in
//! their order leads to the replacement, so different names of one hash keep different replacements.
//!
//! Left out: two names of seven or more bytes in one directory, with equal lengths and hashes, may get
//! the same replacement. For seven bytes the probability is 1/1024 for such a pair.

use super::algebra::{NAME_STATE, last_bytes, steps, unshifted};
use super::alphabet::{Alphabet, tidy};
use super::keyed::Keyed;
use buttress_exact::Exact as _;

/// The length from which a name has other names of the same hash.
pub(super) const LENGTH_MIN: usize = 5;

/// Returns another name with the length and hash of `name`, or `None` if there is none in the
/// alphabets. The name has at least [`LENGTH_MIN`] bytes.
///
/// A name that Linux does not allow keeps its first forbidden byte, at its beginning.
pub(super) fn replaced(keyed: &Keyed, name: &[u8]) -> Option<Vec<u8>> {
    let target = unshifted(steps(NAME_STATE, name));
    if name.len() == LENGTH_MIN {
        return rotated(keyed, name, target);
    }
    if name.len() == LENGTH_MIN.exact_add(1)
        && let Some(made) = rotated_in_alphabet(keyed, name, target)
    {
        return Some(made);
    }
    let solved_at = name.len().checked_sub(4)?;
    let counted_at = solved_at.checked_sub(2)?;
    let mut made: Vec<u8> = keyed.bytes(name, name.len()).into_iter().map(tidy).collect();
    let forbidden = name.iter().copied().find(|byte| !Alphabet::Any.has(*byte));
    if let (Some(byte), Some(first)) = (forbidden, made.first_mut()) {
        *first = byte;
    }
    let (start, rest) = made.split_at_mut_checked(counted_at)?;
    let state = steps(NAME_STATE, start);
    let (counted, solved) = rest.split_at_mut_checked(2)?;
    let [first, second] = *counted.first_chunk()?;
    for alphabet in Alphabet::ALL {
        let firsts = match forbidden {
            Some(byte) if start.is_empty() => vec![byte],
            _ => bytes_from(alphabet, first),
        };
        let seconds = bytes_from(alphabet, second);
        let pairs = firsts
            .iter()
            .flat_map(|first| seconds.iter().map(move |second| [*first, *second]));
        for pair in pairs {
            counted.copy_from_slice(&pair);
            solved.copy_from_slice(&last_bytes(steps(state, counted), target));
            let is_new = start.iter().chain(&*counted).chain(&*solved).ne(name);
            if alphabet.has_all(solved) && is_new {
                return Some(made);
            }
        }
    }
    None
}

/// Returns a name of five bytes with the hash of `name`.
fn rotated(keyed: &Keyed, name: &[u8], target: u32) -> Option<Vec<u8>> {
    let with_first = |first: u8| {
        let solved = last_bytes(steps(NAME_STATE, &[first]), target);
        [&[first][..], &solved].concat()
    };
    let all: Vec<Vec<u8>> = (0..=u8::MAX)
        .map(with_first)
        .filter(|name| Alphabet::Any.has_all(name))
        .collect();
    let (printable, others): (Vec<_>, Vec<_>) = all
        .iter()
        .cloned()
        .partition(|name| Alphabet::Printable.has_all(name));
    let class = match printable.len() {
        0 | 1 => all,
        _ if Alphabet::Printable.has_all(name) => printable,
        _ => others,
    };
    next_in(keyed, name, target, &class)
}

/// Returns the bytes of an alphabet, from one of them on.
fn bytes_from(alphabet: Alphabet, start: u8) -> Vec<u8> {
    let mut bytes = alphabet.bytes();
    if let Some(at) = bytes.iter().position(|byte| *byte == start) {
        bytes.rotate_left(at);
    }
    bytes
}

/// Returns a name of six bytes with the hash of `name`, among those of the first alphabet that has
/// `name`. Returns `None` if there is none.
fn rotated_in_alphabet(keyed: &Keyed, name: &[u8], target: u32) -> Option<Vec<u8>> {
    let of_name = |bytes: &[u8]| Alphabet::ALL.into_iter().find(|set| set.has_all(bytes));
    let alphabet = of_name(name)?;
    let bytes = alphabet.bytes();
    let mut class = Vec::new();
    for first in &bytes {
        let state = steps(NAME_STATE, &[*first]);
        for second in &bytes {
            let solved = last_bytes(steps(state, &[*second]), target);
            let made = [&[*first, *second][..], &solved].concat();
            if alphabet.has_all(&solved) && of_name(&made) == Some(alphabet) {
                class.push(made);
            }
        }
    }
    next_in(keyed, name, target, &class)
}

/// Returns the name that is a secret number of places after `name` in a class of names of one hash.
fn next_in(keyed: &Keyed, name: &[u8], target: u32, class: &[Vec<u8>]) -> Option<Vec<u8>> {
    let own = class.iter().position(|other| other == name)?;
    let steps_max = u64::try_from(class.len()).ok()?.checked_sub(1)?;
    let shift = keyed
        .number(&target.to_le_bytes())
        .checked_rem(steps_max)?
        .exact_add(1);
    let shift = usize::try_from(shift).ok()?;
    let at = own.exact_add(shift).checked_rem(class.len())?;
    class.get(at).cloned()
}

#[cfg(test)]
mod tests {
    use super::super::keyed::SECRET_BYTES;
    use super::*;
    use buttress_format::name_hash;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn keyed() -> Keyed {
        Keyed::new(&[3; SECRET_BYTES])
    }

    #[test]
    fn ordinary_names_get_tidy_names_of_equal_hash() {
        for length in 6..=255 {
            let name: Vec<u8> = (0..length)
                .map(|at| b'a' + u8::try_from(at % 26).unwrap())
                .collect();
            let made = replaced(&keyed(), &name).unwrap();
            assert_eq!(made.len(), name.len());
            assert_eq!(name_hash(&made), name_hash(&name));
            assert!(made != name && Alphabet::Tidy.has_all(&made), "{made:?}");
        }
    }

    #[test]
    fn names_of_one_hash_keep_different_replacements() {
        let target = unshifted(steps(NAME_STATE, b"notes"));
        let names: Vec<Vec<u8>> = (0..=u8::MAX)
            .map(|first| {
                let solved = last_bytes(steps(NAME_STATE, &[first]), target);
                [&[first][..], &solved].concat()
            })
            .filter(|name| Alphabet::Any.has_all(name))
            .collect();
        let made: HashSet<Vec<u8>> = names
            .iter()
            .map(|name| replaced(&keyed(), name).unwrap())
            .collect();
        assert_eq!(made.len(), names.len());
        assert!(made.iter().all(|name| name_hash(name) == name_hash(b"notes")));
    }

    #[test]
    fn another_secret_gives_another_name() {
        let other = Keyed::new(&[4; SECRET_BYTES]);
        for length in 6..=12 {
            let same = (0..50_u8).filter(|number| {
                let mut name = vec![b'a' + number % 26; length];
                name[1] = b'0' + number % 10;
                name[2] = b'A' + number / 2;
                replaced(&keyed(), &name) == replaced(&other, &name)
            });
            // Of some 16 names of six bytes, two secrets select the same one at times.
            assert!(same.count() <= 15, "length {length}");
        }
    }

    #[test]
    fn six_byte_names_of_one_hash_keep_different_replacements() {
        let target = unshifted(steps(NAME_STATE, b"secret"));
        let tidy = Alphabet::Tidy.bytes();
        let pairs = tidy
            .iter()
            .flat_map(|first| tidy.iter().map(|second| [*first, *second]));
        let names: Vec<Vec<u8>> = pairs
            .map(|pair| [&pair[..], &last_bytes(steps(NAME_STATE, &pair), target)].concat())
            .filter(|name| Alphabet::Tidy.has_all(name))
            .collect();
        let made: HashSet<Vec<u8>> = names
            .iter()
            .map(|name| replaced(&keyed(), name).unwrap())
            .collect();
        assert!(names.len() > 4 && made.len() == names.len());
        assert!(made.iter().all(|name| name_hash(name) == name_hash(b"secret")));
    }

    #[test]
    fn forbidden_bytes_stay_forbidden() {
        for name in [&b"a/bcdefgh"[..], b"abc/de", b"ab\0cdef"] {
            let made = replaced(&keyed(), name).unwrap();
            assert!(!Alphabet::Any.has_all(&made), "{made:?}");
            assert_eq!(name_hash(&made), name_hash(name));
        }
    }

    proptest! {
        #[test]
        fn every_name_gets_another_name_of_equal_hash(
            name in proptest::collection::vec(any::<u8>(), LENGTH_MIN..40),
        ) {
            prop_assume!(Alphabet::Any.has_all(&name));
            let made = replaced(&keyed(), &name).unwrap();
            prop_assert!(made != name && made.len() == name.len());
            prop_assert!(Alphabet::Any.has_all(&made));
            prop_assert_eq!(name_hash(&made), name_hash(&name));
        }
    }
}
