//! A list of all files in ncdu's format, version 1.2, for ncdu and viewers of its exports.
//!
//! The format has one on-disk size per file, and viewers add these sizes. An extent that several
//! files share therefore counts only at the first of them in list order. The sum of a directory is
//! the size of its extents without those counted earlier. Each name of a hard link has the size of
//! its file, which viewers count once. Inline content takes no separate space.
//!
//! Source: "Ncdu Export File Format", dev.yorhel.nl/ncdu/jsonfmt.

use std::collections::HashMap;
use std::io::Write;

use anyhow::Result;
use buttress::accounting::{ExtentTable, Options};
use buttress::{FileKind, Location, RangeKind, WalkEntry, WalkItem, WalkOptions};

use super::Job;
use crate::output::terminal;

/// Largest number of remembered files with several names.
const LINKS_MAX: usize = 1 << 18;

/// Writes the list.
pub(super) fn run(job: &Job<'_>, one_file_system: bool) -> Result<()> {
    let location = job.location()?;
    let options = Options {
        keep_extents: true,
        ..Options::default()
    };
    let accounting = job.account(&options)?;
    let Some(extents) = accounting.extents() else {
        return Ok(());
    };
    // The export is a separate document format, independent of `--format`.
    let mut out = terminal::stdout(true);
    // Omit the current time, so that the same image gives the same bytes.
    write!(
        out,
        "[1,2,{{\"progname\":\"buttress\",\"progver\":\"{}\",\"timestamp\":0}}",
        env!("CARGO_PKG_VERSION")
    )?;
    let mut list = List {
        job,
        extents,
        is_counted: vec![false; extents.len()],
        links: HashMap::new(),
    };
    let walk = WalkOptions {
        one_file_system,
        progress: job.progress.clone(),
        ..WalkOptions::without_content()
    };
    let mut is_first = true;
    for item in job.filesystem().walk(location, walk) {
        match item {
            WalkItem::Entry(entry) if entry.metadata().kind == FileKind::Directory => {
                // The directory's entries follow in the list, unless the directory is unreadable or
                // outside of the limit.
                list.open_directory(&mut out, &entry, is_first)?;
            }
            WalkItem::Entry(entry) if is_first => {
                // The format requires a directory, so wrap a single file in one.
                list.open_name(&mut out, &job.target.path)?;
                list.file(&mut out, &entry)?;
                writeln!(out, "]]")?;
                out.flush()?;
                return Ok(());
            }
            WalkItem::Entry(entry) => list.file(&mut out, &entry)?,
            WalkItem::Enter(_) => {}
            WalkItem::Leave(_) => out.write_all(b"]")?,
            WalkItem::Failed(error) => {
                job.progress.check()?;
                job.context.lost(&job.target.name_in(error));
            }
        }
        is_first = false;
    }
    out.write_all(b"]\n")?;
    out.flush()?;
    Ok(())
}

struct List<'a> {
    job: &'a Job<'a>,
    extents: &'a ExtentTable,
    is_counted: Vec<bool>,
    /// On-disk sizes of files of which the walk expects further names.
    links: HashMap<Location, (u64, u32)>,
}

impl List<'_> {
    fn open_name(&self, out: &mut dyn Write, name: &[u8]) -> Result<()> {
        out.write_all(b",\n[{\"name\":")?;
        write_name(out, name)
    }

    fn open_directory(&self, out: &mut dyn Write, entry: &WalkEntry, is_first: bool) -> Result<()> {
        if is_first {
            self.open_name(out, &self.job.target.path)?;
        } else {
            self.open_name(out, &entry.name)?;
        }
        // Entries inherit the device, until a directory states another one.
        write!(out, ",\"dev\":{}}}", entry.location().subvolume)?;
        Ok(())
    }

    fn file(&mut self, out: &mut dyn Write, entry: &WalkEntry) -> Result<()> {
        let metadata = entry.metadata();
        out.write_all(b",\n{\"name\":")?;
        write_name(out, &entry.name)?;
        let disk = self.disk_of(entry)?;
        if metadata.size.get() > 0 {
            write!(out, ",\"asize\":{}", metadata.size)?;
        }
        if disk > 0 {
            write!(out, ",\"dsize\":{disk}")?;
        }
        if metadata.nlink > 1 {
            let inode = metadata.location.inode;
            write!(
                out,
                ",\"ino\":{inode},\"hlnkc\":true,\"nlink\":{}",
                metadata.nlink
            )?;
        }
        if metadata.kind != FileKind::Regular {
            out.write_all(b",\"notreg\":true")?;
        }
        out.write_all(b"}")?;
        Ok(())
    }

    /// Returns the on-disk size of a file without the extents counted earlier.
    fn disk_of(&mut self, entry: &WalkEntry) -> Result<u64> {
        let metadata = entry.metadata();
        if metadata.kind != FileKind::Regular {
            return Ok(0);
        }
        let location = metadata.location;
        if let Some((disk, to_come)) = self.links.get_mut(&location) {
            let disk = *disk;
            *to_come = to_come.saturating_sub(1);
            if *to_come == 0 {
                self.links.remove(&location);
            }
            return Ok(disk);
        }
        let mut disk = 0_u64;
        let file = self.job.filesystem().open_record(&entry.record);
        let extents = match file.and_then(|file| file.ranges()) {
            Ok(extents) => extents,
            Err(error) => {
                self.job.context.lost(&self.job.target.name_in(error));
                return Ok(0);
            }
        };
        for range in extents {
            self.job.progress.check()?;
            let range = match range {
                Ok(range) => range,
                Err(error) => {
                    self.job.context.lost(&self.job.target.name_in(error));
                    continue;
                }
            };
            let (RangeKind::Data(extent) | RangeKind::Preallocated(extent)) = range.kind else {
                continue;
            };
            if let Some(known) = self.extents.get(extent.logical)
                && let Some(counted) = self.is_counted.get_mut(known.index)
                && !std::mem::replace(counted, true)
            {
                disk = disk.saturating_add(known.disk.get());
            }
        }
        if metadata.nlink > 1 && self.links.len() < LINKS_MAX {
            self.links
                .insert(location, (disk, metadata.nlink.saturating_sub(1)));
        }
        Ok(disk)
    }
}

/// Writes a name as a JSON string. Bytes that are not UTF-8 stay unchanged, as in ncdu's own
/// exports.
fn write_name(out: &mut dyn Write, name: &[u8]) -> Result<()> {
    out.write_all(b"\"")?;
    for byte in name {
        match byte {
            b'"' | b'\\' => out.write_all(&[b'\\', *byte])?,
            0..=0x1f | 0x7f => write!(out, "\\u00{byte:02x}")?,
            _ => out.write_all(&[*byte])?,
        }
    }
    out.write_all(b"\"")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_strings_that_parsers_read() {
        let text = |name: &[u8]| {
            let mut out = Vec::new();
            write_name(&mut out, name).unwrap();
            out
        };
        for name in [
            "plain",
            "with \"quotes\" and \\",
            "line\nfeed\ttab\u{7f}",
            "\u{e4}",
        ] {
            let parsed: String = serde_json::from_slice(&text(name.as_bytes())).unwrap();
            assert_eq!(parsed, name);
        }
        assert_eq!(text(b"\xff"), b"\"\xff\"");
    }
}
