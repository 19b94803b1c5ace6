//! The ioctls of files and of btrfs that neither std nor rustix has, on a mounted volume.
//!
//! Source: ioctl_ficlonerange(2), ioctl_fideduperange(2); btrfs-ioctl(2) for numbers and layouts.

use rustix::io::{Errno, Result};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, Updater, ioctl, opcode};
use std::fs::File;
use std::os::fd::AsRawFd;

/// The ioctl group of both sets of ioctls.
const GROUP: u8 = 0x94;

/// The size of a subvolume's name, with its terminating zero.
const NAME_BYTES: usize = 4088;
const LONG_NAME_BYTES: usize = 4040;
const LABEL_BYTES: usize = 256;

/// The read-only flag of a subvolume, and of a new snapshot.
const READ_ONLY: u64 = 1 << 1;

/// The kernel's status for a range that differs and is therefore not deduplicated.
const RANGE_DIFFERS: i32 = 1;

#[repr(C)]
struct CloneRange {
    source: i64,
    offset: u64,
    length: u64,
    target_offset: u64,
}

#[repr(C)]
struct DedupeRange {
    offset: u64,
    length: u64,
    count: u16,
    reserved: [u16; 3],
    // The only target of the deduplication.
    target: i64,
    target_offset: u64,
    bytes: u64,
    status: i32,
    reserved_too: u32,
}

#[repr(C)]
struct VolumeArguments {
    file: i64,
    name: [u8; NAME_BYTES],
}

#[repr(C)]
struct SnapshotArguments {
    file: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; LONG_NAME_BYTES],
}

#[repr(C)]
struct Lookup {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

/// The size in the number of `FIDEDUPERANGE`: the header without targets.
type DedupeHeader = [u8; 24];

fn number_of(file: &File) -> i64 {
    file.as_raw_fd().into()
}

fn name_of<const N: usize>(name: &[u8]) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    // At least one zero ends the name.
    let place = bytes.get_mut(..name.len()).filter(|_| name.len() < N);
    place.ok_or(Errno::NAMETOOLONG)?.copy_from_slice(name);
    Ok(bytes)
}

/// Passes `input` to the ioctl `NUMBER`, which reads a `T`.
fn set<const NUMBER: Opcode, T>(file: &File, input: T) -> Result<()> {
    // SAFETY: each ioctl here is paired with the layout that it reads, all of it plain numbers and bytes.
    unsafe { ioctl(file, Setter::<NUMBER, T>::new(input)) }
}

/// Shares `length` bytes at `offset` of `source` with `target`, from `target_offset` on.
///
/// # Errors
/// Returns the kernel's error.
pub fn clone_range(source: &File, offset: u64, length: u64, target: &File, target_offset: u64) -> Result<()> {
    let range = CloneRange {
        source: number_of(source),
        offset,
        length,
        target_offset,
    };
    set::<{ opcode::write::<CloneRange>(GROUP, 13) }, _>(target, range)
}

/// Shares a range as [`clone_range`] does, if both files have equal bytes in the ranges. Returns
/// whether the bytes are equal.
///
/// # Errors
/// Returns the kernel's error, for the call or for the range.
pub fn dedupe_range(
    source: &File,
    offset: u64,
    length: u64,
    target: &File,
    target_offset: u64,
) -> Result<bool> {
    let mut range = DedupeRange {
        offset,
        length,
        count: 1,
        reserved: [0; 3],
        target: number_of(target),
        target_offset,
        bytes: 0,
        status: 0,
        reserved_too: 0,
    };
    // SAFETY: the header announces one target, and one target follows it.
    unsafe {
        ioctl(
            source,
            Updater::<{ opcode::read_write::<DedupeHeader>(GROUP, 54) }, _>::new(&mut range),
        )?;
    }
    match range.status {
        0 => Ok(true),
        RANGE_DIFFERS => Ok(false),
        error => Err(Errno::from_raw_os_error(-error)),
    }
}

/// Makes an empty subvolume.
///
/// # Errors
/// The kernel's error.
pub fn create_subvolume(directory: &File, name: &[u8]) -> Result<()> {
    let name = name_of(name)?;
    set::<{ opcode::write::<VolumeArguments>(GROUP, 14) }, _>(directory, VolumeArguments { file: 0, name })
}

/// Deletes a subvolume by its name.
///
/// # Errors
/// The kernel's error.
pub fn delete_subvolume(directory: &File, name: &[u8]) -> Result<()> {
    let name = name_of(name)?;
    set::<{ opcode::write::<VolumeArguments>(GROUP, 15) }, _>(directory, VolumeArguments { file: 0, name })
}

/// Makes a snapshot of the subvolume with the root directory `source`.
///
/// # Errors
/// The kernel's error.
pub fn snapshot(source: &File, directory: &File, name: &[u8], read_only: bool) -> Result<()> {
    let arguments = SnapshotArguments {
        file: number_of(source),
        transaction: 0,
        flags: if read_only { READ_ONLY } else { 0 },
        unused: [0; 4],
        name: name_of(name)?,
    };
    set::<{ opcode::write::<SnapshotArguments>(GROUP, 23) }, _>(directory, arguments)
}

/// Makes the subvolume with this root directory read-only, or writable.
///
/// # Errors
/// The kernel's error.
pub fn set_read_only(root: &File, read_only: bool) -> Result<()> {
    let flags: u64 = if read_only { READ_ONLY } else { 0 };
    set::<{ opcode::write::<u64>(GROUP, 26) }, _>(root, flags)
}

/// Makes the subvolume with this root directory the default.
///
/// # Errors
/// The kernel's error.
pub fn set_default(root: &File) -> Result<()> {
    let mut lookup = Lookup {
        tree: 0,
        object: 256,
        name: [0; 4080],
    };
    // SAFETY: the ioctl reads and writes a value of exactly this layout.
    unsafe {
        ioctl(
            root,
            Updater::<{ opcode::read_write::<Lookup>(GROUP, 18) }, _>::new(&mut lookup),
        )?;
    }
    set::<{ opcode::write::<u64>(GROUP, 19) }, _>(root, lookup.tree)
}

/// Sets the volume's label.
///
/// # Errors
/// The kernel's error.
pub fn set_label(file: &File, label: &[u8]) -> Result<()> {
    let label: [u8; LABEL_BYTES] = name_of(label)?;
    set::<{ opcode::write::<[u8; LABEL_BYTES]>(GROUP, 50) }, _>(file, label)
}

/// A buffer for the data of any ioctl of btrfs whose number contains its size.
pub type Data = [u8; 4096];

/// An ioctl by its number, with its data.
struct Numbered<'a> {
    number: Opcode,
    data: &'a mut Data,
}

// SAFETY: `numbered` ensures that the data has space for the size in the number. The data is plain
// bytes.
unsafe impl Ioctl for Numbered<'_> {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.number
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        self.data.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut std::ffi::c_void) -> Result<i32> {
        Ok(output)
    }
}

/// Calls the ioctl with this number. The kernel reads and writes as many bytes of `data` as the
/// number contains.
///
/// # Errors
/// Returns the kernel's error, or `E2BIG` if the data has too little space.
pub fn numbered(file: &File, number: Opcode, data: &mut Data) -> Result<i32> {
    let bytes = (number >> 16) & 0x3fff;
    if bytes > 4096 {
        return Err(Errno::TOOBIG);
    }
    // SAFETY: `data` is live during the call, and at least as large as the size in the number.
    unsafe { ioctl(file, Numbered { number, data }) }
}
