//! Views of an engine for tests in other crates. Feature `testing`.

use crate::core_state::Core;
use crate::engine::{Engine, Holders, Shared};
use buttress_format::{ByteCount, DeviceId};
use std::sync::{Arc, Weak};

/// Observes an engine without keeping it open.
#[derive(Clone, Debug)]
pub struct Observer(Weak<Shared>);

/// Keeps an engine open, as a handle does.
#[derive(Debug)]
pub struct Keeper(Arc<Holders>);

impl Observer {
    /// Returns whether the engine was dropped.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.upgrade().is_none()
    }

    /// Returns whether the edit lock is held; `None` if the engine is gone.
    #[must_use]
    pub fn is_edit_locked(&self) -> Option<bool> {
        let shared = self.0.upgrade()?;
        // A query that acquired the lock would be seen by the query of another reading thread.
        Some(shared.running.is_locked())
    }
}

impl Keeper {
    /// Wakes the thread that commits, if there is one.
    pub fn wake(&self) {
        if let Some(background) = &self.0.background {
            background.wake();
        }
    }
}

impl Engine {
    /// Returns an observer.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer(Arc::downgrade(&self.shared))
    }

    /// Returns a keeper of the engine; `None` while the volume is being opened.
    #[must_use]
    pub fn keeper(&self) -> Option<Keeper> {
        self.holders.clone().map(Keeper)
    }

    /// Returns how much memory may be dirty, in bytes.
    #[must_use]
    pub fn dirty_limit(&self) -> ByteCount {
        self.shared.dirty_memory.limit()
    }

    /// Returns how much memory dirty metadata takes, in bytes.
    #[must_use]
    pub fn dirty_held(&self) -> ByteCount {
        self.shared.dirty_memory.held()
    }

    /// Returns how much memory dirty data may take, in bytes.
    #[must_use]
    pub fn dirty_data_limit(&self) -> ByteCount {
        self.shared.dirty_memory.content_limit()
    }

    /// Keeps new chunks off a range of a device, as on a device that returns.
    pub fn keep_range(&self, device: DeviceId, start: u64, length: u64) {
        let mut running = self.shared.running.lock();
        if let Some(room) = running.core.devices.room_mut(device) {
            room.kept.add(start, length);
        }
    }

    /// Lets a test change the state of the running transaction without the engine's checks.
    pub fn with_core<T>(&self, change: impl FnOnce(&mut Core) -> T) -> T {
        change(&mut self.shared.running.lock().core)
    }
}
