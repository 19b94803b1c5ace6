//! Commands for information about the volume, its devices and subvolumes, and for the label and
//! syncs.

use super::super::MountedVolume;
use super::arguments::{Answer, Fields};
use super::rights::{is_privileged, require_listing, require_privileged};
use super::subvolumes::READ_ONLY;
use crate::vfs::{Answered, Caller, Control, Errno, Result};
use buttress::unstable::accounts::Accounts as _;
use buttress::unstable::format::{ItemType, Key, RootRef};
use buttress::unstable::fs::Filesystem;
use buttress::{DeviceStatistics, InodeNumber, Location, ReadAhead, SubvolumeId, Timestamp, TreeId};

const LABEL_BYTES: usize = 256;
const NAME_FIELD_BYTES: usize = 256;
const DEVICE_PATH_BYTES: usize = 1024;
const LOOKUP_PATH_BYTES: usize = 4080;
const ROOT_REFERENCES_MAX: usize = 255;
const COUNTERS: usize = 5;
/// Flags of the answer: it has checksums, generation and the metadata uuid. A FUSE server does not
/// receive the field that requests these flags.
const ALL_OF_INFORMATION: u64 = 0b111;
/// Largest depth of directories on a path; a deeper path counts as a loop.
const DEPTH_MAX: usize = 4096;

impl MountedVolume {
    pub(super) fn information(&self) -> Result<Answered> {
        let view = self.access.view();
        let superblock = view.superblock();
        let devices = view.volume().devices();
        let last = devices.iter().map(|slot| slot.id().get()).max().unwrap_or(0);
        let checksum = superblock.checksum_type;
        let mut answer = Answer::default();
        answer
            .u64(last)
            .u64(superblock.num_devices)
            .bytes(superblock.fsid.as_bytes())
            .u32(superblock.node_bytes)
            .u32(superblock.sector_bytes)
            .u32(superblock.sector_bytes)
            .u16(checksum.to_raw())
            .u16(u16::try_from(checksum.size_bytes()).unwrap_or(0))
            .u64(ALL_OF_INFORMATION)
            .u64(superblock.generation.get())
            .bytes(superblock.metadata_uuid.as_bytes())
            .up_to(1024);
        Ok(answer.0.into())
    }

    pub(super) fn device_information(&self, control: &Control<'_>) -> Result<Answered> {
        let mut fields = Fields(control.input);
        let (id, uuid) = (fields.u64()?, fields.bytes(16)?);
        let view = self.access.view();
        let is_wanted = |has: &[u8]| uuid.iter().all(|byte| *byte == 0) || uuid == has;
        let slots = view.volume().devices();
        let slot = slots
            .iter()
            .find(|slot| slot.id().get() == id && is_wanted(slot.uuid().as_bytes()));
        let slot = slot.ok_or(Errno(libc::ENODEV))?;
        let item = slot.item();
        let (total, used) = item.map_or((0, 0), |item| (item.total_bytes.get(), item.bytes_used.get()));
        let name = slot.name().as_bytes();
        let mut answer = Answer::default();
        answer
            .u64(id)
            .bytes(slot.uuid().as_bytes())
            .u64(used)
            .u64(total)
            .up_to(4096_usize.saturating_sub(DEVICE_PATH_BYTES))
            .field(
                name.get(..DEVICE_PATH_BYTES.saturating_sub(1)).unwrap_or(name),
                DEVICE_PATH_BYTES,
            );
        Ok(answer.0.into())
    }

    pub(super) fn device_statistics(&self, control: &Control<'_>) -> Result<Answered> {
        const RESET: u64 = 1;
        let mut fields = Fields(control.input);
        let (id, count, flags) = (fields.u64()?, fields.u64()?, fields.u64()?);
        if flags & RESET != 0 {
            // Only `buttress device stats -z` resets statistics.
            require_privileged(control.caller)?;
            return Err(Errno::OPNOTSUPP);
        }
        let view = self.access.view();
        let slots = view.volume().devices();
        let slot = slots.iter().find(|slot| slot.id().get() == id);
        let slot = slot.ok_or(Errno(libc::ENODEV))?;
        let key = DeviceStatistics::key(slot.id());
        let tree = view.tree(TreeId::DEVICE).map_err(|error| self.failed(&error))?;
        let item = tree.get(&key).map_err(|_| Errno::IO)?;
        let found = item.map(|item| DeviceStatistics::parse(&key, item.data()));
        let found = found
            .transpose()
            .map_err(|_| Errno(libc::EUCLEAN))?
            .unwrap_or_default();
        let counters = [
            found.write_errors,
            found.read_errors,
            found.flush_errors,
            found.corruption_errors,
            found.generation_errors,
        ];
        let given = usize::try_from(count).unwrap_or(COUNTERS).min(COUNTERS);
        let mut answer = Answer::default();
        answer.u64(id).u64(u64::try_from(given).unwrap_or(0)).u64(flags);
        for counter in counters.iter().take(given) {
            answer.u64(*counter);
        }
        answer.up_to(1032);
        Ok(answer.0.into())
    }

    pub(super) fn features(&self) -> Result<Answered> {
        let superblock = self.access.view().superblock();
        let mut answer = Answer::default();
        answer
            .u64(superblock.compat)
            .u64(superblock.compat_ro.bits())
            .u64(superblock.incompat.bits());
        Ok(answer.0.into())
    }

    /// Returns the number of space kinds. The space kinds themselves do not reach the caller
    /// through FUSE.
    pub(super) fn kinds_of_space(&self, control: &Control<'_>) -> Result<Answered> {
        if Fields(control.input).u64()? != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let space = self.access.view().space();
        let space = space.map_err(|error| self.failed(&error))?;
        // The count includes the global reserve.
        let kinds = space.groups.len().saturating_add(1);
        let mut answer = Answer::default();
        answer.u64(0).u64(u64::try_from(kinds).unwrap_or(0));
        Ok(answer.0.into())
    }

    pub(super) fn label(&self) -> Result<Answered> {
        let mut answer = Answer::default();
        answer.field(&self.access.view().superblock().label, LABEL_BYTES);
        Ok(answer.0.into())
    }

    pub(super) fn set_label(&self, control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        let label = Fields(control.input).text().map_err(|_| Errno::INVAL)?;
        let set = self.writer()?.set_label(label);
        set.map_err(|error| self.failed(&error))?;
        self.committed()?;
        Ok(Answered::default())
    }

    /// Commits, and returns the generation. The commit has ended when the answer arrives.
    pub(super) fn start_sync(&self) -> Result<Answered> {
        if self.writer().is_ok() {
            self.committed()?;
        }
        let generation = self.access.view().superblock().generation;
        Ok(generation.get().to_ne_bytes().to_vec().into())
    }

    pub(super) fn subvolume_information(&self, location: Location) -> Result<Answered> {
        let view = self.access.view();
        let found = view.subvolume(location.subvolume);
        let found = found.map_err(|error| self.failed(&error))?;
        let item = &found.root_item;
        let (parent, directory, name) = match &found.place {
            Some(place) => (place.parent.get(), place.directory.get(), place.name.as_slice()),
            None => (0, 0, &[][..]),
        };
        let mut answer = Answer::default();
        answer
            .u64(found.id.get())
            .field(name, NAME_FIELD_BYTES)
            .u64(parent)
            .u64(directory)
            .u64(item.generation.get())
            .u64(if found.is_read_only() { READ_ONLY >> 1 } else { 0 })
            .bytes(item.uuid.as_bytes())
            .bytes(item.parent_uuid.as_bytes())
            .bytes(item.received_uuid.as_bytes())
            .u64(item.ctransid.get())
            .u64(item.otransid.get())
            .u64(item.stransid.get())
            .u64(item.rtransid.get());
        for time in [item.ctime, item.otime, item.stime, item.rtime] {
            put_time(&mut answer, time);
        }
        answer.up_to(504);
        Ok(answer.0.into())
    }

    /// Lists the subvolumes nested in this one, by their ids.
    pub(super) fn root_references(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        let first = Fields(control.input).u64()?;
        let view = self.access.view();
        let parent = location.subvolume.tree().object_id();
        let range =
            Key::new(parent, ItemType::ROOT_REF, first)..=Key::new(parent, ItemType::ROOT_REF, u64::MAX);
        let mut found = Vec::new();
        let mut next = first;
        let mut result = 0;
        for item in view.root_tree().range(range, ReadAhead::None) {
            let item = item.map_err(|error| self.failed(&error.into()))?;
            let reference = RootRef::parse(&item.key(), item.data()).map_err(|_| Errno(libc::EUCLEAN))?;
            if found.len() == ROOT_REFERENCES_MAX {
                (next, result) = (item.key().offset, Errno::OVERFLOW.0);
                break;
            }
            found.push((item.key().offset, reference.directory.get()));
            next = item.key().offset.saturating_add(1);
        }
        let mut answer = Answer::default();
        answer.u64(if found.is_empty() { first } else { next });
        for (id, directory) in &found {
            answer.u64(*id).u64(*directory);
        }
        answer.up_to(ROOT_REFERENCES_MAX.saturating_mul(16).saturating_add(8));
        answer
            .bytes(&[u8::try_from(found.len()).unwrap_or(u8::MAX)])
            .up_to(4096);
        let mut answered = Answered::from(answer.0);
        answered.result = result;
        Ok(answered)
    }

    pub(super) fn inode_path(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        let mut fields = Fields(control.input);
        let (tree, inode) = (fields.u64()?, fields.u64()?);
        let subvolume = match tree {
            0 => location.subvolume,
            id => SubvolumeId::new(id),
        };
        let inode = InodeNumber::new(inode);
        let mut answer = Answer::default();
        answer.u64(subvolume.get()).u64(inode.get());
        let path = if inode == InodeNumber::ROOT_DIRECTORY {
            Vec::new()
        } else {
            require_privileged(control.caller)?;
            path_in(
                self,
                &self.access.view(),
                Location::new(subvolume, inode),
                InodeNumber::ROOT_DIRECTORY,
                control.caller,
            )?
        };
        if path.len() >= LOOKUP_PATH_BYTES {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        answer.field(&path, LOOKUP_PATH_BYTES);
        Ok(answer.0.into())
    }

    /// Returns the name of a subvolume in a directory below this one, and the path of that
    /// directory.
    pub(super) fn subvolume_path(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        let mut fields = Fields(control.input);
        let (directory, child) = (InodeNumber::new(fields.u64()?), fields.u64()?);
        let view = self.access.view();
        let place = view
            .subvolume_place(SubvolumeId::new(child))
            .map_err(|_| Errno::NOENT)?;
        let place = place
            .filter(|place| place.parent == location.subvolume)
            .ok_or(Errno::NOENT)?;
        if place.directory != directory {
            return Err(Errno::INVAL);
        }
        let from = Location::new(location.subvolume, directory);
        let path = match directory == location.inode {
            true => Vec::new(),
            false => path_in(self, &view, from, location.inode, control.caller)?,
        };
        let mut answer = Answer::default();
        answer
            .u64(directory.get())
            .u64(child)
            .field(&place.name, NAME_FIELD_BYTES)
            .field(&path, LOOKUP_PATH_BYTES.saturating_sub(NAME_FIELD_BYTES));
        Ok(answer.0.into())
    }
}

/// Returns the path of an inode below a directory of its subvolume, with a slash after each
/// name. Callers without the rights of root must have access to each directory of the path.
fn path_in(
    volume: &MountedVolume,
    view: &Filesystem,
    of: Location,
    top: InodeNumber,
    caller: Caller,
) -> Result<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = of;
    while at.inode != top {
        if names.len() >= DEPTH_MAX {
            return Err(Errno(libc::EUCLEAN));
        }
        if !is_privileged(caller) {
            require_listing(volume, caller, at)?;
        }
        let record = view.inode_record(at);
        let record = record.map_err(|_| Errno::NOENT)?;
        let link = record.links.first().ok_or(Errno::NOENT)?;
        names.push(link.name.clone());
        at = Location::new(at.subvolume, link.directory);
        if at.inode == InodeNumber::ROOT_DIRECTORY && top != at.inode {
            return Err(Errno::ACCES);
        }
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.extend_from_slice(name);
        path.push(b'/');
    }
    Ok(path)
}

fn put_time(answer: &mut Answer, time: Timestamp) {
    answer
        .u64(time.seconds.cast_unsigned())
        .u32(time.nanoseconds)
        .u32(0);
}
