//! The input of edits from outside: the time, uuids, and whether a thread commits.

use crate::uncommitted::Uncommitted;
use buttress_format::{Timestamp, Uuid};
use core::time::Duration;
use std::fmt;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// What an edit takes from outside: the time, and uuids. Given, so that the same edits give the same bytes.
pub trait Environment: fmt::Debug + Send + Sync {
    /// The time that inodes and subvolumes get.
    fn now(&self) -> Timestamp;

    /// A uuid that nothing else has.
    fn new_uuid(&self) -> Uuid;

    /// How long edits may wait, by this clock, before a thread of the writer's own commits them. With an interval commits
    /// also begin in the background when much is dirty. `None`, as by default: there is no such thread, and commits
    /// happen where calls make them.
    fn commit_interval(&self) -> Option<Duration> {
        None
    }

    /// The latest time that the volume may get: a time that a call sets is brought down to it. `None`, as by default: any.
    fn latest(&self) -> Option<Timestamp> {
        None
    }

    /// The last handle of the volume went without a commit, and without saying that this was meant: all of this is lost. By
    /// default a line on standard error says so.
    fn lost(&self, lost: &Uncommitted) {
        // There is nobody else to tell when that fails.
        let _ = writeln!(
            std::io::stderr(),
            "buttress: lost for want of a commit: {lost}; the volume stays at generation {} (close commits, abandon forgets \
             without this)",
            lost.committed
        );
    }
}

/// The system's clock and random uuids; what waits is committed after 30 seconds.
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
