//! A volume of one chunk, whose devices stay accessible and can be made to fail.

use super::{CHUNK_AT, Image, UNIT, stripes_of, superblock_offset};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::Logical;
use buttress_format::block_group::Profile;
use buttress_format::device_item::DeviceItem;
use buttress_lab::FaultyBackend;
use buttress_volume::layout::{Content, StripeOffset};
use buttress_volume::{ExtentRead, ExtentWrite, OpenOptions, Volume};
use bytes::Bytes;
use std::sync::Arc;

/// The data length: several rows of each profile, and a last row that is not full.
pub const DATA_BYTES: usize = 9 * UNIT + 8192;

/// A volume of one chunk whose devices stay accessible.
pub struct Lab {
    pub image: Image,
    pub backends: Vec<Arc<FaultyBackend>>,
    pub memories: Vec<Arc<MemoryBackend>>,
    pub volume: Volume,
}

impl Lab {
    /// Makes a volume with all devices present and every stripe full of noise.
    pub fn new(profile: Profile, stripes: usize) -> Self {
        Self::without(profile, stripes, &[])
    }

    /// Makes a volume on devices that have space for a copy of the superblock.
    pub fn with_room_for_copies(profile: Profile, stripes: usize) -> Self {
        let mut image = Image::new(profile, stripes, DATA_BYTES);
        let bytes = superblock_offset(1) + (1 << 20);
        image
            .devices
            .iter_mut()
            .for_each(|device| device.resize(bytes, 0));
        Self::of(image, &[])
    }

    pub fn without(profile: Profile, stripes: usize, missing: &[usize]) -> Self {
        Self::of(Image::new(profile, stripes, DATA_BYTES), missing)
    }

    pub fn of(mut image: Image, missing: &[usize]) -> Self {
        if missing.is_empty() {
            (0..image.stripes).for_each(|stripe| image.spoil(stripe));
        }
        let memories: Vec<_> = image
            .devices
            .iter()
            .map(|bytes| Arc::new(MemoryBackend::new("memory", bytes.clone())))
            .collect();
        let backends: Vec<_> = memories
            .iter()
            .map(|memory| FaultyBackend::new(Arc::clone(memory) as Arc<dyn Backend>, 1))
            .collect();
        let devices = backends
            .iter()
            .enumerate()
            .filter(|(index, _)| !missing.contains(index));
        let devices = devices
            .map(|(_, backend)| {
                let backend = Arc::clone(backend) as Arc<dyn Backend>;
                Device::with_backend(backend, Engine::Threads)
            })
            .collect();
        let options = OpenOptions {
            degraded: true,
            ..OpenOptions::default()
        };
        let volume = Volume::open(devices, options).unwrap();
        for item in items(&image) {
            volume.add_device(item).unwrap();
        }
        volume.add_chunk(Logical::new(CHUNK_AT), image.chunk()).unwrap();
        volume.finish_bootstrap().unwrap();
        Self {
            image,
            backends,
            memories,
            volume,
        }
    }

    pub fn snapshot(&self) -> Image {
        let mut image = self.image.clone();
        image.devices = self.memories.iter().map(|memory| memory.snapshot()).collect();
        image
    }

    /// Compares data and parity on all stripes with those that an independent writer computes from
    /// `model`. A last row without data is not written.
    pub fn require_stripes(&self, model: &[u8]) {
        let image = self.snapshot();
        let layout = *self
            .volume
            .chunk_map()
            .find(Logical::new(CHUNK_AT))
            .unwrap()
            .layout();
        let columns = layout.data_columns();
        for (stripe, expected) in stripes_of(image.profile, image.stripes, model).iter().enumerate() {
            let found = &image.devices[image.device_of(stripe)][image.stripe_range(stripe)];
            for sector in (0..expected.len()).step_by(4096) {
                let used = match layout.content(stripe, StripeOffset::new(sector as u64)) {
                    Some(Content::Data(_)) => true,
                    Some(Content::Unused) | None => false,
                    Some(Content::P { row } | Content::Q { row }) => {
                        usize::try_from(row).unwrap() * columns * UNIT + sector % UNIT < DATA_BYTES
                    }
                };
                let range = sector..sector + 4096;
                assert!(
                    !used || found[range.clone()] == expected[range],
                    "{:?}, stripe {stripe} of {} at {sector}",
                    image.profile,
                    image.stripes
                );
            }
        }
    }
}

pub fn items(image: &Image) -> Vec<DeviceItem> {
    let count = image.devices.len() as u64;
    (1..=count)
        .map(|id| Image::superblock(id, count).item())
        .collect()
}

pub fn extent(at: usize, bytes: &[u8]) -> ExtentWrite {
    ExtentWrite {
        logical: Logical::new(CHUNK_AT + at as u64),
        bytes: Bytes::copy_from_slice(bytes),
    }
}

pub fn read_all(volume: &Volume) -> Vec<u8> {
    let read = ExtentRead {
        logical: Logical::new(CHUNK_AT),
        length: DATA_BYTES,
    };
    let (bytes, lost) = volume.read_data(read, &|_, _| ()).unwrap();
    assert!(lost.is_empty());
    bytes.to_vec()
}

pub fn subsets(count: usize, size: usize) -> Vec<Vec<usize>> {
    (0u32..1 << count)
        .map(|bits| {
            (0..count)
                .filter(|index| bits >> index & 1 == 1)
                .collect::<Vec<_>>()
        })
        .filter(|set| set.len() <= size)
        .collect()
}
