//! The limits of a member's path. A path of a few kilobytes can name thousands of directories, and each
//! has a path of its own.

use super::error::Problem;
use buttress_exact::u64_of;

/// The maximum length of a path.
const PATH_BYTES_MAX: usize = 32 << 10;
/// The maximum number of components of a path, which is that of the longest path for the kernel.
const PATH_COMPONENTS_MAX: usize = 2048;

/// Checks that a path is within the limits.
pub(super) fn check(path: &[u8]) -> Result<(), Problem> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Problem::TooLong {
            what: "a path",
            bytes: u64_of(path.len()),
            most: u64_of(PATH_BYTES_MAX),
        });
    }
    let components = path
        .split(|byte| *byte == b'/')
        .filter(|component| !component.is_empty());
    let found = components.count();
    match found > PATH_COMPONENTS_MAX {
        true => Err(Problem::TooDeep {
            found,
            most: PATH_COMPONENTS_MAX,
        }),
        false => Ok(()),
    }
}
