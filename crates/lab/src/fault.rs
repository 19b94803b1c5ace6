//! Injected faults over any backend: what a medium, a cable or a drive's firmware does to data.
//!
//! Which request a fault strikes is decided by its range, by counting requests, or by a seeded draw, so a run
//! replays from its seed and its order of requests. The backend below is never harmed by bit rot: it is applied
//! to what is read, until the rotten byte is written again. Torn and misdirected writes do reach the backend.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};

use buttress_device::Backend;

use crate::layer::{byte_length, geometry_of_inner, range_of};

lock_class!(FaultsLock, "state", Rank::LEAF);

/// Something that goes wrong. Ranges are in bytes of the device; requests are counted from 0, since the faulty
/// backend was made.
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
    /// The write with this number and all that come after it fail, and write nothing.
    FailWritesFrom(u64),
    /// The flush with this number fails.
    FailFlushNumber(u64),
    /// The flush with this number and all that come after it fail.
    FailFlushesFrom(u64),
    /// The write with this number fails, and everything after it, reads too, as if the device had been pulled out then.
    MissingFromWrite(u64),
    /// A share of all reads fails: one in so many, drawn by the seed.
    FailSomeReads {
        /// The mean number of reads for each that fails; 0 for none.
        one_in: u64,
    },
    /// In each `every_bytes` of the range one bit is flipped, at a place drawn by the seed.
    RotBits {
        /// Where.
        range: Range<u64>,
        /// How thickly; 0 is taken as 1.
        every_bytes: u64,
    },
    /// The write with this number only gets its first bytes to the medium, and says nothing.
    TearWriteNumber {
        /// Which write.
        number: u64,
        /// How many of its bytes arrive.
        kept_bytes: u64,
    },
    /// The write with this number goes elsewhere, and says nothing.
    MisdirectWriteNumber {
        /// Which write.
        number: u64,
        /// Where it goes instead; lost if it does not fit there.
        to_bytes: u64,
    },
    /// Everything fails, as if the device had been pulled out.
    Missing,
    /// Writes fail for want of space, once this many bytes were written in all.
    FullAfter(u64),
}

/// A backend with faults. Keep a clone of the `Arc` to inject more while it is in use.
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
    /// Rotten bytes that were written again.
    healed: BTreeSet<u64>,
}

enum WriteFate {
    Done,
    Torn(u64),
    Misdirected(u64),
}

impl FaultyBackend {
    /// The backend `inner`, with nothing wrong yet.
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

    /// Takes all faults back. What torn and misdirected writes did stays done.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// How many bytes were written so far, or were to be.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.state.lock().written_bytes
    }

    /// How many reads, writes and flushes were asked for so far, failed ones included.
    #[must_use]
    pub fn request_counts(&self) -> (u64, u64, u64) {
        let state = self.state.lock();
        (state.reads, state.writes, state.flushes)
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
        check_present(&state)?;
        if failed { Err(medium_error()) } else { Ok(()) }
    }

    fn check_write(&self, range: &Range<u64>) -> io::Result<WriteFate> {
        let mut state = self.state.lock();
        let number = count(&mut state.writes);
        check_present(&state)?;
        let total = state
            .written_bytes
            .saturating_add(range.end.saturating_sub(range.start));
        let mut fate = WriteFate::Done;
        for fault in &state.faults {
            match fault {
                Fault::FailWrites(bad) if overlap(bad, range) => return Err(medium_error()),
                Fault::FailWriteNumber(bad) if *bad == number => return Err(medium_error()),
                Fault::FailWritesFrom(first) if *first <= number => return Err(medium_error()),
                Fault::FullAfter(limit) if total > *limit => {
                    return Err(io::Error::from_raw_os_error(libc::ENOSPC));
                }
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
        state.written_bytes = total;
        Ok(fate)
    }

    /// Heals the rotten bytes in a range that was written.
    fn freshen(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        let places: Vec<u64> = self.rotten(&state, range).map(|(place, _)| place).collect();
        state.healed.extend(places);
    }

    /// The rotten bytes in a range, healed ones included, and the bit that is flipped in each.
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

fn medium_error() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// A bijection that spreads its input over all bits (the finaliser of SplitMix64, Steele, Lea and Flood 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value.wrapping_shr(30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value.wrapping_shr(27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value.wrapping_shr(31)
}

impl Backend for FaultyBackend {
    geometry_of_inner!();

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let length = buffers.iter().fold(0, |sum: u64, buffer| {
            sum.saturating_add(byte_length(buffer.len()))
        });
        let range = range_of(offset_bytes, length);
        self.check_read(&range)?;
        self.inner.read_vectored_at(offset_bytes, buffers)?;
        self.rot(&range, buffers);
        Ok(())
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let length = byte_length(bytes.len());
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
        check_present(&state)?;
        let fails = |fault: &Fault| match fault {
            Fault::FailFlushNumber(bad) => *bad == number,
            Fault::FailFlushesFrom(first) => *first <= number,
            _ => false,
        };
        if state.faults.iter().any(fails) {
            return Err(medium_error());
        }
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
mod tests {
    use super::*;
    use buttress_device::MemoryBackend;

    fn faulty(faults: &[Fault]) -> (Arc<FaultyBackend>, Arc<MemoryBackend>) {
        let memory = Arc::new(MemoryBackend::new("m", vec![0; 1 << 16]));
        let backend = FaultyBackend::new(Arc::clone(&memory) as Arc<dyn Backend>, 7);
        faults.iter().for_each(|fault| backend.inject(fault.clone()));
        (backend, memory)
    }

    fn read(backend: &FaultyBackend, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let (first, second) = bytes.split_at_mut(length / 3);
        backend.read_vectored_at(offset, &mut [first, second])?;
        Ok(bytes)
    }

    #[test]
    fn failing_ranges_fail_what_touches_them() {
        let (backend, _) = faulty(&[Fault::FailReads(100..101), Fault::FailWrites(200..300)]);
        for (offset, length, fails) in [(0, 100, false), (0, 101, true), (100, 1, true), (101, 9, false)] {
            assert_eq!(
                read(&backend, offset, length).is_err(),
                fails,
                "{offset} {length}"
            );
        }
        assert!(backend.write_at(190, &[0; 10]).is_ok());
        assert_eq!(
            backend.write_at(299, &[0; 1]).unwrap_err().raw_os_error(),
            Some(libc::EIO)
        );
        backend.heal();
        assert!(read(&backend, 100, 1).is_ok());
    }

    #[test]
    fn numbered_faults_strike_once() {
        let (backend, _) = faulty(&[
            Fault::FailReadNumber(1),
            Fault::FailWriteNumber(0),
            Fault::FailFlushNumber(1),
        ]);
        assert_eq!(
            [0, 1, 2].map(|_| read(&backend, 0, 9).is_ok()),
            [true, false, true]
        );
        assert_eq!([0, 1].map(|_| backend.write_at(0, &[1]).is_ok()), [false, true]);
        assert_eq!([0, 1, 2].map(|_| backend.flush().is_ok()), [true, false, true]);
        assert_eq!(backend.request_counts(), (3, 2, 3));
    }

    #[test]
    fn a_device_that_broke_writes_nothing_more_until_it_heals() {
        let (backend, _) = faulty(&[Fault::FailWritesFrom(2)]);
        let write = || backend.write_at(0, &[1]).is_ok();
        assert_eq!([0, 1, 2, 3].map(|_| write()), [true, true, false, false]);
        backend.heal();
        assert!(write());
    }

    #[test]
    fn a_device_that_is_pulled_out_at_a_write_gives_nothing_from_there_on() {
        let (backend, _) = faulty(&[Fault::MissingFromWrite(1), Fault::FailFlushesFrom(1)]);
        assert!(read(&backend, 0, 1).is_ok());
        assert!(backend.write_at(0, &[1]).is_ok());
        assert!(backend.flush().is_ok());
        assert!(read(&backend, 0, 1).is_ok() && backend.flush().is_err() && backend.flush().is_err());
        assert!(backend.write_at(0, &[1]).is_err());
        assert!(read(&backend, 0, 1).is_err());
        backend.heal();
        assert!(read(&backend, 0, 1).is_ok() && backend.flush().is_ok());
    }

    #[test]
    fn rot_flips_one_bit_in_each_block_until_it_is_written_again() {
        let range = 4096..20_480;
        let (backend, memory) = faulty(&[Fault::RotBits {
            range: range.clone(),
            every_bytes: 1024,
        }]);
        let bytes = read(&backend, 0, 1 << 16).unwrap();
        let rotten: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i] != 0).collect();
        assert_eq!(rotten.len(), 16);
        assert!(
            rotten
                .iter()
                .all(|i| range.contains(&(*i as u64)) && bytes[*i].count_ones() == 1)
        );
        assert_eq!(read(&backend, 0, 1 << 16).unwrap(), bytes, "the same each time");
        let parts: Vec<u8> = (0..64)
            .flat_map(|i| read(&backend, i * 1024, 1024).unwrap())
            .collect();
        assert_eq!(parts, bytes, "however it is read");
        backend.write_at(rotten[3] as u64, &[0]).unwrap();
        let after = read(&backend, 0, 1 << 16).unwrap();
        assert_eq!(after.iter().filter(|byte| **byte != 0).count(), 15);
        assert_eq!(after[rotten[3]], 0);
        assert!(
            memory.snapshot().iter().all(|byte| *byte == 0),
            "the medium below is whole"
        );
    }

    #[test]
    fn torn_and_misdirected_writes_say_nothing() {
        let (backend, memory) = faulty(&[
            Fault::TearWriteNumber {
                number: 0,
                kept_bytes: 3,
            },
            Fault::MisdirectWriteNumber {
                number: 1,
                to_bytes: 50,
            },
            Fault::MisdirectWriteNumber {
                number: 2,
                to_bytes: u64::MAX,
            },
        ]);
        for _ in 0..3 {
            backend.write_at(10, &[9; 5]).unwrap();
        }
        let bytes = memory.snapshot();
        assert_eq!(bytes[10..15], [9, 9, 9, 0, 0]);
        assert_eq!(bytes[50..55], [9; 5]);
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 8);
    }

    #[test]
    fn missing_and_full_devices_say_so() {
        let (backend, _) = faulty(&[Fault::FullAfter(8)]);
        assert!(backend.write_at(0, &[1; 8]).is_ok());
        assert_eq!(
            backend.write_at(0, &[1]).unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
        backend.inject(Fault::Missing);
        assert!(read(&backend, 0, 1).is_err());
        assert!(backend.flush().is_err());
        assert!(backend.write_at(0, &[]).is_err());
    }

    #[test]
    fn the_share_of_failing_reads_is_about_the_one_asked_for_and_replays() {
        let failures = || {
            let (backend, _) = faulty(&[Fault::FailSomeReads { one_in: 10 }]);
            (0..5000)
                .filter(|_| read(&backend, 0, 3).is_err())
                .collect::<Vec<_>>()
        };
        let first = failures();
        assert!((400..600).contains(&first.len()), "{}", first.len());
        assert_eq!(first, failures());
    }
}
