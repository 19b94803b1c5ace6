//! The devices of a lab, which work and record their requests, and the images of a history, which
//! only work.
//!
//! Clamps: this laboratory is for tests, and its images are compared as a whole.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_locks::unscheduled::RwLock;
use buttress_locks::{Rank, lock_class};
use bytes::Bytes;

use super::pages::Pages;
use super::{Event, Recorded, SharedLog};
use buttress_device::Backend;
use buttress_exact::u64_of;

lock_class!(PagesLock, "pages", Rank::new(86).over_device().several());

/// The value of discarded bytes in later reads. The value is nonzero, so that no program can rely
/// on discarded bytes.
pub(super) const DISCARDED: u8 = 0xd5;

/// The number of images made so far.
static IMAGES: AtomicU64 = AtomicU64::new(0);

/// A device after a crash: its own pages over those of the history.
#[derive(Debug)]
pub(super) struct CrashImage {
    name: String,
    pages: RwLock<Pages, PagesLock>,
}

impl CrashImage {
    pub(super) fn new(pages: Pages) -> Self {
        // A thread reads an image under the locks of the later images over it.
        let place = u128::MAX.saturating_sub(u128::from(IMAGES.fetch_add(1, Ordering::Relaxed)));
        Self {
            name: pages.name().to_owned(),
            pages: RwLock::with_place(pages, place),
        }
    }
}

impl Backend for CrashImage {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.pages.read().size_bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let pages = self.pages.read();
        let mut offset = offset_bytes;
        for buffer in buffers {
            pages.read(offset, buffer)?;
            offset = offset.saturating_add(u64_of(buffer.len()));
        }
        Ok(())
    }

    fn read_cached_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<bool> {
        self.read_vectored_at(offset_bytes, buffers).map(|()| true)
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.pages.write().write(offset_bytes, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.pages.write().fill(offset_bytes, length_bytes, DISCARDED)
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.pages.write().fill(offset_bytes, length_bytes, 0)
    }
}

/// A device that records its requests.
#[derive(Debug)]
pub(super) struct RecordingDevice {
    number: usize,
    live: CrashImage,
    log: SharedLog,
}

impl RecordingDevice {
    pub(super) fn new(number: usize, pages: Pages, log: SharedLog) -> Self {
        Self {
            number,
            live: CrashImage::new(pages),
            log,
        }
    }

    /// Records a change that begins now, makes the change, and records its return.
    ///
    /// A single lock on the bytes covers the record and the change. Of two writes to the same
    /// bytes, the history therefore has the same last write as the device.
    fn change(&self, event: Event, make: impl FnOnce(&mut Pages) -> io::Result<()>) -> io::Result<()> {
        let mut pages = self.live.pages.write();
        let place = {
            let mut log = self.log.lock();
            log.tick();
            let place = log.events.len();
            log.events.push(Recorded { event, time: None });
            place
        };
        make(&mut pages)?;
        drop(pages);
        let mut log = self.log.lock();
        let time = log.tick();
        if let Some(recorded) = log.events.get_mut(place) {
            recorded.time = Some(time);
        }
        Ok(())
    }
}

impl Backend for RecordingDevice {
    fn name(&self) -> &str {
        self.live.name()
    }

    fn size_bytes(&self) -> u64 {
        self.live.size_bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        self.live.read_vectored_at(offset_bytes, buffers)
    }

    fn read_cached_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<bool> {
        self.live.read_cached_vectored_at(offset_bytes, buffers)
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let event = Event::Write {
            device: self.number,
            offset_bytes,
            bytes: Bytes::copy_from_slice(bytes),
        };
        self.change(event, |pages| pages.write(offset_bytes, bytes))
    }

    fn flush(&self) -> io::Result<()> {
        let began = self.log.lock().tick();
        let mut log = self.log.lock();
        log.tick();
        log.events.push(Recorded {
            event: Event::Flush { device: self.number },
            time: Some(began),
        });
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let event = Event::Discard {
            device: self.number,
            range: offset_bytes..offset_bytes.saturating_add(length_bytes),
        };
        self.change(event, |pages| pages.fill(offset_bytes, length_bytes, DISCARDED))
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let event = Event::Zero {
            device: self.number,
            range: offset_bytes..offset_bytes.saturating_add(length_bytes),
        };
        self.change(event, |pages| pages.fill(offset_bytes, length_bytes, 0))
    }
}
