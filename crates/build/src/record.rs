//! Entries as bytes, for sorting and spooling.
//!
//! The encoding stores numbers seven bits at a time, lowest first. Byte strings follow their
//! length. The decoder reads only bytes that this process wrote.

use crate::entry::{
    Attributes, Compress, DataExtent, Entry, EntryKind, EntryPath, FileContent, LinkKey, Precedence,
    ShareKey, SubvolumeMark,
};
use buttress_format::compression::CompressionMethod;
use buttress_format::{ByteCount, Compression, InodeFlags, Timestamp};
use buttress_fs::NodeKind;
use buttress_fs::{DeviceNumber, Xattr};

/// Encodes values one after another.
#[derive(Debug, Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn number(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push((value & 0x7f) as u8);
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn flag(&mut self, value: bool) -> &mut Self {
        self.0.push(u8::from(value));
        self
    }

    fn time(&mut self, time: Timestamp) -> &mut Self {
        self.0.extend_from_slice(&time.seconds.to_le_bytes());
        self.number(u64::from(time.nanoseconds))
    }

    fn optional<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) -> &mut Self {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
        self
    }

    fn mark(&mut self, mark: SubvolumeMark) {
        self.flag(mark.read_only).flag(mark.default);
    }

    fn node(&mut self, kind: NodeKind) {
        let (tag, number) = match kind {
            NodeKind::Fifo => (0, None),
            NodeKind::Socket => (1, None),
            NodeKind::CharacterDevice(number) => (2, Some(number)),
            NodeKind::BlockDevice(number) => (3, Some(number)),
        };
        self.0.push(tag);
        if let Some(number) = number {
            self.number(u64::from(number.major))
                .number(u64::from(number.minor));
        }
    }

    pub(crate) fn content(&mut self, content: &FileContent) {
        self.number(content.size.get());
        self.optional(content.data, |to, data| {
            to.number(data.bytes.get()).number(data.ranges);
        });
        self.bytes(&content.locator);
        self.optional(content.share, |to, key| {
            to.0.extend_from_slice(&key.0.to_le_bytes())
        });
    }

    pub(crate) fn compress(&mut self, compress: Option<Compress>) {
        match compress {
            None => self.0.push(0),
            Some(Compress::No) => self.0.push(1),
            Some(Compress::With(method)) => {
                self.0.push(2);
                self.0.push(method.compression().to_raw());
                self.0.extend_from_slice(&method.level().to_le_bytes());
            }
        }
    }

    fn kind(&mut self, kind: &EntryKind) {
        match kind {
            EntryKind::Directory(mark) => {
                self.0.push(0);
                self.optional(*mark, Self::mark);
            }
            EntryKind::Snapshot { of, mark } => {
                self.0.push(1);
                self.bytes(of.as_bytes());
                self.mark(*mark);
            }
            EntryKind::File(content) => {
                self.0.push(2);
                self.content(content);
            }
            EntryKind::Symlink(target) => {
                self.0.push(3);
                self.bytes(target);
            }
            EntryKind::Node(kind) => {
                self.0.push(4);
                self.node(*kind);
            }
            EntryKind::HardLink(target) => {
                self.0.push(5);
                self.bytes(target.as_bytes());
            }
            EntryKind::Whiteout => self.0.push(6),
            EntryKind::Opaque => self.0.push(7),
        }
    }

    fn attributes(&mut self, attributes: &Attributes) {
        let Attributes {
            permissions,
            uid,
            gid,
            mtime,
            atime,
            ctime,
            otime,
            xattrs,
            flags,
            compression,
            link,
        } = attributes;
        for number in [permissions, uid, gid] {
            self.number(u64::from(*number));
        }
        self.time(*mtime);
        for time in [atime, ctime, otime] {
            self.optional(*time, |to, time| {
                to.time(time);
            });
        }
        self.number(xattrs.len() as u64);
        for Xattr { name, value } in xattrs {
            self.bytes(name).bytes(value);
        }
        self.number(flags.bits());
        self.compress(*compression);
        self.optional(*link, |to, link| {
            to.number(link.0).number(link.1);
        });
    }

    /// Encodes an entry without its path and precedence, because the sort key holds both.
    pub(crate) fn entry(&mut self, entry: &Entry) -> &mut Self {
        self.kind(&entry.kind);
        self.attributes(&entry.attributes);
        self
    }
}

/// Decodes the bytes of an [`Encoder`]. For bytes that no `Encoder` writes, the decoder returns
/// `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn array<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (first, rest) = self.0.split_first_chunk::<LENGTH>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn number_u32(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        Some(self.byte()? != 0)
    }

    fn time(&mut self) -> Option<Timestamp> {
        Some(Timestamp {
            seconds: i64::from_le_bytes(self.array()?),
            nanoseconds: self.number_u32()?,
        })
    }

    fn optional<T>(&mut self, get: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? {
            get(self).map(Some)
        } else {
            Some(None)
        }
    }

    fn mark(&mut self) -> Option<SubvolumeMark> {
        Some(SubvolumeMark {
            read_only: self.flag()?,
            default: self.flag()?,
        })
    }

    fn node(&mut self) -> Option<NodeKind> {
        let tag = self.byte()?;
        let mut number = || {
            Some(DeviceNumber {
                major: self.number_u32()?,
                minor: self.number_u32()?,
            })
        };
        Some(match tag {
            0 => NodeKind::Fifo,
            1 => NodeKind::Socket,
            2 => NodeKind::CharacterDevice(number()?),
            _ => NodeKind::BlockDevice(number()?),
        })
    }

    pub(crate) fn path(&mut self) -> Option<EntryPath> {
        EntryPath::new(self.bytes()?).ok()
    }

    pub(crate) fn content(&mut self) -> Option<FileContent> {
        Some(FileContent {
            size: ByteCount::new(self.number()?),
            data: self.optional(|from| {
                Some(DataExtent {
                    bytes: ByteCount::new(from.number()?),
                    ranges: from.number()?,
                })
            })?,
            locator: self.bytes()?.to_vec(),
            share: self.optional(|from| from.array().map(|key| ShareKey(u128::from_le_bytes(key))))?,
        })
    }

    pub(crate) fn compress(&mut self) -> Option<Option<Compress>> {
        Some(match self.byte()? {
            0 => None,
            1 => Some(Compress::No),
            _ => {
                let compression = Compression::from_raw(self.byte()?)?;
                let level = i8::from_le_bytes(self.array()?);
                let method = CompressionMethod::with_level(compression, i32::from(level));
                Some(Compress::With(method))
            }
        })
    }

    fn kind(&mut self) -> Option<EntryKind> {
        Some(match self.byte()? {
            0 => EntryKind::Directory(self.optional(Self::mark)?),
            1 => EntryKind::Snapshot {
                of: self.path()?,
                mark: self.mark()?,
            },
            2 => EntryKind::File(self.content()?),
            3 => EntryKind::Symlink(self.bytes()?.to_vec()),
            4 => EntryKind::Node(self.node()?),
            5 => EntryKind::HardLink(self.path()?),
            6 => EntryKind::Whiteout,
            _ => EntryKind::Opaque,
        })
    }

    fn xattr(&mut self) -> Option<Xattr> {
        Some(Xattr {
            name: self.bytes()?.to_vec(),
            value: self.bytes()?.to_vec(),
        })
    }

    fn attributes(&mut self) -> Option<Attributes> {
        Some(Attributes {
            permissions: self.number_u32()?,
            uid: self.number_u32()?,
            gid: self.number_u32()?,
            mtime: self.time()?,
            atime: self.optional(Self::time)?,
            ctime: self.optional(Self::time)?,
            otime: self.optional(Self::time)?,
            xattrs: (0..self.number()?).map(|_| self.xattr()).collect::<Option<_>>()?,
            flags: InodeFlags::from_bits_retain(self.number()?),
            compression: self.compress()?,
            link: self.optional(|from| Some(LinkKey(from.number()?, from.number()?)))?,
        })
    }

    /// Decodes an entry with this path and precedence.
    pub(crate) fn entry(&mut self, path: EntryPath, precedence: Precedence) -> Option<Entry> {
        Some(Entry {
            path,
            precedence,
            kind: self.kind()?,
            attributes: self.attributes()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back() {
        let path = EntryPath::new(b"a/b").unwrap();
        let time = Timestamp {
            seconds: -5,
            nanoseconds: 999_999_999,
        };
        let content = FileContent {
            size: ByteCount::new(u64::MAX),
            data: Some(DataExtent {
                bytes: ByteCount::new(12_345),
                ranges: 3,
            }),
            locator: vec![7; 300],
            share: Some(ShareKey(u128::MAX - 3)),
        };
        let number = DeviceNumber { major: 8, minor: 77 };
        let mark = SubvolumeMark {
            read_only: true,
            default: false,
        };
        let kinds = [
            EntryKind::Directory(None),
            EntryKind::Directory(Some(mark)),
            EntryKind::Snapshot {
                of: path.clone(),
                mark,
            },
            EntryKind::File(content),
            EntryKind::Symlink(b"to/there".to_vec()),
            EntryKind::Node(NodeKind::Fifo),
            EntryKind::Node(NodeKind::Socket),
            EntryKind::Node(NodeKind::CharacterDevice(number)),
            EntryKind::Node(NodeKind::BlockDevice(number)),
            EntryKind::HardLink(path.clone()),
            EntryKind::Whiteout,
            EntryKind::Opaque,
        ];
        for kind in kinds {
            let entry = Entry {
                path: path.clone(),
                precedence: Precedence(300),
                kind,
                attributes: Attributes {
                    permissions: 0o4755,
                    uid: u32::MAX,
                    gid: 200,
                    mtime: time,
                    atime: Some(Timestamp::default()),
                    ctime: None,
                    otime: Some(time),
                    xattrs: vec![Xattr {
                        name: b"user.x".to_vec(),
                        value: vec![0; 1000],
                    }],
                    flags: InodeFlags::NODATACOW,
                    compression: Some(Compress::With(CompressionMethod::with_level(
                        Compression::Zstd,
                        -7,
                    ))),
                    link: Some(LinkKey(1, u64::MAX)),
                },
            };
            let mut encoder = Encoder::default();
            encoder.entry(&entry);
            let mut decoder = Decoder(&encoder.0);
            assert_eq!(decoder.entry(path.clone(), Precedence(300)), Some(entry));
            assert!(decoder.0.is_empty());
            assert_eq!(
                Decoder(&encoder.0[..encoder.0.len() - 1]).entry(path.clone(), Precedence(0)),
                None
            );
        }
    }
}
