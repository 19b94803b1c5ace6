//! btrfs send streams.
//!
//! A stream is a sequence of commands that makes a subvolume, or turns a snapshot of one into another.
//! [`Command`] is one of them as a type that borrows its paths and data; encoder, decoder and dump are made from
//! the same table of it.
//!
//! | to | see |
//! |---|---|
//! | hold a command | [`command`] |
//! | write streams | [`encoder`] |
//! | send snapshots | [`mod@send`] |
//! | receive them into a volume | [`mod@receive`] |
//! | know how far a transfer came | [`trail`] |
//! | look into streams | [`view`] |
//! | make new streams out of streams | [`mod@merge`] |
//! | read streams | [`decoder`] |
//! | print them | [`dump`] |
//! | know what went wrong | [`error`] |
//!
//! The numbers, names and limits of the format are in `buttress_format::send`.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, reason = "tests compute with known numbers")
)]

pub mod command;
pub mod decoder;
pub mod dump;
pub mod encoder;
pub mod error;
pub mod merge;
pub mod receive;
pub mod send;
pub mod trail;
pub mod view;

pub use buttress_format::send::{AttributeKind, CommandKind, EncodedCompression, Version};
pub use command::Command;
pub use decoder::{Decoder, Frame, Oddity, ReadAhead, SkippedCommand, Streams};
pub use dump::TextDump;
pub use encoder::{Encoder, PendingData};
pub use error::{Error, Result};
