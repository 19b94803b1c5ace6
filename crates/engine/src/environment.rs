//! Inputs of edits from outside: the time, uuids, and the interval of background commits.

use crate::uncommitted::Uncommitted;
use buttress_format::{Timestamp, Uuid};
use core::time::Duration;
use std::fmt;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// The source of times and uuids for edits. An injected source makes the same edits produce the
/// same bytes.
pub trait Environment: fmt::Debug + Send + Sync {
    /// Returns the time that inodes and subvolumes record.
    fn now(&self) -> Timestamp;

    /// Returns a new unique uuid.
    fn new_uuid(&self) -> Uuid;

    /// Returns how long changes may stay dirty before a background thread commits them. With an
    /// interval, background commits also begin when much memory is dirty. `None`, the default,
    /// means no such thread: only calls commit.
    fn commit_interval(&self) -> Option<Duration> {
        None
    }

    /// Returns the latest time that the volume may record; later times are reduced to it. `None`,
    /// the default, allows any time.
    fn latest(&self) -> Option<Timestamp> {
        None
    }

    /// Reports changes that are lost because the last handle was dropped without a commit or
    /// [`abandon`](crate::Engine::abandon). The default implementation prints a line about the loss
    /// on standard error.
    fn lost(&self, lost: &Uncommitted) {
        // An error of standard error cannot be reported anywhere else.
        let _ = writeln!(
            std::io::stderr(),
            "buttress: lost without a commit: {lost}; the volume stays at generation {} (`close` commits, `abandon` discards without this message)",
            lost.committed
        );
    }
}

/// The system's clock, random uuids, and an interval of 30 seconds between commits.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnvironment;

impl Environment for SystemEnvironment {
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanoseconds: since.subsec_nanos(),
            },
            Err(_) => Timestamp::default(),
        }
    }

    fn new_uuid(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn commit_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(30))
    }
}
