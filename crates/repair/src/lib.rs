//! Repairs of damaged volumes, finding by finding.
//!
//! A repair begins with the report of a check. [`plan()`] turns each finding into a step, or into
//! the reason why there is none. [`run`] applies the steps by transactions, checks again, and
//! repeats this while the volume gets better. [`Outcome::kept`] then says whether the result is
//! worth keeping.
//!
//! | module | holds |
//! |---|---|
//! | [`kinds`] | the kind of repair of each finding code |
//! | [`steps`] | a step: the change, its evidence, what it may lose, the affected files |
//! | [`plan`](mod@plan) | from findings to steps |
//! | `outcome` | the options of a repair, and its outcome |
//! | [`rounds`] | rebuild, then check, plan, edit, commit, check |
//! | [`recovery`] | trees without which no volume opens, from a scan |
//! | `rebuild` | the trees that account for space, written again from all other trees |
//! | `edits`, `items` | the edits, item by item |
//! | [`data_checksums`] | data that does not match its checksums, and the owner's consent to it |
//! | [`guard`] | files that were whole before are whole after |
//!
//! # Invariants
//!
//! - A repair writes by transactions, or writes whole trees into free space. Both overwrite no block
//!   of the volume's first state. The superblocks are the exception: they name the new state.
//! - A step that may lose something runs only with consent.
//! - Edits run only while the records of used space are safe to allocate by.
//! - A repair never infers content: it writes records that other records of the volume confirm.
//!
//! # Left out
//!
//! This version edits inodes, names, places of subvolumes, uuids, quota groups and superblocks, and
//! rebuilds the trees of extents, block groups, free space, devices and checksums.
//! [`kinds::TABLE`] lists the codes without a repair, each with the reason.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, reason = "tests compute with known numbers")
)]

pub mod data_checksums;
mod edits;
pub mod guard;
mod items;
pub mod kinds;
mod outcome;
pub mod plan;
mod rebuild;
pub mod recovery;
pub mod rounds;
pub mod steps;

pub use kinds::RepairKind;
pub use outcome::{Done, Kept, Options, Outcome, severity};
pub use plan::plan;
pub use rounds::run;
pub use steps::{Applied, Edit, Left, Loss, Plan, Step};
