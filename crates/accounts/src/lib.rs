//! The accounts of a btrfs volume: references to extents, exact sharedness, and the owners of
//! space.
//!
//! All answers come from a view of a volume ([`Filesystem`](buttress_fs::Filesystem)); this crate
//! edits nothing. The owner of a running transaction passes its pending changes in
//! ([`delayed_references`], [`fiemap::LiveContent`]), so that answers include them.
//!
//! | to | see |
//! |---|---|
//! | ask a volume or a file | [`Accounts`], [`Maps`] |
//! | find the users of an address, and sharedness of extents | [`back_references`] |
//! | see extents, data and holes as `FIEMAP` and `lseek` show them | [`fiemap`] |
//! | see how space is used | [`space`] |
//! | read quota groups, and count their use | [`quotas`] |
//! | get changes not yet applied to the extent tree | [`delayed_references`] |
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

pub mod back_references;
pub mod delayed_references;
pub mod fiemap;
mod queries;
pub mod quotas;
pub mod space;

pub use back_references::{
    DataReference, DataReferences, Extent, ExtentUse, FileSpace, References, SHARING_BATCH, Sharing,
};
pub use fiemap::{DataRuns, Fiemap, FiemapExtent, FiemapFlags};
pub use queries::{Accounts, Maps};
pub use quotas::{QuotaGroup, QuotaGroups, QuotaUse};
pub use space::{DeviceSpace, GroupSpace, Space, Totals};
