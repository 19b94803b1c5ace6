//! The target of receiving: a repaired stream, received into a volume that has the parents of
//! streams.
//!
//! An input is a byte of choices (the treatment of encoded data, whether impossible commands are
//! left out, whether the receive keeps partial results) and the stream. The volume holds the
//! results of the kernel's own full streams, is in memory, and is checked afterwards.
//!
//! The target requires, for any stream:
//!
//! - An error is no defect of the program, and leaves the former content: the same names with the
//!   same content, and nothing of the stream.
//! - After an error as after success, the check finds nothing wrong with the volume.

use crate::Depth;
use crate::input::Input;
use crate::logs;
use crate::seed_volume::{Overlay, SeedDevice};
use crate::streams::{mend, samples};
use buttress_check::{Options as CheckOptions, check};
use buttress_device::overlay::VolatileOverlay;
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, Key, SubvolumeId};
use buttress_fs::{Filesystem, Location, OpenOptions, Progress};
use buttress_mkfs as mkfs;
use buttress_stream::Streams;
use buttress_stream::receive::{Options, receive};
use buttress_tree::ReadAhead;
use buttress_writer::WritableFilesystem;
use buttress_writer::operations::NewInode;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::sync::{Arc, OnceLock};

/// The size of the volume, in bytes.
const VOLUME_BYTES: usize = 128 << 20;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Returns a volume that has received the receivable streams of the repository, and a directory to
/// receive into.
fn base() -> &'static (Arc<SeedDevice>, Location) {
    static BASE: OnceLock<(Arc<SeedDevice>, Location)> = OnceLock::new();
    BASE.get_or_init(|| {
        let bytes = Arc::new(MemoryBackend::new("base", vec![0; VOLUME_BYTES]));
        let device = || Device::with_backend(Arc::clone(&bytes) as Arc<dyn Backend>, Engine::Inline);
        mkfs::make(&[device()], &mkfs::Options::default(), &logs::identity()).expect("a volume can be made");
        let filesystem = OpenOptions::new(vec![device()]).open().expect("it can be opened");
        let filesystem = WritableFilesystem::new(filesystem, logs::options()).expect("and for writing");
        let received = samples().iter().fold(0, |received, stream| {
            let result = receive(
                &filesystem,
                TOP,
                stream.as_slice(),
                &Options::default(),
                &mut |_| {},
            );
            received + u32::from(result.is_ok_and(|summary| !summary.subvolumes.is_empty()))
        });
        assert!(received > 1, "{received} committed streams can be received");
        let target = filesystem.make_directory(TOP, b"target", &NewInode::of_root(0o700));
        let target = target.expect("a directory can be made");
        let dropped = filesystem.subvolumes().drop_deleted(&Progress::new());
        dropped.expect("what was given up goes");
        filesystem.close().expect("it can be committed");
        let device = SeedDevice::of_image(bytes.snapshot().as_slice());
        (Arc::new(device.expect("memory can be read")), target)
    })
}

/// The target of a received stream.
pub fn receiving(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let choices = input.byte();
    let stream = mend(input.rest());
    let (base, target) = base();
    let below: Arc<dyn Backend> = Arc::new(Overlay::new("base".to_owned(), Arc::clone(base)));
    let kept = vec![Arc::new(VolatileOverlay::new(below))];
    let open = || logs::open(&kept).expect("the volume can be opened");
    let before = listed(&open(), *target);
    let writable = WritableFilesystem::new(open(), logs::options()).expect("and for writing");
    let options = Options {
        streams: Streams::First,
        force_decompress: choices & 1 != 0,
        errors_max: u64::from(choices & 2 == 0),
        keep_every: (choices & 4 != 0).then_some(ByteCount::new(512)),
        ..Options::default()
    };
    let received = receive(&writable, *target, stream.as_slice(), &options, &mut |event| {
        black_box(format!("{event:?}"));
    });
    let commands = writable.subvolumes().drop_deleted(&Progress::new()).map(|()| {
        let result = received.as_ref().map(|summary| summary.commands);
        result.map_err(|error| error.to_string())
    });
    let commands = commands.expect("what was given up goes");
    writable.close().expect("the volume can be committed");
    let after = open();
    match &commands {
        Ok(_) => {}
        Err(text) => {
            assert!(!text.contains("defect"), "a stream has the program fail: {text}");
            let left = listed(&after, *target);
            let is_kept = options.keep_every.is_some();
            assert!(
                left == before || is_kept && before.iter().all(|name| left.contains(name)),
                "{text}"
            );
        }
    }
    let report = check(&after, &CheckOptions::default(), &Progress::new()).expect("it can be checked");
    let found: Vec<_> = report.findings.iter().map(|found| &found.finding).collect();
    assert!(found.is_empty(), "after {commands:?}: {found:#?}");
    Depth::passed(commands.is_ok_and(|commands| commands > 2))
}

/// Lists the names at the top and in the receiving directory, and each subvolume with all items of
/// its tree.
fn listed(filesystem: &Filesystem, target: Location) -> Vec<String> {
    let names = [TOP, target].into_iter().flat_map(|directory| {
        let entries = filesystem.read_dir(directory).expect("a directory can be listed");
        entries.map(|entry| format!("{:?}", entry.expect("an entry can be read")))
    });
    let subvolumes = filesystem.subvolumes().expect("subvolumes can be listed");
    let subvolumes = subvolumes.iter().map(|subvolume| subvolume.id);
    let contents = subvolumes.filter(|id| *id != SubvolumeId::TOP_LEVEL).map(|id| {
        let tree = filesystem.subvolume_tree(id).expect("a tree can be opened");
        let mut hasher = DefaultHasher::new();
        for item in tree.range(Key::MIN..=Key::MAX, ReadAhead::None) {
            let item = item.expect("an item can be read");
            (format!("{:?}", item.key()), item.data()).hash(&mut hasher);
        }
        format!("{id:?}: {:x}", hasher.finish())
    });
    names.chain(contents).collect()
}
