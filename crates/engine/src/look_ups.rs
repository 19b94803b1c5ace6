//! Counts of the current thread's lookups, for tests of the cost of a call.
//!
//! Builds without debug assertions count no lookups.

use core::ops::Sub;

/// The lookups of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookUps {
    /// Inodes found in the table of live inodes.
    pub inodes: u64,
    /// The number of lookups that found their tree in the table of open trees.
    pub trees: u64,
    /// The number of items searched in a tree without the edit lock.
    pub items: u64,
    /// Times that the edit lock was acquired.
    pub edit_locks: u64,
}

impl Sub for LookUps {
    type Output = Self;

    /// Returns the lookups since `earlier`. The counts of one thread only grow.
    fn sub(self, earlier: Self) -> Self {
        Self {
            inodes: self.inodes.wrapping_sub(earlier.inodes),
            trees: self.trees.wrapping_sub(earlier.trees),
            items: self.items.wrapping_sub(earlier.items),
            edit_locks: self.edit_locks.wrapping_sub(earlier.edit_locks),
        }
    }
}

#[cfg(debug_assertions)]
mod counting {
    use super::LookUps;
    use core::cell::Cell;

    std::thread_local! {
        static COUNTED: Cell<LookUps> = const { Cell::new(LookUps { inodes: 0, trees: 0, items: 0, edit_locks: 0 }) };
    }

    pub(crate) fn count(add: impl FnOnce(&mut LookUps) -> &mut u64) {
        COUNTED.with(|counted| {
            let mut counts = counted.get();
            let count = add(&mut counts);
            *count = count.wrapping_add(1);
            counted.set(counts);
        });
    }

    /// Returns the number of lookups of the current thread so far.
    #[must_use]
    pub fn so_far() -> LookUps {
        COUNTED.with(Cell::get)
    }
}

#[cfg(not(debug_assertions))]
mod counting {
    use super::LookUps;

    pub(crate) const fn count(_: impl FnOnce(&mut LookUps) -> &mut u64 + Copy) {}

    /// Returns zero lookups, because this build counts none.
    #[must_use]
    pub const fn so_far() -> LookUps {
        LookUps {
            inodes: 0,
            trees: 0,
            items: 0,
            edit_locks: 0,
        }
    }
}

pub(crate) use counting::count;
pub use counting::so_far;
