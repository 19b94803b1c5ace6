//! Text of a listing: lines of a directory, buffered until the column widths are known.

use std::io::Write;

use anyhow::Result;
use buttress::{Follow, InodeRecord, Location, Subvolume};

use super::Look;
use super::line::{Line, Size};
use crate::context::Context;
use crate::output::size::ls_human;
use crate::output::terminal::Stdout;
use crate::output::time::Clock;

/// Writer of one directory after another.
pub(in crate::commands) struct Listing<'a> {
    options: Look,
    /// True if the path of a directory precedes its entries.
    headings: bool,
    clock: Clock,
    context: &'a Context,
    out: Stdout,
    lines: Vec<Line>,
    blocks_begun: bool,
}

/// Widths of the aligned columns.
#[derive(Debug, Default)]
struct Widths {
    inode: usize,
    mode: usize,
    links: usize,
    uid: usize,
    gid: usize,
    size: usize,
    major: usize,
    minor: usize,
}

impl Widths {
    fn of(lines: &[Line]) -> Self {
        let mut widths = Self::default();
        for line in lines {
            let grow = |width: &mut usize, text: &str| *width = (*width).max(text.len());
            grow(&mut widths.inode, &line.inode);
            grow(&mut widths.mode, &line.mode);
            grow(&mut widths.links, &line.links);
            grow(&mut widths.uid, &line.uid);
            grow(&mut widths.gid, &line.gid);
            match &line.size {
                Size::Bytes(size) => grow(&mut widths.size, size),
                Size::Device { major, minor } => {
                    grow(&mut widths.major, major);
                    grow(&mut widths.minor, minor);
                }
            }
        }
        if widths.major > 0 {
            // Device nodes print `major, minor` in the size column.
            let devices = widths.major.saturating_add(widths.minor).saturating_add(2);
            widths.minor = widths
                .minor
                .max(widths.size.saturating_sub(widths.major.saturating_add(2)));
            widths.size = widths.size.max(devices);
        }
        widths
    }
}

impl<'a> Listing<'a> {
    pub(in crate::commands) fn new(
        options: Look,
        headings: bool,
        clock: Clock,
        context: &'a Context,
    ) -> Self {
        Self {
            options,
            headings,
            clock,
            context,
            out: context.stdout(),
            lines: Vec::new(),
            blocks_begun: false,
        }
    }

    /// Begins a directory.
    pub(in crate::commands) fn enter(&mut self, path: &[u8]) -> Result<()> {
        if self.headings {
            if self.blocks_begun {
                writeln!(self.out)?;
            }
            self.out.write_all(&self.context.printable(path))?;
            self.out.write_all(b":\n")?;
        }
        self.blocks_begun = true;
        Ok(())
    }

    /// With `-a`, adds `.` and `..` of the current directory, looked up from the start of the
    /// listing.
    pub(super) fn add_dots(&mut self, path: &[u8], opened: &Subvolume, start: Location, inner: &[u8]) {
        if !self.options.all {
            return;
        }
        for name in [b".".as_slice(), b".."] {
            let shown = if name == b".." && inner.is_empty() {
                // A directory above the start of the listing is looked up from the root.
                opened.locate([path, b"/.."].concat(), Follow::All)
            } else {
                let path = [inner, b"/", name].concat();
                opened.volume().locate(start, &path, Follow::All)
            };
            match shown.and_then(|location| opened.volume().inode(location)) {
                Ok(record) => self.add(name.to_vec(), &record, b""),
                Err(error) => self.context.lost(&error.into()),
            }
        }
    }

    /// Adds an entry of the current directory.
    pub(in crate::commands) fn add(&mut self, name: Vec<u8>, record: &InodeRecord, link: &[u8]) {
        let size = if self.options.human_readable {
            ls_human
        } else {
            |bytes: u64| bytes.to_string()
        };
        self.lines.push(Line::new(name, record, link, size));
    }

    /// Writes the line of a single file that the user named.
    pub(in crate::commands) fn single(
        &mut self,
        name: &[u8],
        record: &InodeRecord,
        link: &[u8],
    ) -> Result<()> {
        self.blocks_begun = true;
        self.add(name.to_vec(), record, link);
        self.write_lines()
    }

    /// Writes the name of an older state.
    pub(in crate::commands) fn state(&mut self, name: &str) -> Result<()> {
        Ok(writeln!(self.out, "{name}")?)
    }

    /// Ends the current directory.
    pub(in crate::commands) fn leave(&mut self) -> Result<()> {
        if self.options.is_long() {
            let total = self
                .lines
                .iter()
                .fold(0u64, |sum, line| sum.saturating_add(line.allocated_bytes));
            if self.options.human_readable {
                writeln!(self.out, "total {}", ls_human(total))?;
            } else {
                writeln!(self.out, "total {}", total.div_ceil(1024))?;
            }
        }
        self.write_lines()
    }

    fn write_lines(&mut self) -> Result<()> {
        let lines = std::mem::take(&mut self.lines);
        let widths = if self.options.is_long() || self.options.inode {
            Widths::of(&lines)
        } else {
            Widths::default()
        };
        for line in &lines {
            self.write_line(line, &widths)?;
        }
        Ok(())
    }

    fn write_line(&mut self, line: &Line, widths: &Widths) -> Result<()> {
        let out = &mut self.out;
        if self.options.inode {
            write!(out, "{:>1$} ", line.inode, widths.inode)?;
        }
        if self.options.is_long() {
            write!(
                out,
                "{:<1$} {2:>3$} ",
                line.mode, widths.mode, line.links, widths.links
            )?;
            write!(out, "{:>1$} {2:>3$} ", line.uid, widths.uid, line.gid, widths.gid)?;
            match &line.size {
                Size::Bytes(size) => write!(out, "{size:>0$} ", widths.size)?,
                Size::Device { major, minor } => {
                    write!(out, "{major:>0$}, {minor:>1$} ", widths.major, widths.minor)?;
                }
            }
            let (seconds, nanoseconds) = line.time;
            write!(
                out,
                "{} ",
                self.clock.ls(self.options.style(), seconds, nanoseconds)
            )?;
        }
        out.write_all(&self.context.printable(&line.name))?;
        if self.options.is_long() && !line.link.is_empty() {
            out.write_all(b" -> ")?;
            out.write_all(&self.context.printable(&line.link))?;
        }
        out.write_all(b"\n")?;
        Ok(())
    }

    /// Flushes the output.
    pub(in crate::commands) fn finish(mut self) -> Result<()> {
        Ok(self.out.flush()?)
    }
}
