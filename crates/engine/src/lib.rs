//! Transactions: one running transaction of a volume, its commits, and the state that edits work on.
//!
//! The engine allocates, counts references, commits and keeps views. It knows no file operation: the writer above it
//! edits trees through [`Running`](running::Running), and takes part in commits as
//! [`CommitStages`](engine::CommitStages).
//!
//! [`Engine`] is a cheap handle, `Send` and `Sync`. Edits are serialised by one short lock; readers take
//! views ([`Engine::view`]), which never change and never wait for the writer.
//!
//! Modules stand on three floors, and import each other in no circle. State is at the bottom: each module keeps the
//! invariants of its own. [`engine`] and [`running`] put the state together. Behaviour is above: a module extends
//! [`Engine`] or [`Running`](running::Running) by the calls of one job.
//!
//! The state:
//!
//! | module | holds |
//! |---|---|
//! | `engine` | the handle, the state that all handles share, its locks; the writer's part of a commit |
//! | `running`, `core_state` | the running transaction: trees, and the state that edits of any tree need |
//! | `trees`, `steps` | open trees, for the writer and for readers; operations are seen whole |
//! | `inodes`, `inode_table` | an object for each inode in use; the changed inodes |
//! | `pending_times`, `inherited`, `known_names`, `entry` | the content of such an object; names that were looked up |
//! | `waiting_names` | names of unfinished subvolumes that are not in their directories yet |
//! | `data_table`, `file_content`, `dirty_data`, `data_options` | dirty data of files |
//! | `log_state`, `removed_names` | the logged parts of an inode; removed names |
//! | `block_groups`, `free_ranges`, `device_space` | free space of block groups and devices |
//! | `pins`, `reserved_ahead` | freed space that must wait; space reserved for data ahead of writes |
//! | `quotas`, `replacing`, `balancing` | changes of quotas; the replacement in progress; the balance in progress or paused |
//! | `memory`, `uncommitted` | dirty memory, as a part of the cache's budget; changes that a crash would lose now |
//! | `environment`, `workers` | the time and uuids; threads that work when they are woken |
//! | `need`, `worst_case`, `allowance` | an edit's need; the most nodes of an edit; the nodes it took, compared with its need |
//!
//! The machinery:
//!
//! | module | does |
//! |---|---|
//! | `retry`, `look` | look-ups that wait for no device; look-ups without edits |
//! | `look_ups` | counts of look-ups, for tests |
//! | `opening`, `closing` | features that are refused by name; the end of a handle |
//! | `pending_log`, `log_blocks` | the pending log at opening; the places of log blocks |
//! | `reservation`, `reserving_ahead` | an edit's lock, and the promise of space; space for data ahead of writes |
//! | `inode_items` | the writer's way to inodes, and their way back into trees |
//! | `cow` | the references that copying a tree block changes |
//! | `extent_state`, `extent_tree` | the known state of an extent; reference counts are applied |
//! | `quota_items` | quotas are kept right, or marked |
//! | `backing` | space of the host for metadata, reserved ahead |
//! | `chunks`, `loading` | new chunks; block groups are read in |
//! | `free_space_tree`, `checksums` | the trees that follow the extent tree |
//! | `data_extents` | extents of file data: allocated, referred to, let go |
//! | `converging`, `freezing`, `committing`, `slice` | a commit: addresses, the frozen state, the writes; how long it holds the lock |
//! | `fault_in` | tree blocks come into memory before the lock is held for long |
//! | `device_errors` | errors of devices, in their statistics |
//! | `trimming` | devices discard space that nothing uses |
//! | `relocation` | everything in a set of block groups moves to new places |
//! | `replacement` | a device that takes another's place: its item, the commit that ends it |
//! | `balance` | the block groups that a balance moves, and its item in the root tree |
//! | `returning` | a device that missed commits: its own state is kept until it has the volume's |
//! | `recount` | ledgers against trees, in builds with debug assertions |
//! | `views`, `quiesce` | states that never change; a view together with the delayed references |
//! | `background` | threads that commit when much is dirty, or dirty for long |
//! | `space` | the figures of `statfs` |
//!
//! # Invariants
//!
//! - Nothing that the last durable superblock leads to is overwritten, except as the format allows for data without
//!   copy-on-write.
//! - A dirty node has no address until the commit, so nodes that come and go within a transaction cost nothing on disk.
//! - What was not committed never goes without a word: it is committed, abandoned, or reported.
//! - After a failed commit nothing is written any more: the volume says why, and reading goes on.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

mod allowance;
mod background;
pub mod backing;
pub mod balance;
pub mod balancing;
pub mod block_groups;
pub mod checksums;
mod chunks;
mod closing;
mod committing;
mod converging;
pub mod core_state;
pub mod cow;
pub mod data_extents;
pub mod data_options;
pub mod data_table;
pub mod device_errors;
mod device_space;
pub mod dirty_data;
pub mod engine;
pub mod entry;
pub mod environment;
pub mod extent_state;
pub mod extent_tree;
pub mod fault_in;
pub mod file_content;
mod free_ranges;
mod free_space_tree;
pub mod freezing;
pub mod inherited;
mod inode_items;
pub mod inode_table;
pub mod inodes;
pub mod known_names;
mod loading;
pub mod log_blocks;
pub mod log_state;
pub mod look;
pub mod look_ups;
mod memory;
mod need;
pub mod opening;
pub mod pending_log;
pub mod pending_times;
pub mod pins;
mod quiesce;
mod quota_items;
mod quotas;
mod recount;
pub mod relocation;
pub mod removed_names;
pub mod replacement;
pub mod replacing;
pub mod reservation;
pub mod reserved_ahead;
mod reserving_ahead;
pub mod retry;
pub mod returning;
pub mod running;
pub mod slice;
pub mod space;
pub mod steps;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trees;
pub mod trimming;
pub mod uncommitted;
mod views;
pub mod waiting_names;
mod workers;
mod worst_case;

pub use balance::balance_item;
pub use data_options::DataOptions;
pub use engine::Engine;
pub use environment::{Environment, SystemEnvironment};
pub use opening::WriteOptions;
pub use replacement::{replacement_item, wipe_superblocks};
pub use returning::Return;
pub use space::SpaceNow;
pub use trimming::Trimmed;
pub use uncommitted::Uncommitted;
