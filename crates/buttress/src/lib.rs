//! buttress
