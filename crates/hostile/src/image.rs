//! The target of whole volumes: a changed seed volume, opened and read as far as possible.
//!
//! An input is the number of a volume, a byte of choices (a missing device, rescue options,
//! read-ahead), and the changes (see [`crate::mutation`]). If the volume opens, the target reads
//! trees block by block and item by item in both directions. The target reads subvolumes, and walks
//! all directories with content, attributes and link targets. The target also resolves paths in
//! both directions, and maps addresses through chunks to every copy.
//!
//! The target counts its work and ends an input after [`STEPS_MAX`] steps, because volumes may be
//! large. The fuzzer's own limits of time and memory bound a single step.

use crate::input::Input;
use crate::{Depth, mutation, seeds};
use buttress_accounts::Accounts as _;
use buttress_accounts::Maps as _;
use buttress_device::VirtualClock;
use buttress_format::{ByteCount, FileKind, FileOffset, Key, SubvolumeId, TreeId};
use buttress_fs::{Content, FileReader, Filesystem, Follow, Location, OpenOptions, WalkItem, WalkOptions};
use buttress_lab::Model;
use buttress_tree::{ReadAhead, Tree};
use buttress_volume::{ExtentRead, Rescue};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;

/// The largest number of blocks, items, entries and chunks of content for an input.
pub const STEPS_MAX: usize = 20_000;
/// The largest amount of content for an input, in bytes.
const CONTENT_BYTES_MAX: u64 = 32 << 20;

/// The target of a changed volume, opened and read.
pub fn image(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let volumes = seeds::volumes();
    let aims = &volumes[usize::from(input.byte()) % volumes.len()];
    let choices = input.byte();
    let overlays = mutation::apply(aims, &mut input);
    let count = overlays.len();
    // Simulated devices run everything on this thread, so that an input always gives the same run.
    let clock = VirtualClock::new();
    let mut devices: Vec<_> = overlays
        .into_iter()
        .map(|overlay| buttress_lab::simulated(Arc::new(overlay), &Model::Null, &clock))
        .collect();
    let missing = usize::from(choices >> 6);
    if count > 1 && missing > 0 {
        devices.remove(missing % count);
    }
    let options = OpenOptions::new(devices)
        .cache(ByteCount::new(2 << 20))
        .degraded(missing > 0)
        .rescue(Rescue {
            use_backup_root: choices & 1 != 0,
            ignore_bad_roots: choices & 2 != 0,
            ignore_data_checksums: choices & 4 != 0,
            no_log_replay: choices & 8 != 0,
        });
    match options.open() {
        Ok(filesystem) => {
            let reader = Reader {
                filesystem: &filesystem,
                read_ahead: if choices & 16 == 0 {
                    ReadAhead::sweep()
                } else {
                    ReadAhead::ForwardAlways
                },
                steps: Cell::new(0),
                content_bytes: Cell::new(0),
            };
            reader.read_all();
            Depth::Passed
        }
        Err(error) => {
            black_box((error.to_string(), error.kind(), error.errno()));
            Depth::Refused
        }
    }
}

/// Reads everything in the volume as far as possible.
pub fn read_all(filesystem: &Filesystem) {
    let reader = Reader {
        filesystem,
        read_ahead: ReadAhead::sweep(),
        steps: Cell::new(0),
        content_bytes: Cell::new(0),
    };
    reader.read_all();
}

struct Reader<'a> {
    filesystem: &'a Filesystem,
    read_ahead: ReadAhead,
    steps: Cell<usize>,
    content_bytes: Cell<u64>,
}

impl Reader<'_> {
    /// Counts a step of the target. Returns `false` after the last permitted step.
    fn step(&self) -> bool {
        self.steps.set(self.steps.get() + 1);
        self.steps.get() < STEPS_MAX
    }

    fn read_all(&self) {
        black_box(self.filesystem.notices().len());
        for tree in (1..=13).map(TreeId::new) {
            self.note(self.filesystem.root_item(tree));
            if let Some(tree) = self.note(self.filesystem.tree(tree)) {
                self.read_tree(&tree);
            }
        }
        self.note(self.filesystem.default_subvolume());
        if let Some(space) = self.note(self.filesystem.space()) {
            black_box((format!("{space:?}").len(), space.totals()));
            black_box(space.available());
        }
        let mut ids = vec![SubvolumeId::TOP_LEVEL];
        if let Some(found) = self.note(self.filesystem.subvolumes()) {
            ids.extend(found.iter().map(|subvolume| subvolume.id));
        }
        for id in ids {
            self.note(self.filesystem.subvolume_path(id));
            if let Some(tree) = self.note(self.filesystem.subvolume_tree(id)) {
                self.read_tree(&tree);
            }
            // The walk from the top also reads the content of nested subvolumes.
            let options = match id {
                SubvolumeId::TOP_LEVEL => WalkOptions::default(),
                _ => WalkOptions {
                    one_file_system: true,
                    ..WalkOptions::without_content()
                },
            };
            self.walk(Location::root_of(id), options);
        }
        self.read_chunks();
        black_box(self.filesystem.volume().faults().total());
    }

    /// Returns the value, or formats the error as a command would.
    fn note<T, E: std::fmt::Display>(&self, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                black_box(error.to_string());
                None
            }
        }
    }

    fn read_tree(&self, tree: &Tree) {
        for visit in tree.blocks(self.read_ahead) {
            self.note(visit);
            if !self.step() {
                return;
            }
        }
        let mut count = 0_usize;
        let mut previous: Option<Key> = None;
        for item in tree.range(.., ReadAhead::Forward) {
            if !self.step() {
                return;
            }
            let Some(item) = self.note(item) else { continue };
            assert!(
                previous.is_none_or(|previous| previous < item.key()),
                "keys do not rise"
            );
            previous = Some(item.key());
            count += 1;
        }
        let mut cursor = tree.cursor(ReadAhead::Backward);
        let mut backwards = 0_usize;
        let mut more = cursor.seek_last();
        while matches!(more, Ok(true)) && self.step() {
            backwards += 1;
            more = cursor.previous();
        }
        black_box((count, backwards));
    }

    fn walk(&self, start: Location, options: WalkOptions) {
        let mut sharing = self.filesystem.sharing();
        let with_content = options.read_ahead > ByteCount::ZERO;
        for item in self.filesystem.walk(start, options) {
            if !self.step() {
                return;
            }
            match item {
                WalkItem::Entry(mut entry) => {
                    let location = entry.location();
                    let path = entry.path();
                    black_box((entry.xattrs().len(), entry.metadata().attributes()));
                    self.note(self.filesystem.resolve(start, &path, Follow::All));
                    self.note(self.filesystem.inode_paths(location));
                    self.note(self.filesystem.metadata(location));
                    match entry.metadata().kind {
                        FileKind::Regular if with_content => {
                            self.note(sharing.file_space(&entry.record));
                            self.map_file(location);
                            if let Some(reader) = self.note(entry.reader()) {
                                self.read_file(reader);
                            }
                        }
                        FileKind::Symlink => {
                            self.note(entry.link_target());
                        }
                        FileKind::Directory => self.read_directory(location),
                        _ => {}
                    }
                }
                WalkItem::Failed(error) => {
                    black_box(error.to_string());
                }
                WalkItem::Enter(_) | WalkItem::Leave(_) => {}
            }
        }
    }

    /// Maps the extents of a file. The extents of a file must be in order and must end.
    fn map_file(&self, location: Location) {
        let Some(file) = self.note(self.filesystem.open_file(location)) else {
            return;
        };
        let whole = FileOffset::MIN..FileOffset::new(u64::MAX);
        let Some(map) = self.note(file.fiemap(whole)) else {
            return;
        };
        let mut position = FileOffset::MIN;
        for extent in map {
            let Some(extent) = self.note(extent) else { return };
            assert!(extent.offset >= position, "an extent begins in the one before it");
            position = extent.end();
            if !self.step() {
                return;
            }
        }
        self.note(file.seek_hole(FileOffset::MIN));
    }

    fn read_directory(&self, location: Location) {
        let Some(entries) = self.note(self.filesystem.read_dir(location)) else {
            return;
        };
        for entry in entries {
            if let Some(entry) = self.note(entry) {
                self.note(self.filesystem.lookup(location, &entry.name));
            }
            if !self.step() {
                return;
            }
        }
    }

    fn read_file(&self, mut reader: FileReader) {
        let file = reader.file().clone();
        let size = file.size().get();
        let mut position = 0;
        loop {
            let Some(chunk) = self.note(reader.next_chunk()) else {
                return;
            };
            let Some(chunk) = chunk else { break };
            assert_eq!(chunk.offset.get(), position, "content does not follow content");
            position += chunk.length.get();
            match chunk.content {
                Content::Data(bytes) => {
                    assert_eq!(
                        bytes.len() as u64,
                        chunk.length.get(),
                        "content of another length"
                    );
                    self.content_bytes
                        .set(self.content_bytes.get() + chunk.length.get());
                }
                Content::Hole => {}
                Content::Damaged(error) => {
                    black_box(error.to_string());
                }
            }
            if !self.step() || self.content_bytes.get() > CONTENT_BYTES_MAX {
                return;
            }
        }
        assert_eq!(position, size, "content ends elsewhere than the file");
        let mut buffer = [0; 5000];
        for offset in [0, size / 2, size.saturating_sub(1), size, u64::MAX] {
            self.note(file.read_at(FileOffset::new(offset), &mut buffer));
        }
    }

    fn read_chunks(&self) {
        let volume = self.filesystem.volume();
        for chunk in volume.chunk_map().chunks() {
            if !self.step() {
                return;
            }
            let start = chunk.start();
            if let Some(extent) = self.note(self.filesystem.extent_at(start)) {
                self.note(self.filesystem.extent_references(&extent));
            }
            if let Some(found) = self.note(self.filesystem.data_references(start, true)) {
                black_box(found.references.len());
            }
            self.note(self.filesystem.trees_of_block(start));
            self.note(volume.map(start, ByteCount::new(256 << 10)));
            for copy in 0..=self.note(volume.copies(start)).unwrap_or(0).min(8) {
                self.note(volume.read_copy(
                    ExtentRead {
                        logical: start,
                        length: 4096,
                    },
                    copy,
                ));
            }
        }
    }
}
