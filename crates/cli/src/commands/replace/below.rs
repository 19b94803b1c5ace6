//! Names of the layers below the library's interface that replacements use: a replacement's state is
//! an on-disk item, and its ends are slots of devices.

pub(super) use buttress::unstable::format::{ReplaceItem, ReplaceState};
pub(super) use buttress::unstable::fs::Filesystem;
pub(super) use buttress::unstable::scrub::Replace;
pub(super) use buttress::unstable::volume::replacement::TARGET_ID;
pub(super) use buttress::unstable::volume::{DeviceSlot, signatures, superblocks};
pub(super) use buttress::unstable::writer::{WritableFilesystem, replacement_item, wipe_superblocks};
pub(super) use buttress::unstable::{filesystem_of, writer_of};
