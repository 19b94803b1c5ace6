//! Tests of relocation jobs while other threads write.
