//! Which chunk is next: so that every device has a stream of its own, and none has many.
//!
//! A chunk begins when one of its devices at least has nothing to do, and no device of it has two already. Where a device
//! turns, no chunk begins that needs a device which is at work: two streams would have its head go to and fro.

use buttress_exact::Exact as _;
use buttress_locks::{Condvar, Mutex, Rank, lock_class};
use buttress_volume::MappedChunk;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use uuid::Uuid;

lock_class!(ScheduleLock, "state", Rank::LEAF);

/// How many streams a device may have.
const STREAMS_MAX: usize = 2;

#[derive(Debug)]
pub(crate) struct Schedule {
    state: Mutex<State, ScheduleLock>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Arc<MappedChunk>>,
    /// Streams of each device.
    streams: HashMap<Uuid, usize>,
}

/// The devices of a chunk, each once.
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
        // Clamp: most devices have none.
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

    /// The next chunk to begin; waits for devices. `None` when all have begun.
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

    /// A chunk that was begun has no more to read.
    pub(crate) fn end(&self, chunk: &MappedChunk) {
        let mut state = self.state.lock();
        for (uuid, _) in devices(chunk) {
            if let Some(streams) = state.streams.get_mut(&uuid) {
                *streams = streams.exact_sub(1);
            }
        }
        self.changed.notify_all();
    }

    /// Nothing more begins.
    pub(crate) fn stop(&self) {
        self.state.lock().waiting.clear();
        self.changed.notify_all();
    }
}
