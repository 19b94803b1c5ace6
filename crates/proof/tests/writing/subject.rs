//! A volume under random changes, with a fault injector on each device.

use anyhow::{Context, Result};
use buttress::mkfs::Options;
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{Backend, Device, DeviceEngine as Engine};
use buttress_lab::FaultyBackend;
use buttress_lab::crash::CrashLab;
use buttress_proof::writing::volume::{Backends, Ticking, empty};
use buttress_proof::writing::workload::Workload;
use std::sync::Arc;

/// Number of operations between two commits.
pub(crate) const COMMIT_EVERY: u64 = 20;

/// A volume with a fault injector on each device.
pub(crate) struct Subject {
    /// Underlying devices, without faults.
    pub(crate) backends: Backends,
    pub(crate) faulty: Vec<Arc<FaultyBackend>>,
    pub(crate) filesystem: WritableFilesystem,
    pub(crate) workload: Workload,
    pub(crate) steps: u64,
    commit_every: u64,
}

impl Subject {
    /// Creates a volume; with a laboratory, all its writes are recorded.
    pub(crate) fn new(
        device_bytes: &[usize],
        options: &Options,
        seed: u64,
        lab: Option<&CrashLab>,
    ) -> Result<Self> {
        let mut backends = empty(device_bytes, options)?;
        if let Some(lab) = lab {
            backends = backends
                .into_iter()
                .map(|backend| lab.device(backend) as Arc<dyn Backend>)
                .collect();
        }
        let faulty: Vec<Arc<FaultyBackend>> = backends
            .iter()
            .map(|backend| FaultyBackend::new(Arc::clone(backend), seed))
            .collect();
        let devices = faulty
            .iter()
            .map(|backend| Device::with_backend(Arc::clone(backend) as Arc<dyn Backend>, Engine::Inline));
        let options = WriteOptions {
            environment: Arc::new(Ticking::default()),
            ..WriteOptions::default()
        };
        let filesystem = WritableFilesystem::new(OpenOptions::new(devices.collect()).open()?, options)?;
        let workload = Workload::on(&filesystem, seed)?;
        Ok(Self {
            backends,
            faulty,
            filesystem,
            workload,
            steps: 0,
            commit_every: COMMIT_EVERY,
        })
    }

    /// Sets the number of operations between two commits.
    pub(crate) fn committing_every(mut self, operations: u64) -> Self {
        self.commit_every = operations;
        self
    }

    /// Makes one operation, and a commit if it is due.
    pub(crate) fn step(&mut self) -> Result<()> {
        self.steps += 1;
        self.workload.step(&self.filesystem)?;
        if self.steps.is_multiple_of(self.commit_every) {
            self.filesystem.commit()?;
        }
        Ok(())
    }

    /// Returns the fault injector of a device.
    pub(crate) fn faulty(&self, device: usize) -> Result<&Arc<FaultyBackend>> {
        self.faulty.get(device).context("a device")
    }
}

/// Returns a state without the volume's number in its uuids, because the reference and each run are
/// separate volumes with the same changes.
pub(crate) fn without_volume_number(state: &str) -> String {
    const PREFIX: &str = "c4a50000-";
    /// Position of the volume's number in the text of a uuid.
    const NUMBER: std::ops::Range<usize> = 24..32;
    let mut parts = state.split(PREFIX);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (start, end) = (NUMBER.start - PREFIX.len(), NUMBER.end - PREFIX.len());
        text.push_str(PREFIX);
        text.push_str(&part[..start]);
        text.push_str(&part[end..]);
    }
    text
}
