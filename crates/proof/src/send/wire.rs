//! The kernel's own streams, decoded, dumped as by btrfs-progs, and encoded again to the same
//! bytes; and the sizes of streams.

use anyhow::{Context, Result, bail, ensure};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{newest, progs_missing, run};
use buttress_stream::command::{AttributeSink, Value};
use buttress_stream::{AttributeKind, CommandKind, Decoder, Encoder, TextDump};
use std::path::Path;
use std::process::Command;

/// Version of btrfs-progs whose dump is the reference.
const DUMP_VERSION: (u32, u32) = (6, 14);

/// Total size of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Number of all bytes.
    pub bytes: u64,
    /// Number of path bytes.
    pub path_bytes: u64,
    /// Number of commands.
    pub commands: u64,
}

impl Size {
    /// Returns the number of bytes without paths.
    #[must_use]
    pub const fn without_paths(&self) -> u64 {
        self.bytes - self.path_bytes
    }
}

impl AttributeSink for Size {
    type Error = std::convert::Infallible;

    fn attribute(&mut self, kind: AttributeKind, value: Value<'_>) -> Result<(), Self::Error> {
        if let (
            AttributeKind::Path | AttributeKind::PathTo | AttributeKind::PathLink | AttributeKind::ClonePath,
            Value::Bytes(path),
        ) = (kind, value)
        {
            self.path_bytes += path.len() as u64;
        }
        Ok(())
    }
}

/// Measures streams.
pub fn size<P: AsRef<Path>>(streams: &[P]) -> Result<Size> {
    let mut size = Size::default();
    for path in streams {
        let file = std::fs::File::open(path)?;
        size.bytes += file.metadata()?.len();
        let mut decoder = Decoder::new(file);
        while let Some(frame) = decoder.next_command()? {
            // The kernel's send omits these commands.
            if frame.command().kind() == CommandKind::FileAttributes {
                size.bytes -= u64::try_from(frame.bytes().len())?;
                continue;
            }
            size.commands += 1;
            let Ok(()) = frame.command().visit(&mut size);
        }
    }
    Ok(size)
}

/// Checks the stream in the file `path`. Compares the dump of a stream only if btrfs-progs has at
/// least the reference version.
pub fn check(path: &Path) -> Result<()> {
    let stream = std::fs::read(path)?;
    let (mut encoded, mut dumped) = (Vec::with_capacity(stream.len()), Vec::new());
    let mut decoder = Decoder::new(stream.as_slice());
    let mut dump = TextDump::new();
    while let Some(frame) = decoder.next_command()? {
        let encoder = Encoder::new(frame.version());
        if frame.index() == 1 {
            encoder.header(&mut encoded);
        }
        encoder.encode(frame.command(), &mut encoded)?;
        dump.line(frame.command(), &mut dumped);
        let end = encoded.len();
        let same = stream.get(end - frame.bytes().len()..end) == encoded.get(end - frame.bytes().len()..);
        ensure!(
            same,
            "encoded differently: {:?} at {}",
            frame.command(),
            frame.place()
        );
    }
    ensure!(encoded == stream, "something is left after the last command");
    if !skips(progs_missing(DUMP_VERSION)) {
        same_dump(path, &dumped)?;
    }
    Ok(())
}

fn same_dump(path: &Path, dumped: &[u8]) -> Result<()> {
    let mut theirs = Command::new(newest("btrfs"));
    let theirs = run(theirs.args(["receive", "--dump", "-f"]).arg(path)).context("btrfs receive --dump")?;
    let lines = |text: &[u8]| -> Vec<String> {
        let lines = text.split(|byte| *byte == b'\n');
        lines.map(|line| line.escape_ascii().to_string()).collect()
    };
    if theirs.stdout != dumped {
        let (theirs, ours) = (lines(&theirs.stdout), lines(dumped));
        let place = theirs.iter().zip(&ours).take_while(|(a, b)| a == b).count();
        bail!(
            "dumped differently in line {}: {:?}, btrfs-progs {:?}",
            place + 1,
            ours.get(place),
            theirs.get(place)
        );
    }
    Ok(())
}
