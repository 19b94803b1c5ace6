//! btrfs send streams.
//!
//! A send stream is a sequence of commands that creates a subvolume, or turns a snapshot of one
//! subvolume into another. [`Command`] is the type of one command and borrows its paths and data.
//! The encoder, decoder and dump are generated from the table of commands.
//!
//! | to | see |
//! |---|---|
//! | represent a command | [`command`] |
//! | write streams | [`encoder`] |
//! | send snapshots | [`mod@send`] |
//! | receive streams into a volume | [`mod@receive`] |
//! | record the progress of a transfer | [`trail`] |
//! | inspect streams without a volume | [`view`] |
//! | derive new streams from streams | [`mod@merge`] |
//! | read streams | [`decoder`] |
//! | print streams as text | [`dump`] |
//! | handle errors | [`error`] |
//!
//! `buttress_format::send` holds the numbers, names and limits of the format.
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
