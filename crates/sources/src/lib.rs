//! What btrfs images are made from besides directories of the host: archives, layers of containers, manifests.
//!
//! Each is a [`Source`](buttress_build::Source) of the crate `build`, which sorts entries, puts one source on top of the
//! other and writes the volume. Here is what formats mean, and what in them cannot be: every refusal says where (the byte of
//! an archive, the line of a manifest) and what.
//!
//! | module | holds |
//! |---|---|
//! | [`tar`] | the format: pax, GNU, ustar, v7, sparse files |
//! | [`layers`] | archives, one on top of the other, as a source |
//! | [`oci`] | layouts of container images on disk |
//! | [`manifest`] | the plan of an image as text: read, and written of an image that is there |
//! | [`adapters`] | what changes entries of any source: rules, owners, exclusions, contexts |
//! | [`tree`] | the tree that a source makes, in memory |
//! | [`store`] | an archive's bytes, to be read in any place; compression |
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
