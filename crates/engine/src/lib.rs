//! Transactions: one running transaction of a volume, its commits, and the state that edits change.
//!
//! The engine allocates space, counts references, commits, and keeps views. The engine knows no
//! file operation: the writer above it edits trees through [`Running`](running::Running), and takes
//! part in commits as [`CommitStages`](engine::CommitStages).
//!
//! [`Engine`] is a cheap handle, `Send` and `Sync`. The edit lock serialises edits, and is held
//! only briefly. Readers take views ([`Engine::view`]), which never change and never wait for the
//! writer.
//!
//! The modules form three layers, and imports between them have no cycles. The state modules are at
//! the bottom: each of these modules keeps the invariants of its own state. [`engine`] and
//! [`running`] combine the state. Behaviour is in the top layer: each module adds the calls of one
//! job to the job's handle ([`areas`], [`running_parts`]). Only calls that most jobs need are on
//! [`Engine`] and [`Running`](running::Running).
//!
//! The state:
//!
//! | module | holds |
//! |---|---|
//! | `engine` | the handle, the state that all handles share, its locks; the writer's part of a commit |
//! | `areas` | a borrowed handle for each job's calls |
//! | `running`, `core_state` | the running transaction: trees, and the state that edits of any tree need |
//! | `running_parts` | a borrowed handle for each part of the running transaction |
//! | `trees`, `steps` | open trees, for the writer and for readers; the lock that shows operations as a whole |
//! | `inodes`, `inode_table` | an object for each inode in use; the changed inodes |
//! | `pending_times`, `inherited`, `known_names`, `entry` | the parts of a live inode; a cache of looked-up names |
//! | `waiting_names` | names of unfinished subvolumes that are not in their directories yet |
//! | `data_table`, `file_content`, `dirty_data`, `data_options` | dirty data of files |
//! | `log_state`, `removed_names` | the logged parts of an inode; removed names |
//! | `block_groups`, `free_ranges`, `device_space` | free space of block groups and devices |
//! | `pins`, `reserved_ahead` | freed space that may not be reused yet; space reserved for data ahead of writes |
//! | `quota_limits` | limits of quota groups, and the bytes that writers charge against them |
//! | `quotas`, `replacing`, `balancing` | changes of quotas; the replacement in progress; the balance in progress or paused |
//! | `memory`, `uncommitted` | dirty memory, as a part of the cache's budget; changes that a crash would lose now |
//! | `environment`, `workers` | the time and uuids; background threads |
//! | `need`, `worst_case`, `allowance` | an edit's need; the most nodes of an edit; the nodes it took, compared with its need |
//!
//! The machinery:
//!
//! | module | does |
//! |---|---|
//! | `retry`, `lookups` | retries non-blocking lookups; lookups of the running transaction without edits |
//! | `look_ups` | counts lookups, for tests |
//! | `opening`, `closing` | opens a volume for writing, or refuses it; ends a handle |
//! | `pending_log`, `log_blocks` | reads the pending log at opening; allocates log blocks |
//! | `reservation`, `reserving` | acquires the edit lock and computes the promised space; finds that space |
//! | `reclaiming` | returns the balance that would return space to a full volume |
//! | `reserving_ahead` | reserves space for data ahead of writes |
//! | `inode_items` | reads and changes inode items, and writes them back into trees |
//! | `cow` | changes references when a tree block is copied |
//! | `extent_state`, `extent_tree` | returns the known state of an extent; applies delayed references |
//! | `quota_items` | updates quota items, or marks them as inconsistent |
//! | `quota_tree` | enables and disables quotas; edits groups, relations, limits and rescanned counters |
//! | `backing` | reserves space of the host for metadata |
//! | `chunks`, `loading` | makes and removes chunks; loads block groups |
//! | `free_space_tree`, `checksums` | updates the trees that follow the extent tree |
//! | `data_writes` | writes file data beside other data in the same rows |
//! | `data_extents` | allocates, refers to, and releases extents of file data |
//! | `converging`, `freezing`, `committing`, `slice` | commits: gives addresses, freezes the state, writes it; limits how long a commit holds the lock |
//! | `fault_in` | reads tree blocks before the lock is held for long |
//! | `device_errors` | records errors of devices in their statistics |
//! | `trimming` | discards unused space of devices |
//! | `tuning` | changes fields that only the superblock holds |
//! | `own_trees` | makes new trees of the volume's own |
//! | `conversions` | makes and removes the trees of features, and changes the fsid of devices |
//! | `owner_references` | removes what simple quotas leave in the extent tree |
//! | `checksum_change` | changes the type of the data's checksums |
//! | `relocation` | moves everything in a set of block groups to new addresses |
//! | `shrinking` | packs a volume into the fewest bytes of its devices |
//! | `auto_reclaim`, `reclaim_state` | empties little used block groups in the background; stops this for other jobs |
//! | `balance` | chooses the block groups that a balance moves, and keeps its item in the root tree |
//! | `exclusive` | excludes a balance, a change of the devices and a replacement from one another |
//! | `replacement` | starts, records and ends the replacement of a device |
//! | `returning` | brings a device that missed commits up to date, and keeps its own state until then |
//! | `item_edits` | edits single items for repairs, without the meaning of an operation |
//! | `recount` | recounts ledgers against trees, in builds with debug assertions |
//! | `views`, `quiesce` | makes states that never change; returns a view together with the delayed references |
//! | `background` | commits when much is dirty, or dirty for long |
//! | `space` | computes the figures of `statfs` |
//!
//! # Invariants
//!
//! - A write never overwrites blocks that the last durable superblock leads to, except as the
//!   format allows for data without copy-on-write.
//! - A dirty node has no address until the commit, so nodes that come and go within a transaction
//!   cost nothing on disk.
//! - The engine never loses uncommitted changes silently: it commits, abandons or reports them.
//! - After a failed commit the volume never writes again. The volume keeps the cause of the
//!   failure, and reads continue.

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
pub mod areas;
pub mod auto_reclaim;
mod background;
pub mod backing;
pub mod balance;
pub mod balancing;
pub mod block_groups;
pub mod checksum_change;
pub mod checksums;
mod chunks;
pub mod clearing;
mod closing;
mod committing;
mod converging;
pub mod conversions;
pub mod core_state;
pub mod cow;
pub mod data_extents;
pub mod data_options;
pub mod data_table;
pub mod data_writes;
pub mod device_errors;
mod device_space;
pub mod dirty_data;
pub mod engine;
pub mod entry;
pub mod environment;
mod exclusive;
pub mod extent_state;
pub mod extent_tree;
pub mod fault_in;
pub mod file_content;
mod free_ranges;
mod free_space_tree;
pub mod freezing;
mod holders;
pub mod inherited;
mod inode_items;
pub mod inode_table;
pub mod inodes;
pub mod item_edits;
pub mod known_names;
mod loading;
pub mod log_blocks;
pub mod log_state;
pub mod look_ups;
pub mod lookups;
pub mod membership;
mod memory;
mod need;
pub mod opening;
mod own_trees;
mod owner_references;
pub mod pending_log;
pub mod pending_times;
pub mod pins;
mod quiesce;
mod quota_items;
pub mod quota_limits;
pub mod quota_tree;
mod quotas;
mod reclaim_state;
mod reclaiming;
mod recount;
pub mod relocation;
pub mod removed_names;
pub mod replacement;
pub mod replacing;
pub mod reservation;
pub mod reserved_ahead;
mod reserving;
mod reserving_ahead;
pub mod retry;
pub mod returning;
pub mod running;
pub mod running_parts;
pub mod shrinking;
pub mod slice;
pub mod space;
pub mod steps;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trees;
pub mod trimming;
pub mod tuning;
pub mod uncommitted;
mod views;
pub mod waiting_names;
mod workers;
mod worst_case;

pub use auto_reclaim::{AutoReclaim, AutoReclaiming, Reclaimed};
pub use balance::balance_item;
pub use conversions::BlockGroupPlace;
pub use data_options::DataOptions;
pub use engine::Engine;
pub use environment::{Environment, SystemEnvironment};
pub use membership::{ChunkInTheWay, Emptying, JoinOptions, LEAST_DEVICE_BYTES};
pub use opening::WriteOptions;
pub use replacement::{replacement_item, wipe_superblocks};
pub use returning::Return;
pub use space::SpaceNow;
pub use trimming::Trimmed;
pub use tuning::Tuning;
pub use uncommitted::Uncommitted;
