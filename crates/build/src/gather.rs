//! Gathering: all entries of all sources are sorted, and the tree is laid out.

use crate::ahead;
use crate::builder::{Gathered, ImageBuilder, Verdict};
use crate::entry::{Attributes, Entry, EntryKind, EntryPath, Precedence};
use crate::error::{Error, Result, shown};
use crate::layout::{Rules, lay_out};
use crate::links::{push_link, resolve};
use crate::options::{BuildOptions, Owners};
use crate::record::Encoder;
use crate::sort_key::{Class, Order, Place, sort_key};
use crate::source::{Contents, LocatorContents};
use crate::tree::{Settling, Tree};
use buttress_exact::Exact as _;
use buttress_format::Timestamp;
use buttress_fs::Progress;
use buttress_mkfs::parts::Settings;
use buttress_packing::Sorter;
use buttress_packing::SpoolFolder;
use std::sync::Arc;

/// The divisor of the memory limit for the sorter of entries, and for the sorter of items.
const SORTER_SHARE: u64 = 3;

pub(crate) fn gather(
    builder: ImageBuilder,
    settings: Settings,
    time: Timestamp,
    progress: &Progress,
) -> Result<Gathered> {
    let ImageBuilder {
        options,
        mut sources,
        adapters,
    } = builder;
    let folder = SpoolFolder::new(options.spool.as_deref());
    let memory = options.memory.get().checked_div(SORTER_SHARE).unwrap_or(0);
    let memory = memory.narrow::<usize>();
    let default = default_attributes(&options, time);
    let mut records = Sorter::new(&folder, memory);
    let mut links = Sorter::new(&folder, memory);
    add_own(&mut records, &options, &default)?;
    let mut contents: Vec<Arc<dyn Contents>> = vec![Arc::new(LocatorContents)];
    let mut names = vec!["the builder".to_owned()];
    for (index, source) in sources.iter_mut().enumerate() {
        let number = u16::try_from(index.saturating_add(1)).map_err(|_| Error::Sources)?;
        let fetched = ahead::for_each(source, &mut |mut entry| {
            progress.check()?;
            let left_out = adapters
                .iter()
                .any(|adapter| adapter(&mut entry) == Verdict::LeaveOut);
            adapt(&mut entry, &options.owners, options.latest_time);
            add(&mut records, &mut links, number, &entry, left_out)
        });
        if fetched.is_err() {
            // The source itself may have reported the cancellation.
            progress.check()?;
        }
        fetched?;
        contents.push(source.contents()?);
        names.push(source.name());
    }
    let records = records.finish()?;
    let links = resolve(&records, links, &folder, memory)?;
    let tree = Tree::new(&Settling {
        records: &records,
        links: links.as_ref(),
        source_names: &names,
        default: &default,
        subvolumes: &options.subvolumes,
        folder: &folder,
        memory,
    })?;
    drop((records, links));
    let rules = Rules {
        inode_flags: &options.inode_flags,
        node_bytes: settings.node_bytes,
        sector_bytes: settings.sector_bytes,
        folder: &folder,
        memory,
    };
    let layout = lay_out(&tree, &rules, progress)?;
    Ok(Gathered {
        options,
        settings,
        layout,
        contents,
        folder,
    })
}

/// Returns the attributes of a directory without an entry.
fn default_attributes(options: &BuildOptions, time: Timestamp) -> Attributes {
    Attributes {
        permissions: 0o755,
        uid: options.owners.uid.unwrap_or(0),
        gid: options.owners.gid.unwrap_or(0),
        mtime: time,
        ..Attributes::default()
    }
}

/// Adds the root directory and the subvolumes that options name, with the lowest precedence.
fn add_own(records: &mut Sorter, options: &BuildOptions, default: &Attributes) -> Result<()> {
    let root = EntryPath::root();
    let subvolumes = options.subvolumes.iter().map(|(path, _)| path);
    let mut paths: Vec<&EntryPath> = core::iter::once(&root).chain(subvolumes).collect();
    paths.sort_by_key(|path| path.as_bytes().to_vec());
    paths.dedup();
    for path in paths {
        let mut entry = Entry {
            path: path.clone(),
            precedence: Precedence::default(),
            kind: EntryKind::Directory(None),
            attributes: default.clone(),
        };
        own_root(&mut entry, &options.owners);
        let mut encoder = Encoder::default();
        encoder.entry(&entry);
        let key = sort_key(path.as_bytes(), Order::default(), Class::Entry);
        records.push(&key, &encoder.0)?;
    }
    Ok(())
}

fn own_root(entry: &mut Entry, owners: &Owners) {
    if let (true, Some((uid, gid, permissions))) = (entry.path.is_root(), owners.root) {
        entry.attributes.uid = uid;
        entry.attributes.gid = gid;
        if let Some(permissions) = permissions {
            entry.attributes.permissions = permissions;
        }
    }
}

/// Applies the options to an entry.
fn adapt(entry: &mut Entry, owners: &Owners, latest: Option<Timestamp>) {
    let attributes = &mut entry.attributes;
    attributes.uid = owners.uid.unwrap_or(attributes.uid);
    attributes.gid = owners.gid.unwrap_or(attributes.gid);
    if let Some(latest) = latest {
        let times = [
            Some(&mut attributes.mtime),
            attributes.atime.as_mut(),
            attributes.ctime.as_mut(),
            attributes.otime.as_mut(),
        ];
        for time in times.into_iter().flatten() {
            if (time.seconds, time.nanoseconds) > (latest.seconds, latest.nanoseconds) {
                *time = latest;
            }
        }
    }
    own_root(entry, owners);
}

fn add(records: &mut Sorter, links: &mut Sorter, source: u16, entry: &Entry, left_out: bool) -> Result<()> {
    if !left_out && entry.path.is_root() && !entry.kind.can_be_root() {
        return Err(Error::Entry {
            path: shown(entry.path.as_bytes()),
            problem: "the root of the tree is always a directory (found an entry of another kind)".to_owned(),
        });
    }
    let class = match entry.kind {
        _ if left_out => Class::LeftOut,
        EntryKind::Whiteout => Class::Whiteout,
        EntryKind::Opaque => Class::Opaque,
        _ => Class::Entry,
    };
    let order = Order {
        source,
        precedence: entry.precedence,
    };
    let key = sort_key(entry.path.as_bytes(), order, class);
    if let (EntryKind::HardLink(target), false) = (&entry.kind, left_out) {
        let link = Place {
            path: Vec::new(),
            order,
            class,
        };
        push_link(links, target, &link, &key)?;
    }
    let mut encoder = Encoder::default();
    encoder.entry(entry);
    Ok(records.push(&key, &encoder.0)?)
}
