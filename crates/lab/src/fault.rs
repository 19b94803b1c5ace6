//! Injected faults over any backend: the failures of a medium, a cable or a drive's firmware.
//!
//! A fault strikes a request by its range, by its number, or by a seeded draw, so a seed and an
//! order of requests reproduce a run. Bit rot never changes the backend below: it applies to bytes
//! that are read, until the program writes the damaged byte again. Torn and misdirected writes do
//! change the backend.
//!
//! Clamps: of a laboratory for tests, whose images are compared as a whole.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};

use buttress_device::Backend;

use crate::layer::{geometry_of_inner, range_of};
use buttress_exact::u64_of;

mod sweep;

pub use sweep::strike_each;

lock_class!(FaultsLock, "state", Rank::LEAF);

/// A fault of a device. Ranges are in bytes of the device. Requests are counted from 0, from the
/// creation of the faulty backend on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Every read that touches the range fails.
    FailReads(Range<u64>),
    /// Every write that touches the range fails, and writes nothing.
    FailWrites(Range<u64>),
    /// The read with this number fails.
    FailReadNumber(u64),
    /// The write with this number fails, and writes nothing.
    FailWriteNumber(u64),
    /// The write with this number and all later writes fail, and write nothing.
    FailWritesFrom(u64),
    /// The flush with this number fails.
    FailFlushNumber(u64),
    /// The flush with this number and all later flushes fail.
    FailFlushesFrom(u64),
    /// The write with this number and all later requests fail, reads included, as if the device had
    /// been removed.
    MissingFromWrite(u64),
    /// A share of all reads fails: one in `one_in`, drawn by the seed.
    FailSomeReads {
        /// The mean number of reads for each failing read; 0 for no failures.
        one_in: u64,
    },
    /// In each run of `every_bytes` in the range, one bit is flipped, at a place drawn by the seed.
    RotBits {
        /// The affected range.
        range: Range<u64>,
        /// The number of bytes for each flipped bit; 0 counts as 1.
        every_bytes: u64,
    },
    /// The write with this number stores only its first bytes, and reports success.
    TearWriteNumber {
        /// The number of the write.
        number: u64,
        /// The number of stored bytes.
        kept_bytes: u64,
    },
    /// The write with this number goes to another place, and reports success.
    MisdirectWriteNumber {
        /// The number of the write.
        number: u64,
        /// The offset to which the misdirected write goes instead. A write that does not fit at
        /// that offset is lost.
        to_bytes: u64,
    },
    /// All requests fail, as if the device had been removed.
    Missing,
    /// Writes fail for lack of space after this total number of written bytes.
    FullAfter(u64),
    /// The write with this number and all later writes fail for lack of space, and write nothing.
    FullFromWrite(u64),
}

/// A backend with faults. A clone of the backend's `Arc` can inject further faults while the
/// backend is in use.
#[derive(Debug)]
pub struct FaultyBackend {
    inner: Arc<dyn Backend>,
    seed: u64,
    state: Mutex<State, FaultsLock>,
}

#[derive(Debug, Default)]
struct State {
    faults: Vec<Fault>,
    reads: u64,
    writes: u64,
    flushes: u64,
    written_bytes: u64,
    /// The number of requests that a fault struck, without bit rot.
    struck: u64,
    /// Bytes with bit rot that the program has written again.
    healed: BTreeSet<u64>,
}

enum WriteFate {
    Done,
    Torn(u64),
    Misdirected(u64),
}

impl FaultyBackend {
    /// Returns the backend `inner` without faults so far.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            inner,
            seed,
            state: Mutex::default(),
        })
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Removes all faults of the backend. The effects of torn and misdirected writes remain.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// Returns the number of bytes in all writes so far, failed ones included.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.state.lock().written_bytes
    }

    /// Returns the numbers of reads, writes and flushes so far, failed ones included.
    #[must_use]
    pub fn request_counts(&self) -> (u64, u64, u64) {
        let state = self.state.lock();
        (state.reads, state.writes, state.flushes)
    }

    /// Returns the number of requests that a fault struck so far: failed, torn or misdirected ones.
    /// Bit rot does not count.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.state.lock().struck
    }

    fn check_read(&self, range: &Range<u64>) -> io::Result<()> {
        let mut state = self.state.lock();
        let number = count(&mut state.reads);
        let failed = state.faults.iter().any(|fault| match fault {
            Fault::FailReads(bad) => overlap(bad, range),
            Fault::FailReadNumber(bad) => *bad == number,
            Fault::FailSomeReads { one_in } => mix(self.seed ^ mix(number)).checked_rem(*one_in) == Some(0),
            _ => false,
        });
        let fate = check_present(&state).and_then(|()| match failed {
            true => Err(medium_error()),
            false => Ok(()),
        });
        state.note(fate)
    }

    fn check_write(&self, range: &Range<u64>) -> io::Result<WriteFate> {
        let mut state = self.state.lock();
        let number = count(&mut state.writes);
        let length = range.end.saturating_sub(range.start);
        let total = state.written_bytes.saturating_add(length);
        let fate = state.fate_of_write(number, range, total);
        let fate = state.note(fate)?;
        match fate {
            WriteFate::Done => {}
            WriteFate::Torn(_) | WriteFate::Misdirected(_) => state.struck = state.struck.saturating_add(1),
        }
        state.written_bytes = total;
        Ok(fate)
    }

    /// Ends the rot of bytes in a written range.
    fn freshen(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        let places: Vec<u64> = self.rotten(&state, range).map(|(place, _)| place).collect();
        state.healed.extend(places);
    }

    /// Returns the bytes with bit rot in a range, written ones included, each with its flipped bit.
    fn rotten<'a>(&'a self, state: &'a State, range: &'a Range<u64>) -> impl Iterator<Item = (u64, u8)> + 'a {
        state.faults.iter().flat_map(move |fault| {
            let (rot, every) = match fault {
                Fault::RotBits {
                    range: rot,
                    every_bytes,
                } => (rot.clone(), (*every_bytes).max(1)),
                _ => (0..0, 1),
            };
            let first = range.start.max(rot.start).checked_div(every).unwrap_or(0);
            let end = range.end.min(rot.end);
            let wanted = range.clone();
            (first..)
                .take_while(move |block| block.checked_mul(every).is_some_and(|start| start < end))
                .map(move |block| {
                    let draw = mix(self.seed ^ mix(block));
                    let within = draw.checked_rem(every).unwrap_or(0);
                    let bit = u32::try_from(draw.wrapping_shr(60) & 7).unwrap_or(0);
                    (
                        block.wrapping_mul(every).saturating_add(within),
                        1_u8.wrapping_shl(bit),
                    )
                })
                .filter(move |(place, _)| wanted.contains(place) && rot.contains(place))
        })
    }

    fn rot(&self, range: &Range<u64>, buffers: &mut [&mut [u8]]) {
        let state = self.state.lock();
        for (place, bit) in self.rotten(&state, range) {
            if state.healed.contains(&place) {
                continue;
            }
            let mut index = usize::try_from(place.saturating_sub(range.start)).unwrap_or(usize::MAX);
            for buffer in buffers.iter_mut() {
                if let Some(byte) = buffer.get_mut(index) {
                    *byte ^= bit;
                    break;
                }
                index = index.saturating_sub(buffer.len());
            }
        }
    }
}

impl State {
    /// Counts a request that the fault makes fail.
    fn note<T>(&mut self, fate: io::Result<T>) -> io::Result<T> {
        if fate.is_err() {
            self.struck = self.struck.saturating_add(1);
        }
        fate
    }

    /// Returns the fate of a write, from its number, its range, and the total of bytes written with
    /// it.
    fn fate_of_write(&self, number: u64, range: &Range<u64>, total: u64) -> io::Result<WriteFate> {
        check_present(self)?;
        let mut fate = WriteFate::Done;
        for fault in &self.faults {
            match fault {
                Fault::FailWrites(bad) if overlap(bad, range) => return Err(medium_error()),
                Fault::FailWriteNumber(bad) if *bad == number => return Err(medium_error()),
                Fault::FailWritesFrom(first) if *first <= number => return Err(medium_error()),
                Fault::FullAfter(limit) if total > *limit => return Err(no_space()),
                Fault::FullFromWrite(first) if *first <= number => return Err(no_space()),
                Fault::TearWriteNumber {
                    number: bad,
                    kept_bytes,
                } if *bad == number => {
                    fate = WriteFate::Torn(*kept_bytes);
                }
                Fault::MisdirectWriteNumber {
                    number: bad,
                    to_bytes,
                } if *bad == number => {
                    fate = WriteFate::Misdirected(*to_bytes);
                }
                _ => {}
            }
        }
        Ok(fate)
    }
}

fn check_present(state: &State) -> io::Result<()> {
    let is_missing = |fault: &Fault| match fault {
        Fault::Missing => true,
        Fault::MissingFromWrite(first) => state.writes > *first,
        _ => false,
    };
    if state.faults.iter().any(is_missing) {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    Ok(())
}

fn count(counter: &mut u64) -> u64 {
    let number = *counter;
    *counter = number.wrapping_add(1);
    number
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn no_space() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSPC)
}

fn medium_error() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// Returns a bijective mix of the input's bits (the finaliser of SplitMix64, Steele, Lea and Flood
/// 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value.wrapping_shr(30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value.wrapping_shr(27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value.wrapping_shr(31)
}

impl Backend for FaultyBackend {
    geometry_of_inner!();

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let length = buffers
            .iter()
            .fold(0, |sum: u64, buffer| sum.saturating_add(u64_of(buffer.len())));
        let range = range_of(offset_bytes, length);
        self.check_read(&range)?;
        self.inner.read_vectored_at(offset_bytes, buffers)?;
        self.rot(&range, buffers);
        Ok(())
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let length = u64_of(bytes.len());
        let range = range_of(offset_bytes, length);
        let (offset, kept) = match self.check_write(&range)? {
            WriteFate::Done => (offset_bytes, length),
            WriteFate::Torn(kept) => (offset_bytes, kept.min(length)),
            WriteFate::Misdirected(to) => (to, length),
        };
        let kept_bytes = usize::try_from(kept)
            .ok()
            .and_then(|kept| bytes.get(..kept))
            .unwrap_or_default();
        let written = self.inner.write_at(offset, kept_bytes);
        if written.is_err() && offset != offset_bytes {
            return Ok(());
        }
        self.freshen(&range_of(offset, kept));
        written
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let number = count(&mut state.flushes);
        let fails = |fault: &Fault| match fault {
            Fault::FailFlushNumber(bad) => *bad == number,
            Fault::FailFlushesFrom(first) => *first <= number,
            _ => false,
        };
        let failed = state.faults.iter().any(fails);
        let fate = check_present(&state).and_then(|()| match failed {
            true => Err(medium_error()),
            false => Ok(()),
        });
        state.note(fate)?;
        drop(state);
        self.inner.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        check_present(&self.state.lock())?;
        self.inner.discard(offset_bytes, length_bytes)
    }

    fn may_run_out(&self) -> bool {
        self.inner.may_run_out()
    }

    fn reserve(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        check_present(&self.state.lock())?;
        self.inner.reserve(offset_bytes, length_bytes)
    }

    fn describe_space(&self) -> Option<String> {
        self.inner.describe_space()
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let range = range_of(offset_bytes, length_bytes);
        self.check_write(&range)?;
        self.inner.zero(offset_bytes, length_bytes)?;
        self.freshen(&range);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
