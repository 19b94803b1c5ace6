//! Random damage: the reader returns errors, never panics, and ends.

use crate::fill::{Abilities, fill};
use crate::mount::{Image, Mounted, NEEDS};
use anyhow::{Result, ensure};
use buttress_device::Device;
use buttress_extfs::{Ext, ExtError, FileKind};
use buttress_oracle::content::Random;
use buttress_oracle::needs::any_missing;
use buttress_oracle::seeds::budget;
use buttress_oracle::skip::skips;

/// Reads everything, and counts structures and errors.
fn read_all(volume: &Ext) -> (u64, u64) {
    let (mut good, mut bad) = (0, 0);
    let mut count = |is_good: bool| if is_good { good += 1 } else { bad += 1 };
    volume.used_blocks().for_each(|range| count(range.is_ok()));
    for inode in volume.inodes() {
        count(inode.is_ok());
        let Ok(inode) = inode else { continue };
        volume.extents(&inode).for_each(|extent| count(extent.is_ok()));
        count(volume.attributes(&inode).is_ok());
        match inode.kind {
            FileKind::Directory => match volume.entries(&inode) {
                Ok(entries) => entries.for_each(|entry| count(entry.is_ok())),
                Err(_) => count(false),
            },
            FileKind::Symlink => count(volume.link_target(&inode).is_ok()),
            FileKind::Regular => {
                let content = volume.content(&inode, 8 << 20);
                count(matches!(content, Ok(_) | Err(ExtError::TooLarge { .. })));
            }
            _ => {}
        }
    }
    (good, bad)
}

/// Damages the metadata of an image many times, and reads it each time.
fn damage(options: &[&str], abilities: Abilities, rounds: u64) -> Result<(u64, u64)> {
    let image = Image::new(48, options)?;
    let mounted = Mounted::new(&image.path, "rw")?;
    fill(mounted.path(), abilities)?;
    mounted.close()?;
    let bytes = std::fs::read(&image.path)?;
    let volume = Ext::open(&Device::memory(bytes.clone()))?;
    let (_, bad) = read_all(&volume);
    ensure!(bad == 0, "{bad} errors without damage");
    // Places of metadata: the blocks that a reader reads to enumerate the volume.
    let block_bytes = u64::from(volume.superblock().block_bytes);
    let mut places = vec![0, 1];
    for group in volume.groups() {
        let group = group?;
        places.extend([group.block_bitmap.get(), group.inode_bitmap.get()]);
        places.extend(
            group.inode_table.start.get()..group.inode_table.end.get().min(group.inode_table.start.get() + 8),
        );
    }
    for inode in volume.inodes() {
        let inode = inode?;
        if inode.kind == FileKind::Directory {
            places.extend(
                volume
                    .extents(&inode)
                    .filter_map(Result::ok)
                    .map(|extent| extent.start.get()),
            );
        }
        places.extend(inode.attribute_block.map(|block| block.get()));
    }
    let (mut refused, mut errors) = (0, 0);
    let device = Device::memory(bytes);
    let backend = device.backend();
    let mut random = Random::new(rounds);
    for _ in 0..rounds {
        let mut undo = Vec::new();
        for _ in 0..1 + random.below(6) {
            let place =
                places[random.below(places.len() as u64) as usize] * block_bytes + random.below(block_bytes);
            undo.push((place, device.read(place, 1)?[0]));
            let value = [random.number() as u8, 0, 0xff, 1 << random.below(8)][random.below(4) as usize];
            backend.write_at(place, &[value])?;
        }
        match Ext::open(&device) {
            Ok(volume) => errors += u64::from(read_all(&volume).1 > 0),
            Err(error) => {
                ensure!(!error.to_string().is_empty());
                refused += 1;
            }
        }
        for (place, byte) in undo.into_iter().rev() {
            backend.write_at(place, &[byte])?;
        }
    }
    Ok((refused, errors))
}

#[test]
fn random_damage_gives_errors() -> Result<()> {
    if skips(any_missing(&NEEDS)) {
        return Ok(());
    }
    let rounds = budget("BUTTRESS_EXTFS_DAMAGE_ROUNDS", 40, 2000);
    let plain = Abilities::default();
    // Without checksums most damage reaches the parsers. With checksums it is found.
    let (refused, errors) = damage(&["-t", "ext2", "-b", "4096"], plain, rounds)?;
    ensure!(
        10 * (refused + errors) > rounds,
        "{refused} refused, {errors} with errors"
    );
    let features = "^metadata_csum,^has_journal,inline_data,ea_inode";
    let large = Abilities {
        unwritten: true,
        large_values: true,
        large_times: true,
    };
    let (refused, errors) = damage(&["-t", "ext4", "-b", "4096", "-O", features], large, rounds)?;
    ensure!(
        10 * (refused + errors) > rounds,
        "{refused} refused, {errors} with errors"
    );
    let (refused, errors) = damage(&["-t", "ext4", "-b", "4096", "-O", "^has_journal"], plain, rounds)?;
    ensure!(
        3 * (refused + errors) > 2 * rounds,
        "{refused} refused, {errors} with errors"
    );
    Ok(())
}
