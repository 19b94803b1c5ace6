//! FUSE requests over io_uring: a ring that delivers one request at a time, and takes its answer.
//!
//! The kernel has a queue of requests for each processor. A server registers entries of memory with
//! a queue. The kernel writes a call made on that processor into one of these entries. The server
//! writes the answer to the same memory. Submitting the answer to one request also asks the kernel
//! for the next request. A [`Ring`] is one such entry with an io_uring of its own, for one thread.
//!
//! A ring supports nothing else. Before it is enabled, it is restricted to commands
//! (`IORING_OP_URING_CMD`) for the one descriptor of its construction, without registrations. A
//! process that restricted itself with a system call filter cannot bypass the filter through its
//! rings.
//!
//! `unsafe` is needed because the kernel writes to memory by address. The invariants of the
//! `unsafe` code are:
//! - the kernel knows two addresses, those of the two parts of `Memory`. The ring's mapping has at
//!   least the sizes that the kernel knows, and never moves;
//! - the kernel accesses the mapping only while a command is in flight (`Place::Asked`), from
//!   submission until completion is taken out; References to the command's memory exist only
//!   elsewhere and end before the next submission, because both need the ring;
//! - a ring that is dropped while a command is in flight leaks its memory to the kernel. The memory
//!   is never reused;
//! - the submission side and the completion side are used only through `&mut self`.
//!
//! Left out: rings with more than one entry, and notifications, which the kernel does not accept
//! through rings.
//!
//! Source: `linux/fuse.h`, for `fuse_uring_req_header`, `fuse_uring_ent_in_out` and
//! `fuse_uring_cmd_req`.

mod memory;

use io_uring::squeue::{Entry128, Flags};
use io_uring::{IoUring, cqueue, opcode, register::Restriction, types};
use memory::Memory;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The command that registers an entry of memory and receives the first request.
const REGISTER: u32 = 1;
/// The command that submits an answer and receives the next request.
const COMMIT_AND_FETCH: u32 = 2;

/// The maximum size in bytes of a request's head, and of its operation's arguments.
pub const HEAD_BYTES: usize = 128;
/// The size in bytes of an answer's head.
pub const ANSWER_HEAD_BYTES: usize = 16;

/// The number of the FUSE device's descriptor in the ring's own table.
const DEVICE: types::Fixed = types::Fixed(0);

/// The owner and state of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The kernel does not know the ring entry yet.
    New,
    /// The kernel holds the entry, for the next request.
    Asked,
    /// The ring entry holds a request of the kernel. Contains the kernel's id of the request.
    Brought(u64),
    /// The ring's entry holds an answer.
    Answered(u64),
    /// The ring entry will receive no more requests.
    Ended,
}

/// A request in the memory of its ring.
#[derive(Debug)]
pub struct Request<'a> {
    /// The `fuse_in_header` of a request, and the bytes after it.
    pub head: &'a [u8],
    /// The structure of the FUSE operation and the bytes after it.
    pub arguments: &'a [u8],
    /// The memory for the remaining bytes of the request, and for the answer.
    pub payload: &'a mut [u8],
    /// The number of payload bytes that came with the request.
    pub payload_bytes: usize,
}

/// The result of waiting for a request on the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// A request, which [`Ring::request`] returns.
    Request,
    /// The file system was unmounted.
    Ended,
}

/// A ring for one thread; see the crate's documentation.
pub struct Ring {
    ring: IoUring<Entry128, cqueue::Entry>,
    queue: u16,
    place: Place,
    memory: Memory,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("queue", &self.queue)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// Makes a ring for the queue of a processor, restricted and not yet enabled. Payloads of
    /// requests and answers have at most `payload_bytes`. `payload_bytes` must be at least the size
    /// that the kernel and the server have agreed on.
    ///
    /// # Errors
    /// Fails if the system has no such rings, or refuses them to this process.
    pub fn new(device: BorrowedFd<'_>, queue: u16, payload_bytes: usize) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // The waiting thread writes the requests, during its wait.
        builder.setup_single_issuer().setup_defer_taskrun();
        let ring = builder.setup_r_disabled().build(1)?;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        ring.submitter().register_restrictions(&mut [
            Restriction::sqe_op(opcode::UringCmd80::CODE),
            Restriction::sqe_flags_allowed(Flags::FIXED_FILE.bits()),
            Restriction::sqe_flags_required(Flags::FIXED_FILE.bits()),
        ])?;
        Ok(Self {
            ring,
            queue,
            place: Place::New,
            memory: Memory::new(payload_bytes)?,
        })
    }

    /// Returns the queue of the ring.
    #[must_use]
    pub const fn queue(&self) -> u16 {
        self.queue
    }

    /// Enables the ring. From then on, only this thread may use it.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn enable(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Submits the answer to the previous request, if there is one, and waits for the next request.
    ///
    /// # Errors
    /// Fails if the kernel refuses the memory, the answer, or the ring. The ring then delivers no
    /// more requests.
    pub fn fetch(&mut self) -> io::Result<Fetched> {
        loop {
            let command = match self.place {
                Place::New => self.command(REGISTER, 0),
                Place::Answered(commit) => self.command(COMMIT_AND_FETCH, commit),
                Place::Ended => return Ok(Fetched::Ended),
                Place::Brought(_) | Place::Asked => {
                    return Err(io::Error::other("a request of a ring was not answered"));
                }
            };
            // SAFETY: the submitted command refers only to the memory of `self`. No other code uses
            // the ring's memory until the completion is taken out: `place` records that from here
            // on. If the completion never comes, `Memory` is leaked.
            unsafe { self.ring.submission().push(&command) }
                .map_err(|_| io::Error::other("a ring has no space for its one command"))?;
            let before = std::mem::replace(&mut self.place, Place::Asked);
            let result = self.completion()?;
            match result.checked_neg() {
                Some(0) => {
                    self.place = Place::Brought(self.memory.commit_id());
                    return Ok(Fetched::Request);
                }
                Some(libc::EAGAIN | libc::EINTR) => self.place = before,
                Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED) => {
                    self.place = Place::Ended;
                    return Ok(Fetched::Ended);
                }
                error => {
                    self.place = Place::Ended;
                    return Err(io::Error::from_raw_os_error(error.unwrap_or(libc::EIO)));
                }
            }
        }
    }

    /// Returns the result of the command in flight.
    fn completion(&mut self) -> io::Result<i32> {
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
            if let Some(completion) = self.ring.completion().next() {
                return Ok(completion.result());
            }
        }
    }

    fn command(&self, operation: u32, commit: u64) -> Entry128 {
        let mut words = [0; 80];
        let (_flags, rest) = words.split_at_mut(8);
        let (name, rest) = rest.split_at_mut(8);
        let (queue, _padding) = rest.split_at_mut(2);
        name.copy_from_slice(&commit.to_ne_bytes());
        queue.copy_from_slice(&self.queue.to_ne_bytes());
        let command = opcode::UringCmd80::new(DEVICE, operation).cmd(words);
        if operation == REGISTER {
            self.memory.told_by(command)
        } else {
            command.build()
        }
    }

    /// Returns the request that was delivered and is not answered yet.
    pub fn request(&mut self) -> Option<Request<'_>> {
        match self.place {
            Place::Brought(_) => Some(self.memory.request()),
            _ => None,
        }
    }

    /// Answers the delivered request with the head, and with the first bytes of the payload. The
    /// next [`Ring::fetch`] submits the answer.
    ///
    /// # Errors
    /// Fails if no request is unanswered, or if the payload is too long.
    pub fn answer(&mut self, head: &[u8; ANSWER_HEAD_BYTES], payload_bytes: usize) -> io::Result<()> {
        let Place::Brought(commit) = self.place else {
            return Err(io::Error::other("an answer to no request"));
        };
        self.memory.answer(head, payload_bytes)?;
        self.place = Place::Answered(commit);
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.place == Place::Asked {
            self.memory.give_up();
        }
    }
}

/// Returns true if the call was interrupted, or if a temporary resource was short.
fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    fn ring() -> Option<(io::PipeReader, Ring)> {
        // A pipe accepts no commands.
        let (device, _) = io::pipe().unwrap();
        // If the system has no io_uring, or refuses it to this process, the test has nothing to
        // check.
        let ring = Ring::new(device.as_fd(), 3, 1 << 20).ok()?;
        Some((device, ring))
    }

    fn result_of(ring: &mut Ring, entry: Entry128) -> i32 {
        // SAFETY: the entries of these tests refer to no memory but static names.
        unsafe { ring.ring.submission().push(&entry) }.unwrap();
        ring.completion().unwrap()
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no io_uring")]
    fn a_ring_takes_commands_to_its_device_and_nothing_else() {
        let Some((_device, mut ring)) = ring() else { return };
        ring.enable().unwrap();
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/dev/null".as_ptr());
        assert_eq!(result_of(&mut ring, open.build().into()), -libc::EACCES);
        assert_eq!(
            result_of(&mut ring, opcode::Nop::new().build().into()),
            -libc::EACCES
        );
        let other = opcode::UringCmd80::new(types::Fd(0), REGISTER).build();
        assert_eq!(result_of(&mut ring, other), -libc::EACCES);
        let registered = ring.ring.submitter().register_files_update(0, &[0]);
        assert_eq!(registered.unwrap_err().raw_os_error(), Some(libc::EACCES));
        let again = ring.ring.submitter().register_restrictions(&mut []);
        assert!(again.is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no io_uring")]
    fn ring_on_another_device_delivers_nothing() {
        let Some((_device, mut ring)) = ring() else { return };
        ring.enable().unwrap();
        assert!(ring.request().is_none());
        assert!(ring.answer(&[0; ANSWER_HEAD_BYTES], 0).is_err());
        assert_eq!(ring.fetch().unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(ring.fetch().unwrap(), Fetched::Ended);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no io_uring")]
    fn a_registration_says_where_the_memory_is() {
        let Some((_device, ring)) = ring() else { return };
        let entry = ring.command(REGISTER, 0);
        assert_eq!(size_of_val(&entry), 128);
        let bytes: [u8; 128] =
            // SAFETY: an entry is 128 bytes without padding.
            unsafe { std::mem::transmute(entry) };
        let field = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((field(8), field(24)), (REGISTER, 2));
        assert_ne!(&bytes[16..24], &[0; 8]);
        assert_eq!(bytes[64], 3, "the queue comes after 16 bytes of the command");
    }
}
