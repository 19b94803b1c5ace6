//! Volumes whose saved image is not as the conversion left it: the roll back refuses them unchanged.

use crate::mount::{Image, Mounted};
use crate::{back, device, options};
use anyhow::{Context, Result, ensure};
use buttress_convert::{Error, Options, prepare};
use buttress_device::Device;
use buttress_extfs::{Ext, FileKind};
use buttress_fs::Progress;
use buttress_mkfs::{Feature, Identity, Options as MakeOptions};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, run};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Requires that the roll back refuses a volume for `reason`, and changes nothing.
fn refused(image: &Path, device: &Device, reason: &str) -> Result<()> {
    let before = std::fs::read(image)?;
    let error = back(device).err().map(|error| error.to_string());
    ensure!(
        error.as_ref().is_some_and(|error| error.contains(reason)),
        "{error:?}, expected {reason}"
    );
    ensure!(
        before == std::fs::read(image)?,
        "a refused roll back changed the device"
    );
    Ok(())
}

fn set_read_only(subvolume: &Path, value: &str) -> Result<()> {
    let words = ["property", "set", "-f", "-ts"];
    run(Command::new("btrfs")
        .args(words)
        .arg(subvolume)
        .args(["ro", value]))?;
    Ok(())
}

#[test]
fn a_changed_image_is_refused() -> Result<()> {
    if skips(kernel_missing()) {
        return Ok(());
    }
    let image = Image::new(128, &["-t", "ext4", "-b", "4096", "-O", "^has_journal"])?;
    prepare(&device(&image)?, &options(20), &Progress::new())?.publish()?;
    let volume = Mount::new(std::slice::from_ref(&image.path), "rw")?;
    let saved = volume.path().join("ext2_saved");
    set_read_only(&saved, "false")?;
    volume.close()?;
    refused(&image.path, &device(&image)?, "is not read-only")?;
    let volume = Mount::new(std::slice::from_ref(&image.path), "rw")?;
    let saved = volume.path().join("ext2_saved");
    let file = File::options().write(true).open(saved.join("image"))?;
    let size = file.metadata()?.len();
    file.set_len(size / 2)?;
    file.set_len(size)?;
    drop(file);
    set_read_only(&saved, "true")?;
    volume.close()?;
    refused(&image.path, &device(&image)?, "was changed after the conversion")
}

#[test]
fn an_ordinary_volume_is_refused() -> Result<()> {
    if skips(kernel_missing()) {
        return Ok(());
    }
    let folder = buttress_oracle::volumes::scratch()?;
    let path = folder.path().join("image");
    File::create(&path)?.set_len(128 << 20)?;
    let identity = Identity {
        devices: vec![options(21).saved],
        ..options(21).identity
    };
    let open = buttress_device::OpenOptions {
        write: true,
        ..Default::default()
    };
    buttress_mkfs::make(&[Device::open(&path, &open)?], &MakeOptions::default(), &identity)?;
    let problems = [
        "subvolume 256 does not exist",
        "is not read-only",
        "is another file",
    ];
    refused(&path, &Device::open(&path, &open)?, problems[0])?;
    let volume = Mount::new(std::slice::from_ref(&path), "rw")?;
    let subvolume = volume.path().join("subvolume");
    run(Command::new("btrfs")
        .args(["subvolume", "create"])
        .arg(&subvolume))?;
    // An empty file once passed for a saved image.
    File::create(subvolume.join("image"))?;
    volume.close()?;
    refused(&path, &Device::open(&path, &open)?, problems[1])?;
    let volume = Mount::new(std::slice::from_ref(&path), "rw")?;
    set_read_only(&volume.path().join("subvolume"), "true")?;
    volume.close()?;
    refused(&path, &Device::open(&path, &open)?, problems[2])
}

/// Returns a block of each kind that inodes have: content, a directory's, a tree's, attributes.
fn blocks(image: &Path) -> Result<Vec<(&'static str, u32, u64)>> {
    let old = Ext::open(&Device::memory(std::fs::read(image)?))?;
    let mut blocks = BTreeMap::new();
    for inode in old.inodes() {
        let inode = inode?;
        if old.superblock().is_internal(inode.number) {
            continue;
        }
        let mut extents = old.extents(&inode);
        let all = extents.by_ref().collect::<Result<Vec<_>, _>>()?;
        let kind = if inode.kind == FileKind::Directory {
            "directory"
        } else {
            "content"
        };
        let found = [
            (kind, all.last().map(|extent| extent.start)),
            ("tree", extents.take_map_blocks().pop()),
            ("attributes", inode.attribute_block),
        ];
        for (kind, block) in found {
            block.map(|block| blocks.insert(kind, (inode.number.get(), block.get())));
        }
    }
    Ok(blocks
        .into_iter()
        .map(|(kind, (inode, block))| (kind, inode, block))
        .collect())
}

#[test]
fn a_block_that_is_free_by_mistake_is_refused() -> Result<()> {
    if skips(kernel_missing()) {
        return Ok(());
    }
    let image = Image::new(
        96,
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal", "-I", "128"],
    )?;
    let mounted = Mounted::new(&image.path, "rw")?;
    let file = File::create(mounted.path().join("file"))?;
    for piece in 0..50 {
        file.write_all_at(&[piece; 4096], u64::from(piece) * 40_960)?;
    }
    drop(file);
    std::fs::create_dir(mounted.path().join("directory"))?;
    let set = Command::new("setfattr")
        .args(["-n", "user.name", "-v", "value"])
        .arg(mounted.path().join("directory"))
        .status()?;
    ensure!(set.success(), "no attribute was set");
    mounted.close()?;
    let whole = std::fs::read(&image.path)?;
    let blocks = blocks(&image.path)?;
    ensure!(blocks.len() == 4, "{blocks:?}");
    let old = Ext::open(&Device::memory(whole.clone()))?;
    let group = old.groups().next().context("no group")??;
    let free = group.free_blocks;
    let table = group.inode_table.start.get() + 1;
    let metadata = [
        ("descriptors", None, group.blocks.start.get() + 1),
        ("block bitmap", None, group.block_bitmap.get()),
        ("inode bitmap", None, group.inode_bitmap.get()),
        ("inode table", None, table),
    ];
    let of_inodes = blocks
        .into_iter()
        .map(|(kind, inode, block)| (kind, Some(inode), block));
    let script = image.path.with_extension("debugfs");
    for (kind, inode, block) in of_inodes.chain(metadata) {
        std::fs::write(&image.path, &whole)?;
        let commands = format!(
            "freeb {block}\nset_bg 0 free_blocks_count {}\nset_bg 0 checksum calc\n",
            free + 1
        );
        std::fs::write(&script, commands)?;
        run(Command::new("debugfs")
            .args(["-w", "-f"])
            .args([&script, &image.path]))?;
        let before = std::fs::read(&image.path)?;
        let error = prepare(&device(&image)?, &options(22), &Progress::new()).err();
        let found = match &error {
            Some(Error::FreeBlock { inode, physical }) => Some((Some(*inode), *physical)),
            Some(Error::FreeMetadata { group: 0, physical }) => Some((None, *physical)),
            _ => None,
        };
        ensure!(
            found == Some((inode, block * 4096)),
            "{kind}: {error:?}, expected inode {inode:?}, block {block}"
        );
        ensure!(
            before == std::fs::read(&image.path)?,
            "{kind}: the device has changed"
        );
    }
    Ok(())
}

#[test]
fn settings_that_a_converted_volume_cannot_have_are_refused() -> Result<()> {
    let refused = [
        MakeOptions {
            data: Some(buttress_format::Profile::Raid0),
            ..MakeOptions::default()
        },
        MakeOptions {
            features: vec![(Feature::Quotas, true)],
            ..MakeOptions::default()
        },
        MakeOptions {
            features: vec![(Feature::NoHoles, false)],
            ..MakeOptions::default()
        },
    ];
    for make in refused {
        let options = Options { make, ..options(23) };
        let error = prepare(&Device::memory(vec![0; 1 << 20]), &options, &Progress::new()).err();
        ensure!(matches!(error, Some(Error::Setting { .. })), "{error:?}");
    }
    Ok(())
}

#[test]
fn the_error_names_the_reason() {
    let problem = "subvolume 256 does not exist";
    let text = Error::NoSavedImage { problem }.to_string();
    assert!(text.ends_with(problem), "{text}");
}
