//! Classes: what is known of a lock before it is taken.

use crate::figures::{Figures, Mode};

/// Whether a device may be waited for while the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OverDevice {
    Never,
    When(Mode),
    Always,
}

/// Where a lock stands in the order in which locks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// `None`: a leaf.
    number: Option<u8>,
    over_device: OverDevice,
    several: bool,
}

impl Rank {
    /// Nothing else is taken while it is held. It may be taken under any lock that is not a leaf.
    pub const LEAF: Self = Self {
        number: None,
        over_device: OverDevice::Never,
        several: false,
    };

    /// Taken after locks of lower ranks, before those of higher ones.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self {
            number: Some(number),
            ..Self::LEAF
        }
    }

    /// It may be held while a device is waited for.
    #[must_use]
    pub const fn over_device(self) -> Self {
        Self {
            over_device: OverDevice::Always,
            ..self
        }
    }

    /// It may be held exclusively while a device is waited for.
    #[must_use]
    pub const fn over_device_when_exclusive(self) -> Self {
        Self {
            over_device: OverDevice::When(Mode::Exclusive),
            ..self
        }
    }

    /// It may be shared while a device is waited for.
    #[must_use]
    pub const fn over_device_when_shared(self) -> Self {
        Self {
            over_device: OverDevice::When(Mode::Shared),
            ..self
        }
    }

    /// Several locks of the rank may be held at once, each with a higher place than the one before
    /// ([`Mutex::with_place`](crate::Mutex::with_place)).
    #[must_use]
    pub const fn several(self) -> Self {
        Self {
            several: true,
            ..self
        }
    }

    /// The number; `None` for a leaf.
    #[must_use]
    pub const fn number(self) -> Option<u8> {
        self.number
    }

    #[cfg(debug_assertions)]
    pub(crate) fn is_over_device(self, held: Mode) -> bool {
        match self.over_device {
            OverDevice::Never => false,
            OverDevice::Always => true,
            OverDevice::When(mode) => mode == held,
        }
    }

    #[cfg(debug_assertions)]
    pub(crate) const fn is_several(self) -> bool {
        self.several
    }
}

impl core::fmt::Display for Rank {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.number {
            Some(number) => write!(f, "rank {number}"),
            None => f.write_str("a leaf"),
        }
    }
}

/// What the locks of one class have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// As in docs/internals/locking.md.
    pub name: &'static str,
    /// The file that declares it.
    pub file: &'static str,
    /// Its place in the order.
    pub rank: Rank,
}

impl core::fmt::Display for Class {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "`{}` of {} ({})", self.name, self.file, self.rank)
    }
}

/// A type that stands for a class of locks. Made by [`lock_class!`](crate::lock_class).
pub trait LockClass: 'static {
    /// What is known of its locks.
    const CLASS: &'static Class;

    /// How long its locks were held.
    fn figures() -> &'static Figures;
}

/// Declares a class of locks: a type, the name of the field or structure that is the lock, and its [`Rank`].
///
/// ```
/// use buttress_locks::{Mutex, Rank, lock_class};
///
/// lock_class!(TotalLock, "total", Rank::new(10));
///
/// struct Account {
///     total: Mutex<u64, TotalLock>,
/// }
///
/// let account = Account { total: Mutex::new(1) };
/// *account.total.lock() = 2;
/// ```
#[macro_export]
macro_rules! lock_class {
    ($(#[$attribute:meta])* $visibility:vis $class:ident, $name:literal, $rank:expr) => {
        #[doc = concat!("The class of `", $name, "`: see docs/internals/locking.md.")]
        $(#[$attribute])*
        #[derive(Debug)]
        $visibility enum $class {}

        impl $crate::LockClass for $class {
            const CLASS: &'static $crate::Class = &$crate::Class {
                name: $name,
                file: file!(),
                rank: $rank,
            };

            fn figures() -> &'static $crate::figures::Figures {
                static FIGURES: $crate::figures::Figures =
                    $crate::figures::Figures::new(<$class as $crate::LockClass>::CLASS);
                &FIGURES
            }
        }
    };
}
