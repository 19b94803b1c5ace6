//! Calls of many threads on one volume, and whether one order of them explains all that was answered.
//!
//! Threads draw calls at once, on shared files and directories. Each call is [recorded](record): when it began, when it
//! ended, and what it answered, errors and bytes that were read included. The library promises that every call takes effect
//! at one moment between its begin and its end: then there is an order of all calls, in which whatever ended before another
//! began comes first, and in which the sequential model ([`crate::writing::model`]) gives the same answers. A [search](order)
//! finds such an order, or shows the smallest part of the record that has none.
//!
//! - [`call`]: what threads call, and what is answered;
//! - [`record`]: calls with their begins and ends;
//! - [`drawing`]: calls from a seed, mostly on a few files and names, so that threads meet;
//! - [`agreement`]: whether the model agrees with an answer, and what the call does to it;
//! - [`order`]: the search (Wing and Gong, with Lowe's memory of states);
//! - [`observation`]: all that a quiet volume shows, which the last state of an order must show, too;
//! - [`rounds`]: threads in rounds with a barrier between, so that the search stays small; commits, views and write-back
//!   run beside them;
//! - [`fork`]: devices that begin with the same bytes;
//! - `schedules`: a few calls under a model checker that chooses who goes on at each lock, in its build only.
//!
//! # What is one moment, and what is not
//!
//! A snapshot has two moments, both within its call: the one at which its source is frozen, and the one at which it gets its
//! name. Of content that was dirty when the call began it has what was written back by then: for each file a state that the
//! file had within the round. That is what the kernel promises, too.
//!
//! Times are not compared: here a clock ticks for all threads.

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
