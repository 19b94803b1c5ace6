//! Members of archives as entries of an image, and the places of their contents.

use buttress_build::{
    Attributes, ContentReader, DataExtent, Entry, EntryKind, EntryPath, FileContent, PathProblem, Precedence,
    SourceError, SubvolumeMark,
};
use buttress_format::{ByteCount, InodeFlags};
use buttress_fs::NodeKind;
use buttress_fs::{DeviceNumber, Xattr};

use crate::segments::SegmentReader;
use crate::store::Store;
use crate::tar::{Kind, Member, Problem, Reader, Segment, TarError};

/// The maximum length of an extended attribute's name.
pub(crate) const XATTR_NAME_BYTES_MAX: usize = 255;

pub(crate) fn invalid(name: String, error: TarError) -> SourceError {
    if matches!(error.problem, Problem::Cancelled) {
        return SourceError::Io {
            action: "reading",
            place: name,
            cause: std::io::ErrorKind::Interrupted.into(),
        };
    }
    SourceError::Invalid {
        place: name,
        problem: Box::new(error),
    }
}

pub(crate) fn path(field: &'static str, bytes: &[u8]) -> Result<EntryPath, Problem> {
    EntryPath::new(bytes).map_err(|problem| Problem::Path {
        field,
        path: bytes.to_vec(),
        problem,
    })
}

/// Makes a directory without a description.
pub(crate) fn directory(path: EntryPath, precedence: Precedence, mark: Option<SubvolumeMark>) -> Entry {
    Entry {
        path,
        precedence,
        kind: EntryKind::Directory(mark),
        attributes: Attributes {
            permissions: 0o755,
            ..Attributes::default()
        },
    }
}

/// Makes an entry that is no file.
pub(crate) fn mark(path: EntryPath, kind: EntryKind, precedence: Precedence) -> Entry {
    Entry {
        path,
        precedence,
        kind,
        attributes: Attributes::default(),
    }
}

/// Returns true if an extended attribute can have this name.
pub(crate) fn is_xattr_name(name: &[u8]) -> bool {
    (1..=XATTR_NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0)
}

/// Returns the data extent of a member's file.
fn data_of(kind: &Kind) -> Option<DataExtent> {
    let Kind::File { segments, .. } = kind else {
        return None;
    };
    let sum = |sum: DataExtent, segment: &Segment| sum.with_range(segment.length);
    Some(segments.iter().fold(DataExtent::default(), sum))
}

/// Converts a member to an entry of this precedence.
pub(crate) fn entry_of(member: Member, precedence: Precedence) -> Result<Entry, Problem> {
    let locator = locator(&member);
    let data = data_of(&member.kind);
    if let Some((name, _)) = member.xattrs.iter().find(|(name, _)| !is_xattr_name(name)) {
        return Err(Problem::XattrName(name.clone()));
    }
    let device = |major, minor| DeviceNumber { major, minor };
    let kind = match member.kind {
        Kind::File { size, .. } => EntryKind::File(FileContent {
            size: ByteCount::new(size),
            data,
            locator,
            share: None,
        }),
        Kind::Directory => EntryKind::Directory(None),
        Kind::Symlink(target) if target.contains(&0) => {
            return Err(Problem::Path {
                field: "the target of a link",
                path: target,
                problem: PathProblem::ZeroByte,
            });
        }
        Kind::Symlink(target) => EntryKind::Symlink(target),
        Kind::HardLink(target) => EntryKind::HardLink(path("the target of a hard link", &target)?),
        Kind::CharacterDevice(major, minor) => {
            EntryKind::Node(NodeKind::CharacterDevice(device(major, minor)))
        }
        Kind::BlockDevice(major, minor) => EntryKind::Node(NodeKind::BlockDevice(device(major, minor))),
        Kind::Fifo => EntryKind::Node(NodeKind::Fifo),
    };
    let xattrs = member.xattrs.into_iter();
    Ok(Entry {
        path: path("path", &member.path)?,
        precedence,
        kind,
        attributes: Attributes {
            permissions: member.permissions,
            uid: member.uid,
            gid: member.gid,
            mtime: member.modified,
            atime: None,
            ctime: None,
            otime: None,
            xattrs: xattrs.map(|(name, value)| Xattr { name, value }).collect(),
            flags: InodeFlags::empty(),
            compression: None,
            link: None,
        },
    })
}

/// Returns the place of the content. For a file without holes, the place of the content is the
/// place of its data. For a sparse file, the place is that of the first header, whose map of ranges
/// is read again.
fn locator(member: &Member) -> Vec<u8> {
    let tagged = |tag: u8, number: u64| [&[tag][..], &number.to_le_bytes()].concat();
    match &member.kind {
        Kind::File { size, segments } => match segments.as_slice() {
            [whole] if whole.offset == 0 && whole.length == *size => tagged(0, whole.at),
            _ => tagged(1, member.offset),
        },
        _ => Vec::new(),
    }
}

/// Opens the content of a file of this size, from an entry of this archive.
pub(crate) fn open(
    name: &str,
    store: &Store,
    size: u64,
    locator: &[u8],
) -> Result<Box<dyn ContentReader>, SourceError> {
    let changed = || SourceError::Changed {
        place: name.to_owned(),
        what: "a member is no longer where it was".to_owned(),
    };
    let (tag, place) = locator.split_first().ok_or_else(changed)?;
    let place = u64::from_le_bytes(*place.first_chunk::<8>().ok_or_else(changed)?);
    let segments = if *tag == 0 {
        vec![Segment {
            offset: 0,
            length: size,
            at: place,
        }]
    } else {
        let member = Reader::at(store.clone(), place)
            .next_member()
            .map_err(|error| invalid(name.to_owned(), error))?;
        match member.map(|member| member.kind) {
            Some(Kind::File {
                size: again,
                segments,
            }) if again == size => segments,
            _ => return Err(changed()),
        }
    };
    Ok(Box::new(SegmentReader::new(
        name.to_owned(),
        store.clone(),
        segments,
        size,
    )))
}
