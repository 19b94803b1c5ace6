//! A device whose requests take random times: under an engine with threads they end in any order.
//!
//! Over a device of the crash laboratory this behaves like a real queue: a write that was started
//! and not awaited reaches the device after the flush that should have covered it, and the
//! laboratory may lose it. The seed determines the duration of a request, but not the scheduling of
//! threads, so two runs may differ. The writer must keep overlapping requests in order.

use buttress::Backend;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A device with delays.
#[derive(Debug)]
pub struct Unsteady {
    below: Arc<dyn Backend>,
    state: AtomicU64,
}

impl Unsteady {
    /// Creates a device over another one.
    #[must_use]
    pub fn over(below: Arc<dyn Backend>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            below,
            state: AtomicU64::new(seed),
        })
    }

    /// Delays: half of the requests take no time, some as long as many other ones.
    fn pause(&self) {
        let drawn = self.state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (drawn ^ drawn.wrapping_shr(30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        match mixed & 15 {
            0..8 => {}
            8..14 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros((mixed >> 4) & 255)),
        }
    }
}

impl Backend for Unsteady {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_writable(&self) -> bool {
        self.below.is_writable()
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        self.below.read_vectored_at(offset_bytes, buffers)
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.pause();
        self.below.write_at(offset_bytes, bytes)?;
        self.pause();
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.pause();
        self.below.flush()?;
        self.pause();
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.pause();
        self.below.discard(offset_bytes, length_bytes)
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.pause();
        self.below.zero(offset_bytes, length_bytes)
    }
}
