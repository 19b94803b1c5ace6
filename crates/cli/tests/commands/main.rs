//! Tests of the commands: effects, output and refusals.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a panic is how a test fails; tests compute with known numbers"
)]

mod balance;
mod chunk_recover;
mod command_line;
mod console;
mod convert;
mod defragment;
mod devices;
mod diff;
mod fix_data_checksum;
mod full_host;
mod generations;
mod hostile;
mod image;
mod image_reports;
mod inspect_internal;
mod like_gnu;
mod look;
mod missing_devices;
#[path = "../mounting/mod.rs"]
mod mounting;
mod oci;
mod one_document;
mod outputs;
mod put_in;
mod receive;
mod refusals;
mod repair;
mod replace;
mod replace_lost;
mod rescue;
mod restore;
mod restore_rules;
mod scrub;
mod send;
mod shell;
mod shell_terminal;
mod shrink;
#[path = "../support/mod.rs"]
mod support;
mod take_out;
mod terminal;
mod told;
mod tour;
mod undelete;
