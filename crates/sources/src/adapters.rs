//! Adapters, which change the entries of any source: rules by path, owner maps, exclusions, SELinux
//! contexts.
//!
//! Each adapter becomes a function for
//! [`ImageBuilder::adapt`](buttress_build::ImageBuilder::adapt). Owner maps can fail, so they wrap
//! a source instead of becoming a function. The result of an adapter depends on the entry alone, so
//! the order of entries does not matter.

mod contexts;
mod exclude;
mod ids;
mod rules;

pub use contexts::{ContextError, FileContexts};
pub use exclude::{Exclude, PatternError};
pub use ids::{IdMap, IdMapError, Mapped};
pub use rules::{Rule, Rules};
