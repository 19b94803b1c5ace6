//! The commands, one thin module for each.

pub mod cat;
pub mod check;
pub mod completions;
pub mod compression;
pub mod cp;
pub mod diff;
pub mod fiemap;
pub mod filesystem;
pub mod inspect_internal;
pub mod ls;
pub mod man;
pub mod mkfs;
pub mod overlay;
pub mod property;
pub mod receive;
pub mod reference;
pub mod scrub;
pub mod send;
pub mod shell;
pub mod space;
pub mod stat;
pub mod stream;
pub mod subvolume;
pub mod tar;
pub mod tour;
pub mod tree;
