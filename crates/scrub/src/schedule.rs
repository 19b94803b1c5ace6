//! The choice of the next chunk, so that every device has a stream, and none has many.
//!
//! The stream of a chunk begins if at least one of its devices has no stream, and no device has
//! two. On a rotating device, a chunk begins only if that device has no stream: two streams would
//! make its head seek back and forth.

use buttress_exact::Exact as _;
use buttress_locks::{Condvar, Mutex, Rank, lock_class};
use buttress_volume::MappedChunk;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use uuid::Uuid;

lock_class!(ScheduleLock, "state", Rank::LEAF);

/// The most streams of a device.
const STREAMS_MAX: usize = 2;

#[derive(Debug)]
pub(crate) struct Schedule {
    state: Mutex<State, ScheduleLock>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Arc<MappedChunk>>,
    /// The number of streams of each device.
    streams: HashMap<Uuid, usize>,
}

/// Returns the devices of a chunk, each once.
fn devices(chunk: &MappedChunk) -> Vec<(Uuid, bool)> {
    let mut devices: Vec<(Uuid, bool)> = chunk
        .devices()
        .iter()
        .filter_map(|slot| Some((slot.uuid(), slot.device()?.is_rotational())))
        .collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

impl State {
    fn may_begin(&self, chunk: &MappedChunk) -> bool {
        // Clamp: most devices have no stream.
        let streams = |uuid: &Uuid| self.streams.get(uuid).copied().unwrap_or(0);
        let devices = devices(chunk);
        let most = match devices.iter().any(|(_, turns)| *turns) {
            true => 1,
            false => STREAMS_MAX,
        };
        let one_is_idle = devices.iter().any(|(uuid, _)| streams(uuid) == 0);
        devices.is_empty() || one_is_idle && devices.iter().all(|(uuid, _)| streams(uuid) < most)
    }
}

impl Schedule {
    pub(crate) fn new(chunks: impl IntoIterator<Item = Arc<MappedChunk>>) -> Self {
        Self {
            state: Mutex::new(State {
                waiting: chunks.into_iter().collect(),
                streams: HashMap::new(),
            }),
            changed: Condvar::new(),
        }
    }

    /// Returns the next chunk to begin, and waits for devices. Returns `None` if the streams of all
    /// chunks have begun.
    pub(crate) fn next(&self) -> Option<Arc<MappedChunk>> {
        let mut state = self.state.lock();
        loop {
            if state.waiting.is_empty() {
                return None;
            }
            let place = state.waiting.iter().position(|chunk| state.may_begin(chunk));
            if let Some(chunk) = place.and_then(|place| state.waiting.remove(place)) {
                for (uuid, _) in devices(&chunk) {
                    let streams = state.streams.entry(uuid).or_default();
                    *streams = streams.exact_add(1);
                }
                return Some(chunk);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Ends the stream of a chunk.
    pub(crate) fn end(&self, chunk: &MappedChunk) {
        let mut state = self.state.lock();
        for (uuid, _) in devices(chunk) {
            if let Some(streams) = state.streams.get_mut(&uuid) {
                *streams = streams.exact_sub(1);
            }
        }
        self.changed.notify_all();
    }

    /// Prevents the scrub from beginning further chunks.
    pub(crate) fn stop(&self) {
        self.state.lock().waiting.clear();
        self.changed.notify_all();
    }
}
