//! `buttress inspect-internal …`: the on-disk structures of a volume.
//!
//! Each command has a module in `inspect_internal/`. The commands share these modules:
//!
//! - [`print`]: structures as text and JSON;
//! - `tree_names`: names of trees; `paths`: paths of inodes.

pub mod dump_super;
pub mod dump_tree;
pub mod find_root;
pub mod inode_resolve;
pub mod list_chunks;
pub mod logical_resolve;
pub mod map_logical;
pub mod map_swapfile;
pub mod min_dev_size;
pub(crate) mod paths;
mod print;
pub mod rootid;
pub mod select_super;
pub mod subvolid_resolve;
mod tree_names;
pub mod tree_stats;

use crate::table::{Row, leaf};
pub(crate) use print::key::object_name;

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[
    leaf::<dump_super::DumpSuper>(),
    leaf::<dump_tree::DumpTree>(),
    leaf::<find_root::FindRoot>(),
    leaf::<inode_resolve::InodeResolve>(),
    leaf::<list_chunks::ListChunks>(),
    leaf::<logical_resolve::LogicalResolve>(),
    leaf::<map_logical::MapLogical>(),
    leaf::<map_swapfile::MapSwapfile>(),
    leaf::<min_dev_size::MinDevSize>(),
    leaf::<rootid::RootId>(),
    leaf::<select_super::SelectSuper>(),
    leaf::<subvolid_resolve::SubvolIdResolve>(),
    leaf::<tree_stats::TreeStats>(),
];
