//! The sets of bytes from which replacements of names are made.

/// Letters, digits and two signs that no shell treats specially.
const TIDY: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+";

/// A set of bytes, in an order of preference: a name has bytes of the first set that allows one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Letters, digits, `_` and `+`.
    Tidy,
    /// Printable ASCII characters except the slash and the space.
    Printable,
    /// All bytes of which Linux makes names: all except NUL and the slash.
    Any,
}

impl Alphabet {
    pub(super) const ALL: [Self; 3] = [Self::Tidy, Self::Printable, Self::Any];

    pub(super) fn has(self, byte: u8) -> bool {
        match self {
            Self::Tidy => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'+'),
            Self::Printable => byte.is_ascii_graphic() && byte != b'/',
            Self::Any => byte != 0 && byte != b'/',
        }
    }

    pub(super) fn has_all(self, bytes: &[u8]) -> bool {
        bytes.iter().all(|byte| self.has(*byte))
    }

    /// Returns all bytes of the set.
    pub(super) fn bytes(self) -> Vec<u8> {
        (0..=u8::MAX).filter(|byte| self.has(*byte)).collect()
    }
}

/// Returns the tidy character for a random byte.
pub(super) fn tidy(random: u8) -> u8 {
    // Clamp: six bits select one of 64 characters.
    TIDY.get(usize::from(random & 63)).copied().unwrap_or(b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_contain_one_another() {
        let sizes = Alphabet::ALL.map(|alphabet| alphabet.bytes().len());
        assert_eq!(sizes, [64, 93, 254]);
        assert!((0..=u8::MAX).all(|byte| Alphabet::Tidy.has(tidy(byte))));
        assert!((0..=u8::MAX).all(|byte| !Alphabet::Printable.has(byte) || Alphabet::Any.has(byte)));
    }
}
