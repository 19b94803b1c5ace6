//! The choice of attributes that a copy preserves.

/// Attributes that a copy preserves in addition to content, names and permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preserve {
    /// Preserves nothing: modes pass through the umask, times are those of the copying, as in `cp
    /// -r`.
    Nothing,
    /// Preserves owners, modes, times and extended attributes, as in `cp -a`.
    All,
    /// Preserves some of the attributes, as `btrfs restore` does, and creates no device nodes.
    Some(Chosen),
}

/// Attributes that the user chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Owners, modes and times.
    pub metadata: bool,
    /// Extended attributes.
    pub xattrs: bool,
}

impl Preserve {
    /// Returns whether everything is preserved.
    pub fn all(self) -> bool {
        self == Self::All
    }

    fn chosen(self) -> Chosen {
        match self {
            Self::Nothing => Chosen::default(),
            Self::All => Chosen {
                metadata: true,
                xattrs: true,
            },
            Self::Some(chosen) => chosen,
        }
    }

    /// Returns whether owners, modes and times are preserved.
    pub(super) fn metadata(self) -> bool {
        self.chosen().metadata
    }

    /// Returns whether extended attributes are preserved.
    pub(super) fn xattrs(self) -> bool {
        self.chosen().xattrs
    }
}
