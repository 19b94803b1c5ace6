//! Lock classes: the facts about a lock before it is acquired.

use crate::figures::{Figures, Mode};

/// The condition under which the lock may be held during device I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OverDevice {
    Never,
    When(Mode),
    Always,
}

/// The rank of a lock in the lock order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// The number of the rank; `None` for a leaf.
    number: Option<u8>,
    over_device: OverDevice,
    several: bool,
}

impl Rank {
    /// The rank of a leaf lock. A thread may acquire a leaf lock under any lock that is not a leaf
    /// lock. While it is held, no other lock is acquired.
    pub const LEAF: Self = Self {
        number: None,
        over_device: OverDevice::Never,
        several: false,
    };

    /// Makes a rank. Locks of the rank are acquired after locks of lower ranks, and before locks of
    /// higher ranks.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self {
            number: Some(number),
            ..Self::LEAF
        }
    }

    /// Allows the lock to be held during device I/O.
    #[must_use]
    pub const fn over_device(self) -> Self {
        Self {
            over_device: OverDevice::Always,
            ..self
        }
    }

    /// Allows the lock to be held exclusively during device I/O.
    #[must_use]
    pub const fn over_device_when_exclusive(self) -> Self {
        Self {
            over_device: OverDevice::When(Mode::Exclusive),
            ..self
        }
    }

    /// Allows the lock to be held shared during device I/O.
    #[must_use]
    pub const fn over_device_when_shared(self) -> Self {
        Self {
            over_device: OverDevice::When(Mode::Shared),
            ..self
        }
    }

    /// Allows several locks of the rank to be held together, in ascending order of their places
    /// ([`Mutex::with_place`](crate::Mutex::with_place)).
    #[must_use]
    pub const fn several(self) -> Self {
        Self {
            several: true,
            ..self
        }
    }

    /// Returns the number of the rank; `None` for a leaf.
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

/// The properties that the locks of one class share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The name of the class in docs/internals/locking.md.
    pub name: &'static str,
    /// The file that declares the class.
    pub file: &'static str,
    /// The rank of the class in the lock order.
    pub rank: Rank,
}

impl core::fmt::Display for Class {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "`{}` of {} ({})", self.name, self.file, self.rank)
    }
}

/// A type that represents a class of locks, made by [`lock_class!`](crate::lock_class).
pub trait LockClass: 'static {
    /// The properties of the class.
    const CLASS: &'static Class;

    /// Returns the hold times of the class's locks.
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
