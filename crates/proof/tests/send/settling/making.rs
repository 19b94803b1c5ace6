//! Random streams, mostly in the form of Linux's.

use anyhow::Result;
use buttress::unstable::format::compression::Compressor;
use buttress::unstable::format::send::EncodedCompression;
use buttress::{ByteCount, Compression, CompressionMethod, FileOffset, Generation, Timestamp, Uuid};
use buttress_oracle::content::Random;
use buttress_stream::{Command, Encoder};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    Special,
}

/// Builder of a stream, with the names that a receiver of all its commands has.
pub(super) struct Making {
    pub(super) random: Random,
    pub(super) encoder: Encoder,
    pub(super) bytes: Vec<u8>,
    pub(super) names: BTreeMap<Vec<u8>, Kind>,
    pub(super) inode: u64,
}

impl Making {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    pub(super) fn add(&mut self, command: &Command<'_>) -> Result<()> {
        Ok(self.encoder.encode(command, &mut self.bytes)?)
    }

    pub(super) fn begin(&mut self, number: u64, parent: Option<u64>) -> Result<()> {
        self.bytes.clear();
        let encoder = self.encoder;
        encoder.header(&mut self.bytes);
        let uuid = |number: u64| Uuid::from_u128(0x5e77_1e00 + u128::from(number));
        let (path, transid) = (format!("s{number}"), Generation::new(7));
        let path = path.as_bytes();
        self.add(&match parent {
            None => Command::Subvolume {
                path,
                uuid: uuid(number),
                transid,
            },
            Some(parent) => Command::Snapshot {
                path,
                uuid: uuid(number),
                transid,
                clone_uuid: uuid(parent),
                clone_transid: transid,
            },
        })
    }

    /// Returns a random name, of this kind if the caller requests one. If no name matches, returns
    /// the top directory.
    fn any(&mut self, kind: Option<Kind>) -> Vec<u8> {
        let names: Vec<&Vec<u8>> = self
            .names
            .iter()
            .filter(|(_, found)| kind.is_none_or(|kind| kind == **found))
            .map(|(name, _)| name)
            .collect();
        let number = self.random.below(names.len() as u64 + 1);
        let name = usize::try_from(number).ok().and_then(|number| names.get(number));
        name.map_or_else(Vec::new, |name| name.to_vec())
    }

    /// Returns a path that is free, or rarely a path that exists.
    fn free_path(&mut self) -> Vec<u8> {
        if self.below(60) == 0 {
            return self.any(Some(Kind::File));
        }
        let mut path = self.any(Some(Kind::Directory));
        if !path.is_empty() {
            path.push(b'/');
        }
        let number = self.below(100_000);
        path.extend_from_slice(format!("n{number}").as_bytes());
        path
    }

    /// Returns whether a path is `above` or is below `above`.
    fn is_inside(&self, path: &[u8], above: &[u8]) -> bool {
        path == above || path.starts_with(&[above, b"/"].concat())
    }

    fn moved(&mut self, from: &[u8], to: &[u8]) {
        let Some(kind) = self.names.remove(from) else {
            return;
        };
        let below = [from, b"/"].concat();
        let inside: Vec<_> = self
            .names
            .iter()
            .filter(|(name, _)| name.starts_with(&below))
            .map(|(name, kind)| (name.clone(), *kind))
            .collect();
        for (name, kind) in inside {
            self.names.remove(&name);
            self.names.insert([to, &name[from.len()..]].concat(), kind);
        }
        self.names.insert(to.to_vec(), kind);
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        self.moved(from, to);
        self.add(&Command::Rename { from, to })
    }

    fn times(&mut self, path: &[u8]) -> Result<()> {
        let mut time = || Timestamp {
            seconds: i64::try_from(self.random.below(1000)).unwrap_or(0),
            nanoseconds: 3,
        };
        let (atime, mtime, ctime, otime) = (time(), time(), time(), time());
        let otime = (self.below(2) == 0).then_some(otime);
        self.add(&Command::Utimes {
            path,
            atime,
            mtime,
            ctime,
            otime,
        })
    }

    fn times_above(&mut self, path: &[u8]) -> Result<()> {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.times(&path[..end])
    }

    fn make(&mut self, path: &[u8]) -> Result<Kind> {
        self.inode += 1;
        let inode = None;
        let kind = self.below(12);
        self.add(&match kind {
            0..=6 => Command::Mkfile { path, inode },
            7 | 8 => Command::Mkdir { path, inode },
            9 => Command::Symlink {
                path,
                inode,
                target: b"some/where",
            },
            10 => Command::Mkfifo {
                path,
                inode,
                device: None,
                mode: None,
            },
            _ => Command::Mknod {
                path,
                inode,
                device: 0x103,
                mode: 0o024_755,
            },
        })?;
        let kind = match kind {
            0..=6 => Kind::File,
            7 | 8 => Kind::Directory,
            9 => Kind::Symlink,
            _ => Kind::Special,
        };
        self.names.insert(path.to_vec(), kind);
        Ok(kind)
    }

    /// Adds a random change of the inode at this path.
    fn change(&mut self, path: &[u8], kind: Kind) -> Result<()> {
        match self.below(if kind == Kind::File { 12 } else { 5 }) {
            0 => self.add(&Command::Chown {
                path,
                uid: 12,
                gid: 34,
            }),
            1 if kind == Kind::Symlink && self.below(30) > 0 => Ok(()),
            1 => {
                let mode = [0o644, 0o4755, 0o600, 0o2711][usize::try_from(self.random.below(4))?];
                self.add(&Command::Chmod { path, mode })
            }
            2 => self.times(path),
            3 => self.times_above(path),
            4 if self.below(4) == 0 && matches!(kind, Kind::File | Kind::Directory) => {
                self.add(&Command::SetXattr {
                    path,
                    name: b"user.x",
                    value: b"value",
                })
            }
            4 => Ok(()),
            5 if self.below(3) == 0 => {
                let size = ByteCount::new(self.below(9000));
                self.add(&Command::Truncate { path, size })
            }
            9.. => self.encoded(path),
            _ => {
                let length = match self.below(12) {
                    0 => 300_000,
                    1..=5 => self.below(1500),
                    _ => self.below(20_000),
                };
                let data = self.random.bytes(usize::try_from(length)?, true);
                let mut at = match self.below(5) {
                    0 => self.below(10_000),
                    _ => 0,
                };
                for data in data.chunks(40_000) {
                    let offset = FileOffset::new(at);
                    self.add(&Command::Write { path, offset, data })?;
                    at += data.len() as u64;
                }
                match self.below(2) {
                    0 => self.add(&Command::Truncate {
                        path,
                        size: ByteCount::new(at),
                    }),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Adds compressed extents, mostly in the form of Linux's: whole sectors with zeros after the
    /// end of the content, or inline.
    fn encoded(&mut self, path: &[u8]) -> Result<()> {
        let mut at = match self.below(6) {
            0 => 4096 * self.below(8),
            1 if self.below(5) == 0 => self.below(9000),
            _ => 0,
        };
        for _ in 0..=self.below(3) {
            let length = match self.below(4) {
                0 => 1 + self.below(4096),
                1 => 4096 * (1 + self.below(32)),
                _ => 1 + self.below(131_072),
            };
            let mut content = self.random.bytes(usize::try_from(length)?, true);
            let method = CompressionMethod::new(Compression::Zstd);
            let is_inline = length <= 4096 && at == 0 && self.below(4) > 0;
            let stored = if is_inline {
                Compressor::new().compress_inline(method, &content, 4096, 2048)
            } else {
                let filler = u8::from(self.below(12) == 0);
                content.resize(content.len().next_multiple_of(4096), filler);
                Compressor::new().compress(method, &content, 4096)
            };
            let Some(data) = stored else { continue };
            let unencoded_bytes = ByteCount::new(content.len() as u64);
            self.add(&Command::EncodedWrite {
                path,
                offset: FileOffset::new(at),
                unencoded_file_bytes: ByteCount::new(length),
                unencoded_bytes,
                unencoded_offset: ByteCount::ZERO,
                compression: Some(EncodedCompression::Zstd.to_raw()),
                encryption: None,
                data: &data,
            })?;
            let gap = 4096 * u64::from(self.below(5) == 0);
            at = (at + length).next_multiple_of(4096) + gap;
        }
        Ok(())
    }

    /// Adds a new inode, mostly in the form of Linux's streams.
    fn new_inode(&mut self) -> Result<()> {
        let number = self.inode + 257;
        let mut path = format!("o{number}-7-0").into_bytes();
        if self.below(12) == 0 {
            path = self.free_path();
            if self.names.contains_key(&path) && self.below(10) > 0 {
                return Ok(());
            }
        }
        let kind = self.make(&path)?;
        if self.below(10) == 0 {
            self.change(&path, kind)?;
        }
        let renames = match self.below(12) {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        for _ in 0..renames {
            let to = self.free_path();
            if self.is_inside(&to, &path) || (kind == Kind::Directory && self.names.contains_key(&to)) {
                continue;
            }
            self.rename(&path, &to)?;
            path = to;
        }
        if self.below(3) == 0 {
            self.times_above(&path)?;
        }
        if self.below(10) == 0 && kind != Kind::Directory {
            let other = self.free_path();
            self.add(&Command::Link {
                path: &other,
                target: &path,
            })?;
            self.names.insert(other, kind);
        }
        for _ in 0..self.below(5) {
            self.change(&path, kind)?;
        }
        if self.below(6) > 0 {
            self.add(&Command::Chown {
                path: &path,
                uid: 1,
                gid: 2,
            })?;
            if kind != Kind::Symlink {
                self.add(&Command::Chmod {
                    path: &path,
                    mode: 0o640,
                })?;
            }
            self.times(&path)?;
        }
        Ok(())
    }

    pub(super) fn step(&mut self) -> Result<()> {
        match self.below(20) {
            0 => {
                let path = self.any(Some(Kind::File));
                if path.is_empty() && self.below(10) > 0 {
                    return Ok(());
                }
                self.names.remove(&path);
                self.add(&Command::Unlink { path: &path })
            }
            1 => {
                let path = self.any(Some(Kind::Directory));
                let is_full = self
                    .names
                    .keys()
                    .any(|name| *name != path && self.is_inside(name, &path));
                if path.is_empty() || (is_full && self.below(30) > 0) {
                    return Ok(());
                }
                self.names.remove(&path);
                self.add(&Command::Rmdir { path: &path })
            }
            2 => {
                // Move the file or directory away, and later back.
                let (from, to) = (self.any(None), format!("o{}-7-1", self.inode).into_bytes());
                if from.is_empty() {
                    return Ok(());
                }
                self.rename(&from, &to)?;
                self.new_inode()?;
                if self.names.contains_key(&from) || !self.names.contains_key(&to) {
                    return Ok(());
                }
                self.rename(&to, &from)
            }
            3 => {
                let (from, to) = (self.any(None), self.free_path());
                let is_odd = self.is_inside(&to, &from) || self.names.contains_key(&to);
                if from.is_empty() || (is_odd && self.below(10) > 0) {
                    return Ok(());
                }
                self.rename(&from, &to)
            }
            4 => {
                let path = self.any(None);
                self.times(&path)
            }
            5 => {
                let path = self.any(Some(Kind::File));
                if path.is_empty() {
                    return Ok(());
                }
                self.change(&path, Kind::File)
            }
            _ => self.new_inode(),
        }
    }
}
