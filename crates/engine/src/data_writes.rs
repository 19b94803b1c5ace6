//! Writes file data to the devices, together with other data that shares rows with it.

use crate::engine::Engine;
use buttress_format::Logical;
use buttress_fs::checksums::ExpectedChecksums;
use buttress_volume::{ExtentRead, ExtentWrite};
use core::ops::Range;
use std::collections::HashMap;

impl Engine {
    /// Writes data. If the write covers rows with parity partly, checksums of the last commit
    /// verify the rows' other data. The checksums of the last commit are valid, because a freed
    /// address is not reused before the commit that freed it.
    ///
    /// # Errors
    /// Fails as [`buttress_volume::Volume::write_data`] does.
    pub fn write_data_beside(&self, writes: &[ExtentWrite]) -> Result<(), buttress_volume::Error> {
        let volume = self.forest().volume();
        let beside = volume.data_beside(writes)?;
        if beside.is_empty() || buttress_faults::on("volume-damage-beside-written-over") {
            return volume.write_data(writes, None);
        }
        let view = self.committed_view();
        // File data without a checksum in the checksum tree is not verified.
        let expect = |read: &ExtentRead| {
            let expected = view.expected_checksums(read.logical, read.length);
            Some(((read.logical, read.length), expected.ok()??))
        };
        let expected: HashMap<(Logical, usize), ExpectedChecksums> =
            beside.iter().filter_map(expect).collect();
        let verify = |read: ExtentRead, bytes: &[u8], bad: &mut Vec<Range<usize>>| {
            if let Some(expected) = expected.get(&(read.logical, read.length)) {
                expected.verify(bytes, bad);
            }
        };
        volume.write_data(writes, Some(&verify))
    }
}
