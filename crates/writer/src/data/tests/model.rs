//! Random operations on some files, compared with byte vectors.

use super::*;
use crate::data::{AllocateMode, DefragmentCompression, DefragmentOptions};
use crate::operations::SetXattr;
use buttress_format::Compression;
use buttress_format::compression::CompressionMethod;
use buttress_fs::inode::FileAttributes;
use buttress_fs::progress::Progress;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use std::os::unix::fs::FileExt;

const FILES: usize = 6;

struct Run {
    image: Image,
    filesystem: WritableFilesystem,
    files: Vec<(Location, Vec<u8>)>,
    random: Random,
    /// Whether files may have preallocated extents after the end of their content.
    room_behind_end: bool,
    steps: usize,
}

impl Run {
    fn new(seed: u64, mkfs: &[&str], options: DataOptions) -> Option<Self> {
        let image = Image::make(mkfs)?;
        let filesystem = open(&image, options);
        let files = (0..FILES)
            .map(|number| {
                let file = filesystem
                    .create(ROOT, format!("file{number}").as_bytes(), &NEW)
                    .unwrap();
                match number {
                    1 => filesystem.set_flags(file, FileAttributes::NOCOW).unwrap(),
                    2 => filesystem
                        .set_xattr(file, b"btrfs.compression", b"zstd", SetXattr::default())
                        .unwrap(),
                    _ => {}
                }
                (file, Vec::new())
            })
            .collect();
        Some(Self {
            image,
            filesystem,
            files,
            random: Random(seed),
            room_behind_end: true,
            steps: 0,
        })
    }

    fn place(&mut self, number: usize) -> (u64, u64) {
        let size = self.files[number].1.len() as u64;
        let bound = [100, 5000, 40_000, 400_000][self.random.below(4) as usize];
        let length = 1 + self.random.below(bound);
        let at = self.random.below((size + 20_000).min(700_000));
        if self.random.below(2) == 0 {
            (at & !4095, length.next_multiple_of(4096))
        } else {
            (at, length)
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(11) {
            self.defragment();
        }
        let number = self.random.below(FILES as u64) as usize;
        let (at, length) = self.place(number);
        let range = offset(at)..offset(at + length);
        let file = self.files[number].0;
        let filesystem = self.filesystem.clone();
        let bytes = self.random.bytes(length as usize);
        let model = &mut self.files[number].1;
        let end = (at + length) as usize;
        let grow = |model: &mut Vec<u8>, end: usize| model.resize(model.len().max(end), 0);
        let zero = |model: &mut Vec<u8>| {
            let end = end.min(model.len());
            if (at as usize) < end {
                model[at as usize..end].fill(0);
            }
        };
        match self.random.below(100) {
            0..=34 => {
                filesystem.write_at(file, offset(at), &bytes).unwrap();
                grow(model, end);
                model[at as usize..end].copy_from_slice(&bytes);
            }
            35..=44 => {
                filesystem.append(file, &bytes).unwrap();
                model.extend_from_slice(&bytes);
            }
            45..=52 => {
                let size = self.random.below(model.len() as u64 + 5000);
                let size = if self.random.below(4) == 0 {
                    size % 3000
                } else {
                    size
                };
                filesystem.truncate(file, ByteCount::new(size)).unwrap();
                model.resize(size as usize, 0);
            }
            53..=59 => {
                filesystem.allocate(file, range, AllocateMode::PunchHole).unwrap();
                zero(model);
            }
            60..=63 => {
                filesystem.allocate(file, range, AllocateMode::ZeroRange).unwrap();
                grow(model, end);
                zero(model);
            }
            64..=65 | 70..=71 if !self.room_behind_end => {}
            64..=65 => {
                filesystem
                    .allocate(file, range, AllocateMode::ZeroRangeKeepSize)
                    .unwrap();
                zero(model);
            }
            66..=69 => {
                filesystem.allocate(file, range, AllocateMode::Allocate).unwrap();
                grow(model, end);
            }
            70..=71 => filesystem
                .allocate(file, range, AllocateMode::AllocateKeepSize)
                .unwrap(),
            72..=83 => self.share(number),
            84..=90 => {
                let mut found = vec![0xee; length as usize];
                let count = filesystem.live().read_at(file, offset(at), &mut found).unwrap();
                let expected = model.get(at as usize..end.min(model.len())).unwrap_or_default();
                assert_eq!(&found[..count], expected);
            }
            91..=94 => filesystem.writeback().write_file(file).unwrap(),
            95..=96 => {
                filesystem.commit().unwrap();
            }
            _ => self.compare(),
        }
    }

    /// Defragments a file, which changes no content. Draws no random number.
    fn defragment(&self) {
        let turn = self.steps / 11;
        let method = CompressionMethod::new([Compression::Zstd, Compression::Lzo][turn % 2]);
        let compression = match turn % 5 {
            0 => DefragmentCompression::With(method),
            1 => DefragmentCompression::Never,
            _ => DefragmentCompression::Keep,
        };
        let options = DefragmentOptions {
            compression,
            keeps_sharing: turn % 5 == 2,
            step: ByteCount::new([4096, 65_536, 32 << 20][turn % 3]),
            ..DefragmentOptions::default()
        };
        let file = self.files[turn % FILES].0;
        self.filesystem
            .defragment(file, &options, &Progress::new())
            .unwrap();
    }

    /// Shares or copies a range of one file into another.
    fn share(&mut self, target: usize) {
        let source = self.random.below(FILES as u64) as usize;
        let from_size = self.files[source].1.len() as u64;
        let at = self.random.below(from_size + 1) & !4095;
        let length = self.random.below(from_size - at.min(from_size) + 1) & !4095;
        let length = if self.random.below(3) == 0 {
            from_size - at
        } else {
            length
        };
        let to = self.random.below(self.files[target].1.len() as u64 + 9000) & !4095;
        let (from_file, to_file) = (self.files[source].0, self.files[target].0);
        let range = offset(at)..offset(at + length);
        let piece = self.files[source].1[at as usize..(at + length) as usize].to_vec();
        let how = self.random.below(4);
        let done = match how {
            0 | 1 => self
                .filesystem
                .clone_range(from_file, range, to_file, offset(to))
                .is_ok(),
            2 => {
                let result = self.filesystem.copy_range(from_file, range, to_file, offset(to));
                assert!(result.as_ref().map_or(true, |count| count.get() == length));
                result.is_ok()
            }
            _ => {
                let model = &self.files[target].1;
                let same = model.get(to as usize..(to + length) as usize) == Some(&piece);
                if let Ok(answer) = self
                    .filesystem
                    .dedupe_range(from_file, range, to_file, offset(to))
                {
                    assert_eq!(answer, same);
                }
                false
            }
        };
        let model = &mut self.files[target].1;
        if done && length > 0 {
            let end = (to + length) as usize;
            model.resize(model.len().max(end), 0);
            model[to as usize..end].copy_from_slice(&piece);
        }
    }

    #[track_caller]
    fn compare(&self) {
        for (number, (file, model)) in self.files.iter().enumerate() {
            let found = content(&self.filesystem, *file);
            assert_eq!(found.len(), model.len(), "size of file {number}");
            let first = found.iter().zip(model).position(|(one, other)| one != other);
            assert_eq!(first, None, "file {number}");
        }
    }

    /// Checks that the devices hold the expected content, by this crate and by btrfs-progs.
    fn check(&self) {
        self.filesystem.commit().unwrap();
        self.image.check();
        let copy = self.image.copy();
        let reopened = copy.open();
        for (file, model) in &self.files {
            assert!(written(&reopened, *file) == *model);
        }
    }
}

fn run(seed: u64, mkfs: &[&str], options: DataOptions, steps: usize) {
    let Some(mut run) = Run::new(seed, mkfs, options) else {
        return;
    };
    for step in 0..steps {
        run.step();
        if step % 150 == 149 {
            run.compare();
            run.check();
        }
    }
    run.compare();
    run.check();
}

fn compressing(compression: Compression, force: bool) -> DataOptions {
    DataOptions {
        compression: Some(CompressionMethod::new(compression)),
        compress_force: force,
        ..small_memory()
    }
}

#[test]
fn files_agree_with_byte_vectors() {
    for seed in buttress_oracle::seeds::seeds("writer::data::model", "BUTTRESS_SEED", &Vec::from_iter(0..2)) {
        run(seed, &[], small_memory(), 600);
    }
}

#[test]
fn files_of_volumes_with_items_for_holes_agree() {
    run(
        buttress_oracle::seeds::seed("writer::data::model::holes", "BUTTRESS_SEED", 10),
        &["-O", "^no-holes"],
        small_memory(),
        600,
    );
}

#[test]
fn compressed_files_agree() {
    run(20, &[], compressing(Compression::Zstd, false), 400);
    run(
        21,
        &["--csum", "xxhash"],
        compressing(Compression::Zlib, true),
        300,
    );
    run(
        22,
        &["-O", "^no-holes"],
        compressing(Compression::Lzo, false),
        300,
    );
}

#[test]
fn files_of_mixed_volumes_with_small_nodes_agree() {
    run(30, &["-M", "-n", "4096"], small_memory(), 300);
}

/// The kernel reads files written here and changes them; this crate then reads and changes them
/// again.
#[test]
fn files_go_to_the_kernel_and_come_back() {
    let rounds: [(&[&str], DataOptions); 2] = [
        (&[], small_memory()),
        (&["-O", "^no-holes"], compressing(Compression::Zstd, false)),
    ];
    for (seed, (mkfs, options)) in rounds.into_iter().enumerate() {
        let Some(mut run) = Run::new(seed as u64 + 50, mkfs, options) else {
            return;
        };
        // On volumes with items for holes, Linux 6.18 loses the size of a file that grows into
        // preallocated extents after its end, if the volume was mounted in between. `fallocate -n`,
        // a new mount and a write after the end of the file suffice.
        run.room_behind_end = mkfs.is_empty();
        for _ in 0..3 {
            for _ in 0..120 {
                run.step();
            }
            run.check();
            let Some(next) = run.through_the_kernel(options) else {
                return;
            };
            run = next;
            run.compare();
        }
        run.check();
    }
}

impl Run {
    /// Lets the kernel compare all files and change some. Returns `None` if no kernel can mount the
    /// volume.
    fn through_the_kernel(self, options: DataOptions) -> Option<Self> {
        let Self {
            image,
            filesystem,
            mut files,
            mut random,
            room_behind_end,
            steps,
        } = self;
        drop(filesystem);
        if skips(kernel_missing()) {
            return None;
        }
        let mount = Mount::new(std::slice::from_ref(&image.path), "compress=zstd").unwrap();
        for (number, (_, model)) in files.iter_mut().enumerate() {
            let path = mount.path().join(format!("file{number}"));
            assert!(std::fs::read(&path).unwrap() == *model, "file {number}");
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            for _ in 0..6 {
                let at = random.below(model.len() as u64 + 10_000);
                let length = random.below(30_000) as usize;
                let bytes = random.bytes(length);
                if random.below(4) == 0 {
                    file.set_len(at).unwrap();
                    model.resize(at as usize, 0);
                } else {
                    file.write_all_at(&bytes, at).unwrap();
                    let end = at as usize + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
            }
        }
        drop(mount);
        let filesystem = open(&image, options);
        Some(Self {
            image,
            filesystem,
            files,
            random,
            room_behind_end,
            steps,
        })
    }
}
