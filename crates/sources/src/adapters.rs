//! What changes entries, whichever source they are from: rules by path, maps of owners, exclusions, contexts of SELinux.
//!
//! Each is made into a function for [`ImageBuilder::adapt`](buttress_build::ImageBuilder::adapt); maps, which can fail, stand
//! before a source. What they say of an entry follows from the entry alone, so the order of entries does not matter.

mod contexts;
mod exclude;
mod ids;
mod rules;

pub use contexts::{ContextError, FileContexts};
pub use exclude::{Exclude, PatternError};
pub use ids::{IdMap, IdMapError, Mapped};
pub use rules::{Rule, Rules};
