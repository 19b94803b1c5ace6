//! The memory of a ring's entry, which the kernel knows by address.
//!
//! The memory of a ring's entry is a mapping of its own: a page for the head, then the payload.
//! Unused pages of the mapping cost nothing.
//!
//! The head has the layout of `fuse_uring_req_header`. The first 128 bytes hold the head of the
//! request or answer, and the next 128 bytes the operation's structure. Another 32 bytes of the
//! head hold flags, the kernel's id of the request, and the payload's length.
//!
//! Invariants: the `ring` crate's documentation lists them. Methods that make references to the
//! memory take `&mut self`, and [`super::Ring`] calls them only while no command is in flight.

use super::{ANSWER_HEAD_BYTES, HEAD_BYTES, Request};
use io_uring::opcode::UringCmd80;
use io_uring::squeue::Entry128;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

/// The layout of `fuse_uring_req_header`.
#[repr(C)]
struct Head {
    head: [u8; HEAD_BYTES],
    arguments: [u8; HEAD_BYTES],
    flags: u64,
    commit_id: u64,
    payload_bytes: u32,
    padding: u32,
    reserved: u64,
}

/// The offset of the payload in the mapping.
const PAYLOAD_AT: usize = 4096;

const _: () = assert!(size_of::<Head>() <= PAYLOAD_AT);

/// The offset of the field `len` in a submission, which has no setter for these commands.
const LENGTH_AT: usize = 24;

/// The memory of one ring entry; see the module's documentation.
pub(crate) struct Memory {
    mapping: NonNull<c_void>,
    payload_bytes: usize,
    /// The buffers of a registration: head and payload, with their lengths.
    parts: Box<[libc::iovec; 2]>,
    is_given_up: bool,
}

// SAFETY: the mapping is owned, and nothing of it depends on a thread.
unsafe impl Send for Memory {}

impl Memory {
    pub(crate) fn new(payload_bytes: usize) -> io::Result<Self> {
        let length = payload_bytes
            .checked_add(PAYLOAD_AT)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the call makes a new mapping, at an address of the system's choice.
        let mapping = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE) }?;
        let mapping = NonNull::new(mapping).ok_or(io::ErrorKind::OutOfMemory)?;
        let parts = Box::new([
            libc::iovec {
                iov_base: mapping.as_ptr(),
                iov_len: size_of::<Head>(),
            },
            libc::iovec {
                iov_base: payload_of(mapping).cast(),
                iov_len: payload_bytes,
            },
        ]);
        Ok(Self {
            mapping,
            payload_bytes,
            parts,
            is_given_up: false,
        })
    }

    /// Makes a command that tells the kernel the address of this memory.
    pub(crate) fn told_by(&self, command: UringCmd80) -> Entry128 {
        let address = u64::try_from(self.parts.as_ptr().expose_provenance()).unwrap_or(0);
        let mut entry = command.addr(Some(address)).build();
        let parts: u32 = 2;
        // SAFETY: an entry is a submission as the kernel has it (`io_uring_sqe` and 64 bytes more),
        // in which the four bytes of `len` lie.
        unsafe {
            let length = std::ptr::from_mut(&mut entry).cast::<u8>().add(LENGTH_AT);
            length.cast::<u32>().write_unaligned(parts);
        }
        entry
    }

    fn head(&mut self) -> &mut Head {
        // SAFETY: the mapping is aligned to pages, begins with zeros, and every byte of a head is
        // valid. No command is in flight, so only this borrow uses it.
        unsafe { self.mapping.cast::<Head>().as_mut() }
    }

    /// Returns the kernel's id of the delivered request.
    pub(crate) fn commit_id(&mut self) -> u64 {
        self.head().commit_id
    }

    pub(crate) fn request(&mut self) -> Request<'_> {
        let room = self.payload_bytes;
        // SAFETY: the payload is within the mapping, and separate from the head. No command is in
        // flight, so only the borrower of `self` uses it.
        let payload = unsafe { std::slice::from_raw_parts_mut(payload_of(self.mapping), room) };
        let head = self.head();
        Request {
            head: &head.head,
            arguments: &head.arguments,
            payload,
            payload_bytes: usize::try_from(head.payload_bytes).unwrap_or(room).min(room),
        }
    }

    pub(crate) fn answer(&mut self, head: &[u8; ANSWER_HEAD_BYTES], payload_bytes: usize) -> io::Result<()> {
        if payload_bytes > self.payload_bytes {
            return Err(io::Error::other(format!(
                "an answer of {payload_bytes} bytes, for which there is room for {}",
                self.payload_bytes
            )));
        }
        let bytes = u32::try_from(payload_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let place = self.head();
        if let Some(first) = place.head.first_chunk_mut() {
            *first = *head;
        }
        place.payload_bytes = bytes;
        Ok(())
    }

    /// Leaks the memory, because the kernel may write to it for as long as this process lives.
    pub(crate) fn give_up(&mut self) {
        self.is_given_up = true;
    }
}

/// Returns the address of the payload inside a mapping of ring memory.
fn payload_of(mapping: NonNull<c_void>) -> *mut u8 {
    mapping.as_ptr().cast::<u8>().wrapping_add(PAYLOAD_AT)
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.is_given_up {
            // A registration that the kernel has not read yet also uses these addresses.
            const NONE: libc::iovec = libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            };
            std::mem::forget(std::mem::replace(&mut self.parts, Box::new([NONE; 2])));
            return;
        }
        let length = self.payload_bytes.saturating_add(PAYLOAD_AT);
        // SAFETY: `mmap` returned this mapping with this length, and no command of the kernel
        // refers to the mapping. An error would mean that it is not mapped.
        let _ = unsafe { munmap(self.mapping.as_ptr(), length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::types;

    const ROOM: usize = 8192;

    /// Writes a request's head and payload as the kernel does: to the registered addresses.
    fn receive(memory: &mut Memory, at: usize, bytes: &[u8], payload: &[u8]) {
        let [head, room] = memory.parts.as_ref();
        assert!(bytes.len() <= head.iov_len.checked_sub(at).unwrap() && payload.len() <= room.iov_len);
        // SAFETY: both ranges are in the entry's memory (asserted), which has no other user now.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), head.iov_base.cast::<u8>().add(at), bytes.len());
            std::ptr::copy_nonoverlapping(payload.as_ptr(), room.iov_base.cast(), payload.len());
        }
    }

    #[test]
    fn request_and_answer_use_the_registered_addresses() {
        let mut memory = Memory::new(ROOM).unwrap();
        let mut head = [0; size_of::<Head>()];
        head[..HEAD_BYTES].fill(1);
        head[HEAD_BYTES..2 * HEAD_BYTES].fill(2);
        head[2 * HEAD_BYTES + 8..][..8].copy_from_slice(&77_u64.to_ne_bytes());
        head[2 * HEAD_BYTES + 16..][..4].copy_from_slice(&5_u32.to_ne_bytes());
        receive(&mut memory, 0, &head, b"bytes");
        assert_eq!(memory.commit_id(), 77);
        let request = memory.request();
        assert_eq!(
            (request.head, request.arguments),
            (&[1; HEAD_BYTES][..], &[2; HEAD_BYTES][..])
        );
        assert_eq!((request.payload_bytes, &request.payload[..5]), (5, &b"bytes"[..]));
        let last = request.payload.last_mut().unwrap();
        *last = 9;
        memory.answer(&[3; ANSWER_HEAD_BYTES], ROOM).unwrap();
        assert_eq!(memory.request().payload[ROOM - 1], 9);
        let place = memory.head();
        assert_eq!(place.head[..ANSWER_HEAD_BYTES], [3; ANSWER_HEAD_BYTES]);
        assert_eq!((place.head[ANSWER_HEAD_BYTES], place.payload_bytes), (1, 8192));
    }

    #[test]
    fn payload_lengths_are_limited_to_the_memory() {
        let mut memory = Memory::new(ROOM).unwrap();
        receive(&mut memory, 2 * HEAD_BYTES + 16, &u32::MAX.to_ne_bytes(), b"");
        assert_eq!(memory.request().payload_bytes, ROOM);
        assert!(memory.answer(&[0; ANSWER_HEAD_BYTES], ROOM + 1).is_err());
        assert!(Memory::new(usize::MAX).is_err());
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "the crate io-uring writes to a flexible array by a reference to its first, empty part"
    )]
    fn command_carries_the_address_of_both_parts() {
        let memory = Memory::new(ROOM).unwrap();
        let entry = memory.told_by(UringCmd80::new(types::Fd(0), 1));
        // SAFETY: an entry is 128 bytes without padding.
        let bytes: [u8; 128] = unsafe { std::mem::transmute(entry) };
        let address = u64::from_ne_bytes(bytes[16..24].try_into().unwrap());
        assert_eq!(address, memory.parts.as_ptr().addr() as u64);
        assert_eq!(bytes[LENGTH_AT..LENGTH_AT + 4], 2_u32.to_ne_bytes());
    }
}
