//! Zeroed memory from the system, in whole pages.
//!
//! On Linux, the memory comes from `mmap`. A global allocator would clear the memory at once, page
//! by page, and might keep returned memory. On systems other than Linux, and under Miri, the global
//! allocator provides the memory.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

/// Returns `bytes` zero bytes whose address is a multiple of `alignment_bytes`, a power of two.
/// `bytes` is not zero, and a multiple of `alignment_bytes`. Ends the process if the system has no
/// memory left, as `Vec` does.
pub(super) fn take(bytes: usize, alignment_bytes: usize) -> NonNull<u8> {
    match system::take(bytes, alignment_bytes) {
        Some(start) => start,
        // Clamp: the size only appears in the error, and no size is that large.
        None => {
            handle_alloc_error(Layout::from_size_align(bytes, alignment_bytes).unwrap_or(Layout::new::<u8>()))
        }
    }
}

/// Returns memory to the system.
///
/// # Safety
/// [`take`] returned `start` for the same `bytes` and `alignment_bytes`, and no code uses the
/// memory any more.
pub(super) unsafe fn give_back(start: NonNull<u8>, bytes: usize, alignment_bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { system::give_back(start, bytes, alignment_bytes) }
}

/// Requests huge pages for memory that will be used completely. The system may have no huge pages.
pub(super) fn prefer_huge_pages(start: NonNull<u8>, bytes: usize) {
    system::prefer_huge_pages(start, bytes);
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::ptr::NonNull;

    use buttress_exact::Exact as _;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    /// The minimum alignment of every mapping's address.
    const PAGE_BYTES: usize = 4096;

    pub(super) fn take(bytes: usize, alignment_bytes: usize) -> Option<NonNull<u8>> {
        let spare_bytes = match alignment_bytes > PAGE_BYTES {
            true => alignment_bytes,
            false => 0,
        };
        let span_bytes = bytes.checked_add(spare_bytes)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the call passes no address, so the mapping replaces no existing mapping.
        let span = unsafe { mmap_anonymous(std::ptr::null_mut(), span_bytes, protection, MapFlags::PRIVATE) };
        let span = NonNull::new(span.ok()?.cast::<u8>())?;
        if spare_bytes == 0 {
            return Some(span);
        }
        // Aligned memory begins at the latest in the spare part of the span. The memory of the span
        // after the aligned part is unmapped.
        let before_bytes = span.align_offset(alignment_bytes).min(spare_bytes);
        let after_bytes = spare_bytes.exact_sub(before_bytes);
        // SAFETY: `before_bytes + bytes + after_bytes` is the length of the span, so both addresses
        // are in it or at its end. The unmapped parts belong to this mapping, and no code uses them
        // yet.
        unsafe {
            let start = span.add(before_bytes);
            if before_bytes > 0 {
                let _ = munmap(span.as_ptr().cast(), before_bytes);
            }
            if after_bytes > 0 {
                let _ = munmap(start.add(bytes).as_ptr().cast(), after_bytes);
            }
            Some(start)
        }
    }

    pub(super) unsafe fn give_back(start: NonNull<u8>, bytes: usize, _alignment_bytes: usize) {
        // SAFETY: the caller promises that this is a whole mapping without users. Unmapping a whole
        // mapping cannot fail, and the caller could not handle a failure.
        let _ = unsafe { munmap(start.as_ptr().cast(), bytes) };
    }

    pub(super) fn prefer_huge_pages(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the advice concerns pages of this process and does not change their content. Small
        // pages serve as well, so the advice may fail.
        let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    pub(super) fn take(bytes: usize, alignment_bytes: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes, alignment_bytes).ok()?;
        if bytes == 0 {
            return None;
        }
        // SAFETY: the layout has a size.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    pub(super) unsafe fn give_back(start: NonNull<u8>, bytes: usize, alignment_bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes, alignment_bytes) {
            // SAFETY: the caller promises that `take` returned the memory for this layout, and that
            // no code uses it.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }

    pub(super) const fn prefer_huge_pages(_start: NonNull<u8>, _bytes: usize) {}
}
