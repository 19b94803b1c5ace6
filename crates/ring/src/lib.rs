//! FUSE's requests by io_uring: a ring that brings one request at a time and takes its answer back.
//!
//! The kernel has a queue of requests for each processor. Whoever serves registers entries of memory with a queue; a call that is made on
//! that processor is written into one of them. An answer is written into the same memory, and handing it over asks for the next
//! request. A [`Ring`] is one such entry with an io_uring of its own, for one thread.
//!
//! A ring can do nothing else. It is restricted before it is enabled: to commands (`IORING_OP_URING_CMD`) to the one descriptor that it was
//! made with, and no registrations. A process that closed itself in by a filter of system calls does not get around it by its rings.
//!
//! `unsafe` is here because the kernel writes to memory by address. Invariants on which it rests:
//! - the kernel is given two addresses, of the two parts of `Memory`: a mapping that has at least the sizes
//!   that the kernel is told, and never moves;
//! - the kernel reads and writes them only while a command is under way (`Place::Asked`): from its submission until its completion was taken
//!   out. References to them are only made in other places, and end before the next submission, since both need the ring;
//! - a ring that is dropped while a command is under way leaves its memory to the kernel: it is lost, and not used for something else;
//! - the submission side and the completion side are used by `&mut self` only.
//!
//! Left out: more than one entry of a ring, and notifications, which the kernel does not take this way.
//!
//! Source: `linux/fuse.h`, for `fuse_uring_req_header`, `fuse_uring_ent_in_out` and `fuse_uring_cmd_req`.

mod memory;

use io_uring::squeue::{Entry128, Flags};
use io_uring::{IoUring, cqueue, opcode, register::Restriction, types};
use memory::Memory;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Takes an entry of memory and gives the first request.
const REGISTER: u32 = 1;
/// Takes an answer and gives the next request.
const COMMIT_AND_FETCH: u32 = 2;

/// How many bytes of a request's head there are at most, and how many of the arguments of its operation.
pub const HEAD_BYTES: usize = 128;
/// The head of an answer.
pub const ANSWER_HEAD_BYTES: usize = 16;

/// The descriptor of the device, in the ring's own table.
const DEVICE: types::Fixed = types::Fixed(0);

/// Who has the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The kernel does not know it yet.
    New,
    /// The kernel has it, for the next request.
    Asked,
    /// A request is in it; the kernel's name of it.
    Brought(u64),
    /// An answer is in it.
    Answered(u64),
    /// It will bring no more.
    Ended,
}

/// A request, in the memory of its ring.
#[derive(Debug)]
pub struct Request<'a> {
    /// `fuse_in_header`, and what follows it.
    pub head: &'a [u8],
    /// The structure of the operation, and what follows it.
    pub arguments: &'a [u8],
    /// All memory for what else comes, and for the answer.
    pub payload: &'a mut [u8],
    /// How much of it came with the request.
    pub payload_bytes: usize,
}

/// What waiting brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// A request, which [`Ring::request`] shows.
    Request,
    /// It was unmounted.
    Ended,
}

/// See the crate.
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
    /// A ring for the queue of a processor, restricted and not yet enabled. The payload of a request and of an answer has at most
    /// `payload_bytes`, which must be no less than the kernel and the server agree on.
    ///
    /// # Errors
    /// That the system has no rings of this kind, or does not let this process have one.
    pub fn new(device: BorrowedFd<'_>, queue: u16, payload_bytes: usize) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // Requests are written by the thread that waits for them, when it waits.
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

    /// The queue that it is for.
    #[must_use]
    pub const fn queue(&self) -> u16 {
        self.queue
    }

    /// Lets it be used, from now on by this thread only.
    ///
    /// # Errors
    /// That the system does not.
    pub fn enable(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Hands over the answer to the request before, if there is one, and waits for the next request.
    ///
    /// # Errors
    /// That the kernel refused the memory, the answer, or the ring. It does not bring any more then.
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
            // SAFETY: the command refers to the memory of `self`, which is used by nobody else until its completion is taken out: the place
            // says so from here on, and `Memory` is given up where it never comes.
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

    /// The result of the command that is under way.
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

    /// The request that was brought and not yet answered.
    pub fn request(&mut self) -> Option<Request<'_>> {
        match self.place {
            Place::Brought(_) => Some(self.memory.request()),
            _ => None,
        }
    }

    /// Answers the request that was brought, with the payload's first bytes. It goes to the kernel with the next [`Ring::fetch`].
    ///
    /// # Errors
    /// That there is none, or the payload is too long.
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

/// Interrupted, or short of something that comes back.
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
        // It takes no commands.
        let (device, _) = io::pipe().unwrap();
        // Where the system has none, or none for this process, there is nothing to show.
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
    fn what_is_no_fuse_device_brings_nothing() {
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
