//! Sources of btrfs images besides directories of the host: archives, container layers, manifests.
//!
//! Each archive, image or manifest is a [`Source`](buttress_build::Source) of `build`, which sorts,
//! merges and writes the entries. This crate interprets formats and rejects invalid input. Every
//! error names the place (the byte of an archive, the line of a manifest) and the problem.
//!
//! | module | holds |
//! |---|---|
//! | [`tar`] | the format: pax, GNU, ustar, v7, sparse files |
//! | [`layers`] | archives, one on top of the other, as a source |
//! | [`oci`] | layouts of container images on disk |
//! | [`manifest`] | the plan of an image as text: reading it, and writing it for an existing image |
//! | [`adapters`] | changes to the entries of any source: rules, owners, exclusions, contexts |
//! | [`tree`] | the tree that a source makes, in memory |
//! | [`store`] | an archive's bytes with random access; compression |
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

mod acl;
pub mod adapters;
mod base64;
pub mod layers;
pub mod manifest;
mod member;
pub mod oci;
mod segments;
pub mod store;
pub mod tar;
pub mod tree;

pub use acl::AclError;
pub use layers::{Layer, Layers};
pub use manifest::Manifest;
