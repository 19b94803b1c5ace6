//! Streams of the encoder's, looked into.

mod applied;
mod damaged;
mod names;
mod support;
