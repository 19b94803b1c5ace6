//! The log tree: what was synced since the last commit.
//!
//! A log is written beside the last commit, whose superblock names it. It holds, for each subvolume, items of the inodes
//! that were synced, in the form that they have in the subvolume's tree. Whoever opens the volume next for writing
//! replays it: the items become part of the subvolumes, in one transaction.
//!
//! | room | holds |
//! |---|---|
//! | `pending` | the log that waits at opening: read once as a whole, and the space that it keeps |
//! | `replay` | what its items mean for the subvolumes |
//!
//! Source: on-disk format documentation, section "Log tree"; what replaying is to lead to was learnt from logs that the
//! kernel wrote and replayed.

pub(crate) mod pending;
mod replay;
