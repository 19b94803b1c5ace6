//! A device's bytes as pages over a base. Pages are shared until a write, so a copy costs one
//! pointer for each 2 MiB of the device.
//!
//! Clamps: of a laboratory for tests, whose images are compared as a whole.

use buttress_exact::Exact as _;
use std::io;
use std::sync::Arc;

use buttress_device::{Backend, check_range, out_of_range};
use buttress_exact::u64_of;

/// The bytes of a page.
const PAGE_BYTES: u64 = 4096;
const PAGE: usize = 4096;
/// The pages of a group.
const GROUP: u64 = 512;

type Page = [u8; PAGE];

#[derive(Clone, Debug, Default)]
struct Group {
    pages: Vec<Option<Arc<Page>>>,
}

/// The bytes of a device: written pages over a read-only base.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    base: Arc<dyn Backend>,
    size_bytes: u64,
    groups: Vec<Option<Arc<Group>>>,
}

/// Returns the parts of `[offset, offset + length)`, one for each page: page, offset in the page,
/// offset in the range, length.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0_usize;
    std::iter::from_fn(move || {
        let left = length.checked_sub(done).filter(|left| *left > 0)?;
        let at = offset.checked_add(u64_of(done))?;
        let within = usize::try_from(at.checked_rem(PAGE_BYTES)?).ok()?;
        let count = left.min(PAGE.saturating_sub(within));
        let part = (at.checked_div(PAGE_BYTES)?, within, done, count);
        done = done.saturating_add(count);
        Some(part)
    })
}

impl Pages {
    pub(super) fn over(base: Arc<dyn Backend>) -> Self {
        let size_bytes = base.size_bytes();
        let groups = size_bytes.div_ceil(PAGE_BYTES.saturating_mul(GROUP));
        Self {
            base,
            size_bytes,
            groups: vec![None; groups.narrow::<usize>()],
        }
    }

    pub(super) fn name(&self) -> &str {
        self.base.name()
    }

    pub(super) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn page(&self, number: u64) -> Option<&Arc<Page>> {
        let group = usize::try_from(number.checked_div(GROUP)?).ok()?;
        let within = usize::try_from(number.checked_rem(GROUP)?).ok()?;
        self.groups.get(group)?.as_ref()?.pages.get(within)?.as_ref()
    }

    /// Reads the bytes of a base's page, up to the end of the device.
    fn read_base(&self, number: u64, within: usize, bytes: &mut [u8]) -> io::Result<()> {
        let at = number.saturating_mul(PAGE_BYTES).saturating_add(u64_of(within));
        self.base.read_vectored_at(at, &mut [bytes])
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        check_range(self.size_bytes, offset, u64_of(bytes.len()))?;
        for (number, within, start, count) in parts(offset, bytes.len()) {
            let target = bytes
                .get_mut(start..start.saturating_add(count))
                .unwrap_or_default();
            match self
                .page(number)
                .and_then(|page| page.get(within..within.saturating_add(count)))
            {
                Some(source) => target.copy_from_slice(source),
                None => self.read_base(number, within, target)?,
            }
        }
        Ok(())
    }

    /// Changes `[offset, offset + length)`. `fill` gets the place of each part in the range, and
    /// the part's bytes.
    pub(super) fn change(
        &mut self,
        offset: u64,
        length: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> io::Result<()> {
        check_range(self.size_bytes, offset, u64_of(length))?;
        for (number, within, start, count) in parts(offset, length) {
            self.own(number, count == PAGE)?;
            let page = self
                .page_mut(number)
                .and_then(|page| page.get_mut(within..within.saturating_add(count)));
            fill(start, page.unwrap_or_default());
        }
        Ok(())
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(offset, bytes.len(), &mut |start, part| {
            if let Some(source) = bytes.get(start..start.saturating_add(part.len())) {
                part.copy_from_slice(source);
            }
        })
    }

    pub(super) fn fill(&mut self, offset: u64, length: u64, byte: u8) -> io::Result<()> {
        let length = usize::try_from(length).map_err(|_| out_of_range(self.size_bytes))?;
        self.change(offset, length, &mut |_, part| part.fill(byte))
    }

    /// Gives the device its own copy of a page, with the base's bytes unless the caller will
    /// replace all of them.
    fn own(&mut self, number: u64, replaced: bool) -> io::Result<()> {
        if self.page(number).is_some() {
            return Ok(());
        }
        let mut page = [0; PAGE];
        if !replaced {
            let left = self.size_bytes.saturating_sub(number.saturating_mul(PAGE_BYTES));
            let count = usize::try_from(left).unwrap_or(PAGE).min(PAGE);
            self.read_base(number, 0, page.get_mut(..count).unwrap_or_default())?;
        }
        if let Some(slot) = self.slot(number) {
            *slot = Some(Arc::new(page));
        }
        Ok(())
    }

    fn slot(&mut self, number: u64) -> Option<&mut Option<Arc<Page>>> {
        let group = usize::try_from(number.checked_div(GROUP)?).ok()?;
        let within = usize::try_from(number.checked_rem(GROUP)?).ok()?;
        let group = Arc::make_mut(self.groups.get_mut(group)?.get_or_insert_default());
        if group.pages.is_empty() {
            group.pages = vec![None; GROUP.narrow::<usize>()];
        }
        group.pages.get_mut(within)
    }

    fn page_mut(&mut self, number: u64) -> Option<&mut Page> {
        self.slot(number)?.as_mut().map(Arc::make_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_device::MemoryBackend;

    #[test]
    fn copies_share_and_do_not_see_each_others_writes() {
        let size = 3 * 4096 * 512 + 100;
        let base: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
        let mut pages = Pages::over(Arc::new(MemoryBackend::new("base", base.clone())));
        let mut model = base;
        let mut copies = Vec::new();
        for round in 0..40_usize {
            let offset = round * 160_001 % size;
            let length = (round * 977 % 9000).min(size - offset);
            pages.write(offset as u64, &vec![round as u8; length]).unwrap();
            model[offset..offset + length].fill(round as u8);
            copies.push((pages.clone(), model.clone()));
        }
        for (pages, model) in copies {
            let mut found = vec![0; size];
            pages.read(0, &mut found).unwrap();
            assert!(found == model);
        }
        assert!(pages.write(size as u64, &[0]).is_err());
    }
}
