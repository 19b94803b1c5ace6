//! Initial agreement between kernel and server: version, sizes, capabilities.

use super::reading::receive;
use super::wire::{
    Header, IN_HEADER, Input, MAJOR, MINOR, MINOR_MIN, OUT_HEADER, Output, capability, operation,
};
use super::{CONTENT_BYTES_MAX, READ_AHEAD_BYTES, REQUEST_BYTES_MAX};
use rustix::fd::OwnedFd;
use std::io;

/// Capabilities that the server requests if the kernel has them.
const WANTED: u64 = capability::ASYNC_READ
    | capability::EXPORT_SUPPORT
    | capability::BIG_WRITES
    | capability::DONT_MASK
    | capability::HAS_IOCTL_DIR
    | capability::DO_READDIRPLUS
    | capability::READDIRPLUS_AUTO
    | capability::ASYNC_DIO
    | capability::PARALLEL_DIROPS
    | capability::POSIX_ACL
    | capability::MAX_PAGES
    | capability::CACHE_SYMLINKS
    | capability::EXPLICIT_INVAL_DATA
    | capability::HANDLE_KILLPRIV_V2
    | capability::SETXATTR_EXT
    | capability::INIT_EXT
    | capability::DIRECT_IO_ALLOW_MMAP;

/// Largest number of background requests in flight: readahead and writes of cached pages.
const BACKGROUND: u16 = 64;
const CONGESTED: u16 = 48;

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Channel on which requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreed {
    /// The FUSE channel no longer exists: the file system was unmounted during the negotiation.
    Unmounted,
    /// Requests arrive by reading the device.
    Device,
    /// Most requests arrive through io_uring rings.
    Rings,
}

/// Optional features that the server requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wishes {
    /// The kernel may send requests by io_uring rings.
    pub(super) rings: bool,
    /// The kernel should use a write-back cache.
    pub(super) writeback_cache: bool,
}

impl Wishes {
    fn flags(self) -> u64 {
        let rings = if self.rings { capability::OVER_IO_URING } else { 0 };
        let cache = if self.writeback_cache {
            capability::WRITEBACK_CACHE
        } else {
            0
        };
        WANTED | rings | cache
    }
}

/// Negotiates with the kernel. Also returns whether the kernel uses a write-back cache.
pub(super) fn agree(device: &OwnedFd, wishes: Wishes) -> io::Result<(Agreed, bool)> {
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    loop {
        let Some(bytes) = receive(device, &mut buffer)? else {
            return Ok((Agreed::Unmounted, false));
        };
        let request = buffer.get(..bytes).unwrap_or_default();
        let (unique, agreed, answer) = answer(request, wishes).map_err(invalid)?;
        let mut whole = Output::default();
        let length = answer.body.len().saturating_add(OUT_HEADER);
        let length = u32::try_from(length).map_err(|_| invalid("an answer that is too long"))?;
        whole.u32(length).u32(0).u64(unique).bytes(&answer.body);
        rustix::io::write(device, &whole.body)?;
        if let Some(agreed) = agreed {
            let transport = match agreed & capability::OVER_IO_URING {
                0 => Agreed::Device,
                _ => Agreed::Rings,
            };
            return Ok((transport, agreed & capability::WRITEBACK_CACHE != 0));
        }
    }
}

/// Builds the answer to the first request, and returns the agreed capabilities; `None` if the
/// kernel must ask again.
fn answer(request: &[u8], wishes: Wishes) -> Result<(u64, Option<u64>, Output<'static>), &'static str> {
    const SHORT: &str = "the kernel's first request is too short";
    let mut input = Input::of(request);
    let header = Header::parse(&mut input).map_err(|_| SHORT)?;
    if header.operation != operation::INIT || request.len() < IN_HEADER {
        return Err("the kernel's first request is not the one that begins");
    }
    let mut next = || input.u32().map_err(|_| SHORT);
    let (major, minor) = (next()?, next()?);
    let mut out = Output::default();
    if major > MAJOR {
        // The kernel reduces its version to this one.
        out.u32(MAJOR).u32(MINOR).zeros(56);
        return Ok((header.unique, None, out));
    }
    if major < MAJOR || minor < MINOR_MIN {
        return Err("the kernel's FUSE is older than 7.33 (Linux 5.11)");
    }
    let (read_ahead, low) = (next()?, next()?);
    let high = next().unwrap_or(0);
    let mut offered = u64::from(low);
    if offered & capability::INIT_EXT != 0 {
        offered |= u64::from(high) << 32;
    }
    let agreed = offered & wishes.flags();
    let half = |shift: u32| u32::try_from((agreed >> shift) & 0xffff_ffff).unwrap_or(0);
    let content = u32::try_from(CONTENT_BYTES_MAX).unwrap_or(u32::MAX);
    // The kernel uses the smaller of this value and the mount's own setting.
    let ahead = u32::try_from(READ_AHEAD_BYTES).unwrap_or(u32::MAX);
    let pages = CONTENT_BYTES_MAX.checked_div(rustix::param::page_size());
    let pages = pages.and_then(|pages| u16::try_from(pages).ok()).unwrap_or(1);
    out.u32(MAJOR)
        .u32(MINOR.min(minor))
        .u32(read_ahead.max(ahead))
        .u32(half(0))
        .u16(BACKGROUND)
        .u16(CONGESTED)
        .u32(content)
        .u32(1)
        .u16(pages)
        .u16(0)
        .u32(half(32))
        .zeros(28);
    Ok((header.unique, Some(agreed), out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(major: u32, minor: u32, flags: u64) -> Vec<u8> {
        let mut out = Output::default();
        out.u32(104).u32(operation::INIT).u64(7).zeros(24);
        let half = |shift: u32| u32::try_from((flags >> shift) & 0xffff_ffff).unwrap();
        out.u32(major)
            .u32(minor)
            .u32(131_072)
            .u32(half(0))
            .u32(half(32))
            .zeros(44);
        out.body
    }

    #[test]
    fn only_what_the_kernel_offers_is_agreed_on() {
        let offered =
            capability::INIT_EXT | capability::MAX_PAGES | capability::DIRECT_IO_ALLOW_MMAP | 1 << 3;
        let (unique, told, out) = answer(&first(7, 45, offered), Wishes::default()).unwrap();
        assert_eq!((unique, out.body.len()), (7, 64));
        let field = |at: usize| u32::from_ne_bytes(out.body[at..at + 4].try_into().unwrap());
        assert_eq!(field(4), MINOR);
        let agreed = u64::from(field(12)) | u64::from(field(32)) << 32;
        assert_eq!(agreed, offered & !(1 << 3));
        assert_eq!(told, Some(agreed));
    }

    #[test]
    fn requests_come_by_rings_where_both_sides_have_them() {
        let agreed = |offered, rings| {
            let wishes = Wishes {
                rings,
                ..Wishes::default()
            };
            answer(&first(7, 45, offered), wishes).unwrap().1
        };
        let offered = capability::INIT_EXT | capability::OVER_IO_URING;
        assert_eq!(agreed(offered, true), Some(offered));
        assert_eq!(agreed(offered, false), Some(capability::INIT_EXT));
        assert_eq!(agreed(capability::INIT_EXT, true), Some(capability::INIT_EXT));
    }

    #[test]
    fn the_kernel_keeps_writes_where_that_is_wished_for() {
        let agreed = |offered, writeback_cache| {
            let wishes = Wishes {
                writeback_cache,
                ..Wishes::default()
            };
            answer(&first(7, 45, offered), wishes).unwrap().1
        };
        let offered = capability::ASYNC_READ | capability::WRITEBACK_CACHE;
        assert_eq!(agreed(offered, true), Some(offered));
        assert_eq!(agreed(offered, false), Some(capability::ASYNC_READ));
        assert_eq!(agreed(capability::ASYNC_READ, true), Some(capability::ASYNC_READ));
    }

    #[test]
    fn other_versions_are_told_what_is_spoken_here() {
        assert_eq!(answer(&first(8, 0, 0), Wishes::default()).unwrap().1, None);
        assert!(answer(&first(7, 32, 0), Wishes::default()).is_err());
        assert!(answer(&first(6, 50, 0), Wishes::default()).is_err());
        assert!(answer(&first(7, 45, 0)[..50], Wishes::default()).is_err());
    }
}
