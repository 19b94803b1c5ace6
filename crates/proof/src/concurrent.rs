//! Concurrent calls on one volume, and the search for a sequential order that explains all their
//! answers.
//!
//! Threads make random calls concurrently, on shared files and directories. Each call is
//! [recorded](record) with its begin, its end, and its answer, including errors and read bytes. The
//! library promises linearizability: every call takes effect at one moment between its begin and
//! its end. An order of all calls then exists in which every call precedes those that began after
//! its end, and in which the sequential model ([`crate::writing::model`]) gives the same answers. A
//! [search](order) finds such an order, or shows the smallest part of the record that has none.
//!
//! - [`call`]: calls and answers;
//! - [`record`]: calls with their begins and ends;
//! - [`drawing`]: random calls from a seed, mostly on a few files and names, so that threads
//!   interact;
//! - [`agreement`]: whether the model agrees with an answer, and the effect of the call on the
//!   model;
//! - [`order`]: the search (Wing and Gong, with Lowe's memory of states);
//! - [`observation`]: the visible state of a quiet volume, which the last state of an order must
//!   equal;
//! - [`rounds`]: threads in rounds with a barrier between, so that the search stays small; commits,
//!   views and write-back run concurrently;
//! - [`fork`]: devices that begin with the same bytes;
//! - `schedules`: a few calls under a model checker that chooses the next thread at each lock; only
//!   in a special build.
//!
//! # Atomicity
//!
//! A snapshot has two moments, both within its call: at the first one its source is frozen, and at
//! the second one it gets its name. For content that was dirty when the call began, the snapshot
//! has the part written back before the freeze. Each file has a state that it had within the round.
//! The kernel promises the same for its snapshots.
//!
//! The comparison leaves out times, because one clock ticks for all threads.

pub mod agreement;
pub mod call;
pub mod drawing;
pub mod fork;
pub mod observation;
pub mod order;
pub mod record;
pub mod rounds;
#[cfg(buttress_shuttle)]
pub mod schedules;

pub use rounds::{Plan, run};
