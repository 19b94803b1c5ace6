//! The sort key of entries, which makes a walk over the sorted entries a walk over the tree.
//!
//! The sort key is the path with zero bytes in place of slashes, two zero bytes, the number of the
//! source, the precedence, and the class. A directory precedes the entries below it, and these
//! entries precede the directory's next sibling. In the sort order, names in one directory are in
//! byte order. Of entries with one path, the entry with the highest precedence comes last.

use crate::entry::Precedence;

/// The length of the sort key's part after the path.
const SUFFIX_BYTES: usize = 2 + ORDER_BYTES;
/// The length of source, precedence and class.
const ORDER_BYTES: usize = 2 + 8 + 1;

/// The order of entries of one path and precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Class {
    /// The order class of an entry that an adapter left out.
    LeftOut = 0,
    Whiteout = 1,
    Opaque = 2,
    /// An entry that may be in the tree.
    Entry = 3,
    /// A search key after all entries of the precedence.
    Last = 4,
}

/// The position of an entry among the entries of its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub(crate) source: u16,
    pub(crate) precedence: Precedence,
}

pub(crate) fn sort_key(path: &[u8], order: Order, class: Class) -> Vec<u8> {
    let mut key = Vec::with_capacity(path.len().saturating_add(SUFFIX_BYTES));
    key.extend(path.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }));
    key.extend([0, 0]);
    key.extend(order.source.to_be_bytes());
    key.extend(order.precedence.0.to_be_bytes());
    key.push(class as u8);
    key
}

/// A decoded sort key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) path: Vec<u8>,
    pub(crate) order: Order,
    pub(crate) class: Class,
}

pub(crate) fn place(key: &[u8]) -> Option<Place> {
    let (path, suffix) = key.split_at_checked(key.len().checked_sub(SUFFIX_BYTES)?)?;
    let (_, suffix) = suffix.split_first_chunk::<2>()?;
    let (source, suffix) = suffix.split_first_chunk::<2>()?;
    let (precedence, class) = suffix.split_first_chunk::<8>()?;
    Some(Place {
        path: path
            .iter()
            .map(|byte| if *byte == 0 { b'/' } else { *byte })
            .collect(),
        order: Order {
            source: u16::from_be_bytes(*source),
            precedence: Precedence(u64::from_be_bytes(*precedence)),
        },
        class: match class.first()? {
            0 => Class::LeftOut,
            1 => Class::Whiteout,
            2 => Class::Opaque,
            3 => Class::Entry,
            _ => Class::Last,
        },
    })
}

/// Returns true if two keys have one path and one source.
pub(crate) fn same_path_and_source(one: &[u8], other: &[u8]) -> bool {
    let front = |key: &[u8]| key.len().saturating_sub(ORDER_BYTES.saturating_sub(2));
    one.get(..front(one)) == other.get(..front(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_in_the_order_of_a_walk() {
        let paths: [&[u8]; 8] = [b"", b"a", b"a/b", b"a/b/c", b"a/b.c", b"a\x01", b"a.b", b"b"];
        let order = |source, precedence| Order {
            source,
            precedence: Precedence(precedence),
        };
        let keys = paths.iter().flat_map(|path| {
            [(0, 9), (1, 0), (1, 300)]
                .map(|(source, precedence)| sort_key(path, order(source, precedence), Class::Entry))
        });
        let keys: Vec<_> = keys.collect();
        assert!(keys.is_sorted());
        let found = place(&keys[8]).unwrap();
        assert_eq!((&found.path[..], found.order), (&b"a/b"[..], order(1, 300)));
        assert!(same_path_and_source(&keys[7], &keys[8]));
        assert!(!same_path_and_source(&keys[6], &keys[7]));
    }
}
