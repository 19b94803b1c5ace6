//! Small batches of writes that only copy into the system's page cache, which the caller performs
//! at once.
//!
//! Neighbours are merged as in the queue ([`crate::queue::plug`]), and the statistics count the
//! same. Nothing is queued, so no thread has to receive the requests and be awaited. The log of an
//! fsync writes such a batch.
//!
//! Left out: all writes except small batches; these other writes go through the queue.

use crate::device::Device;
use crate::error::{IoError, Operation, byte_length};
use crate::queue::plug;
use crate::queue::request::WriteRequest;
use crate::queue::statistics::Direction;
use crate::queue::{Core, copy_of};
use buttress_exact::Exact as _;

fn bytes_of(lengths: impl Iterator<Item = usize>) -> u64 {
    lengths.map(byte_length).fold(0, u64::exact_add)
}

impl Device {
    /// Writes a batch on this thread, if it only copies a few bytes into the system's cache. Acts
    /// like [`start_writes`](Self::start_writes) followed by waits for all, with less accounting.
    /// Returns the failures of the writes. Returns `None` and writes nothing if the batch is too
    /// large, or if a request is not on the device.
    #[must_use]
    pub fn copy_writes(&self, requests: &[WriteRequest]) -> Option<Vec<IoError>> {
        let core = self.core();
        let is_here = |request: &WriteRequest| {
            let length = byte_length(request.bytes.len());
            core.check_range(Operation::Write, request.offset_bytes, length)
                .is_ok()
        };
        if !requests.iter().all(is_here) {
            return None;
        }
        let ranges = requests
            .iter()
            .map(|request| (request.offset_bytes, request.bytes.len()));
        let order = plug::in_order(ranges);
        let runs = || plug::runs(&order, self.max_request_bytes());
        let total = bytes_of(order.iter().map(|item| item.length));
        let lengths = runs().map(|run| bytes_of(run.iter().map(|item| item.length)));
        // Clamp: an empty list of parts has no length.
        if !self.engine_of().is_small_copy(total, lengths.max().unwrap_or(0)) {
            return None;
        }
        buttress_locks::waits_for_device();
        let mut failures = Vec::new();
        let mut parts: Vec<&[u8]> = Vec::with_capacity(order.len());
        for run in runs() {
            parts.clear();
            let asked = run.iter().filter_map(|item| requests.get(item.asked));
            parts.extend(asked.map(|request| &request.bytes[..]));
            let offset = run.first().map_or(0, |item| item.offset_bytes);
            core.copy_run(offset, &parts, &mut failures);
        }
        Some(failures)
    }
}

impl Core {
    /// Writes parts that are adjacent on the device. If the joint write fails, writes each part by
    /// itself, so that only unwritable parts fail.
    fn copy_run(&self, offset_bytes: u64, parts: &[&[u8]], failures: &mut Vec<IoError>) {
        let length = bytes_of(parts.iter().map(|part| part.len()));
        let queued = self.clock.now();
        self.recorder.queued(1, queued);
        let written = match parts {
            [part] => self.backend.write_at(offset_bytes, part),
            _ => self.backend.write_vectored_at(offset_bytes, parts),
        };
        let merged = parts.len().exact_sub(1);
        self.recorder
            .completed(Direction::Write, length, merged, queued, self.clock.now());
        let Err(cause) = written else {
            return;
        };
        let mut offset = offset_bytes;
        for part in parts {
            let outcome = match parts.len() > 1 {
                true => self.backend.write_at(offset, part),
                false => Err(copy_of(&cause)),
            };
            let length = byte_length(part.len());
            let failed = outcome.map_err(|cause| self.error(Operation::Write, offset, length, &cause));
            failures.extend(failed.err());
            offset = offset.exact_add(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::OpenOptions;
    use bytes::Bytes;

    fn request(offset_bytes: u64, byte: u8, length: usize) -> WriteRequest {
        let bytes = Bytes::from(vec![byte; length]);
        WriteRequest { offset_bytes, bytes }
    }

    /// Neighbours form one request, whatever their order in the batch. Separate ranges form
    /// separate requests. A batch that is large or not on the device goes to the queue, and none of
    /// it is written here.
    #[test]
    fn small_batches_are_written_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4 << 20).unwrap();
        let options = OpenOptions {
            write: true,
            ..OpenOptions::default()
        };
        let device = Device::open(file.path(), &options).unwrap();
        let before = device.statistics();
        let batch = [
            request(8192, b'c', 4096),
            request(100_000, b'd', 100),
            request(4096, b'b', 4096),
        ];
        assert!(device.copy_writes(&batch).unwrap().is_empty());
        let counted = device.statistics().since(&before).writes;
        assert_eq!((counted.requests, counted.merged, counted.bytes), (2, 1, 8292));
        let read = |offset: u64, length: usize| {
            let mut bytes = vec![0; length];
            std::os::unix::fs::FileExt::read_exact_at(file.as_file(), &mut bytes, offset).unwrap();
            bytes
        };
        assert!(read(4096, 4096).iter().all(|byte| *byte == b'b'));
        assert!(read(8192, 4096).iter().all(|byte| *byte == b'c'));
        assert!(read(100_000, 100).iter().all(|byte| *byte == b'd'));
        for refused in [request(0, b'x', 1 << 20), request(4 << 20, b'x', 1)] {
            assert!(device.copy_writes(&[request(0, b'x', 512), refused]).is_none());
        }
        assert!(read(0, 4096).iter().all(|byte| *byte == 0));
    }
}
