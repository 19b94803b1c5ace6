//! The volume of a recovery: its superblocks before, and its accounts of space after.

use super::error::{Error, Result};
use crate::rebuild::{self, Resources, Scope};
use crate::rounds::reason;
use buttress_device::Device;
use buttress_exact::u64_of;
use buttress_format::superblock::SuperblockFlags;
use buttress_format::{ByteCount, Incompat, Logical, Superblock};
use buttress_fs::{OpenOptions, Progress};
use buttress_packing::SpoolFolder;
use buttress_salvage::{State, states};
use buttress_volume::superblocks::choose;
use std::path::PathBuf;

/// The options of a recovery.
#[derive(Clone, Debug)]
pub struct RecoveryOptions {
    /// The budget of the node cache.
    pub cache: ByteCount,
    /// The folder of records that exceed the budget; `None` for the system's temporary folder.
    pub spool: Option<PathBuf>,
}

/// Returns the state that a superblock names.
///
/// # Errors
/// Fails if no superblock on the devices has a valid primary with this root.
pub(super) fn state_of(devices: &[Device], superblock: &Superblock) -> Result<State> {
    let state = states(devices, superblock.fsid, None)?.into_iter().next();
    let state = state.filter(|state| state.root.logical == superblock.root);
    state.ok_or(Error::Unsupported {
        what: "superblocks of different states; see `buttress rescue super-recover`",
    })
}

/// Returns the newest superblock. All devices must be present, and have the same generation.
pub(super) fn newest(devices: &[Device]) -> Result<Superblock> {
    let mut superblocks = Vec::new();
    for device in devices {
        superblocks.push(choose(device)?.superblock);
    }
    let newest = superblocks.iter().max_by_key(|superblock| superblock.generation);
    let newest = newest.ok_or(Error::MissingDevices {
        found: 0,
        expected: 1,
    })?;
    if newest.incompat.contains(Incompat::ZONED) {
        return Err(Error::Unsupported {
            what: "a zoned volume",
        });
    }
    if newest.flags.contains(SuperblockFlags::SEEDING) {
        return Err(Error::Unsupported {
            what: "a seed device",
        });
    }
    if newest.flags.rewrites_blocks() {
        return Err(Error::Unsupported {
            what: "an interrupted change of all tree blocks",
        });
    }
    if newest.log_root != Logical::MIN {
        return Err(Error::Unsupported {
            what: "a pending log",
        });
    }
    let own = superblocks.iter().filter(|other| other.fsid == newest.fsid);
    let found = u64_of(own.clone().count());
    if found != newest.num_devices || found != u64_of(devices.len()) {
        return Err(Error::MissingDevices {
            found,
            expected: newest.num_devices,
        });
    }
    for superblock in own {
        if superblock.generation != newest.generation {
            return Err(Error::Behind {
                device: superblock.device_item.device,
                generation: superblock.generation,
                newest: newest.generation,
            });
        }
    }
    Ok(newest.clone())
}

/// Rebuilds the trees that account for space, so that no later allocation takes the places of the
/// new blocks.
///
/// # Errors
/// Fails if a rebuild is impossible, with the reason.
pub(super) fn account(devices: &[Device], options: &RecoveryOptions, progress: &Progress) -> Result<()> {
    let filesystem = OpenOptions::new(devices.to_vec()).cache(options.cache).open()?;
    let resources = Resources {
        // The other half is for tree blocks.
        memory: ByteCount::new(options.cache.get() >> 1),
        folder: SpoolFolder::new(options.spool.as_deref()),
    };
    let rebuilt = rebuild::run(
        &filesystem,
        Scope::default(),
        &mut Vec::new(),
        &resources,
        progress,
    );
    let refused = match rebuilt {
        Err(buttress_fs::Error::WritingRefused(refusal)) => Some(refusal.to_string()),
        other => reason(other)?.map(str::to_owned),
    };
    match refused {
        None => Ok(()),
        Some(reason) => Err(Error::NotAccounted { reason }),
    }
}
