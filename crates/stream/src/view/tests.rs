//! View tests on encoder output.

mod applied;
mod damaged;
mod names;
mod support;
