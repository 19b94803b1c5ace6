//! The accounts of a btrfs volume: who refers to which extent, exactly what is shared, and who owns which space.
//!
//! Everything here is read from a view of a volume ([`Filesystem`](buttress_fs::Filesystem)); nothing is edited. What a
//! running transaction has not applied yet is handed in by whoever runs it ([`delayed_references`],
//! [`fiemap::LiveContent`]), so that answers hold for it, too.
//!
//! | to | see |
//! |---|---|
//! | ask a volume or a file | [`Accounts`], [`Maps`] |
//! | find who uses an address, and who shares extents | [`back_references`] |
//! | see extents, data and holes as `FIEMAP` and `lseek` show them | [`fiemap`] |
//! | see where space went | [`space`] |
//! | know what waits to be applied to the extent tree | [`delayed_references`] |
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
pub mod space;

pub use back_references::{
    DataReference, DataReferences, Extent, ExtentUse, FileSpace, References, SHARING_BATCH, Sharing,
};
pub use fiemap::{DataRuns, Fiemap, FiemapExtent, FiemapFlags};
pub use queries::{Accounts, Maps};
pub use space::{DeviceSpace, GroupSpace, Space, Totals};
