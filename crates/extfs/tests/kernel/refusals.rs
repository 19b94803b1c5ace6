//! Features and states that the reader refuses by name.

use crate::mount::{Image, Mounted, NEEDS};
use anyhow::{Result, ensure};
use buttress_device::Device;
use buttress_extfs::{BlockNumber, Ext, ExtError, InodeNumber, Refusal};
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::run;
use std::process::Command;

fn refusal(image: &Image) -> Result<Refusal> {
    match Ext::open(&image.device()?) {
        Ok(_) => anyhow::bail!("the volume opened"),
        Err(ExtError::Refused(refusal)) => Ok(refusal),
        Err(error) => Err(error.into()),
    }
}

fn debugfs(image: &Image, request: &str) -> Result<()> {
    run(Command::new("debugfs")
        .args(["-w", "-R", request])
        .arg(&image.path))?;
    Ok(())
}

#[test]
fn refused_features_are_named() -> Result<()> {
    if skips(any_missing(&["mkfs.ext4"])) {
        return Ok(());
    }
    for (feature, name) in [
        ("bigalloc", "bigalloc"),
        ("casefold", "casefold"),
        ("encrypt", "encrypt"),
        ("verity", "verity"),
    ] {
        let image = Image::new(32, &["-t", "ext4", "-b", "4096", "-O", feature])?;
        let refusal = refusal(&image)?;
        let Refusal::Features { names } = &refusal else {
            anyhow::bail!("{feature}: {refusal}");
        };
        let known: Vec<_> = names
            .iter()
            .filter_map(|refused| refused.known)
            .map(|(name, _)| name)
            .collect();
        ensure!(known == [name], "{feature}: {refusal}");
        ensure!(refusal.to_string().contains(name), "{refusal}");
    }
    let image = Image::new(16, &["-t", "ext4", "-b", "1024"])?;
    ensure!(refusal(&image)? == Refusal::BlockSize { bytes: 1024 });
    Ok(())
}

#[test]
fn states_that_need_repair_are_refused() -> Result<()> {
    if skips(any_missing(&["mkfs.ext4"])) {
        return Ok(());
    }
    let first = InodeNumber::new(12);
    let cases = [
        ("set_super_value state 3", Refusal::Errors),
        ("set_super_value state 0", Refusal::NotClean),
        ("set_super_value last_orphan 12", Refusal::Orphans { first }),
        ("set_super_value journal_dev 17", Refusal::ExternalJournal),
    ];
    for (request, expected) in cases {
        let image = Image::new(32, &["-t", "ext4", "-b", "4096"])?;
        debugfs(&image, request)?;
        let refusal = refusal(&image)?;
        ensure!(refusal == expected, "{request}: {refusal}");
    }
    Ok(())
}

#[test]
fn a_journal_in_use_is_refused() -> Result<()> {
    if skips(any_missing(&NEEDS)) {
        return Ok(());
    }
    let image = Image::new(32, &["-t", "ext4", "-b", "4096"])?;
    let mounted = Mounted::new(&image.path, "rw")?;
    std::fs::write(mounted.path().join("file"), "content")?;
    run(Command::new("sync").arg("-f").arg(mounted.path()))?;
    // The reader sees the image while the kernel has it mounted.
    let bytes = std::fs::read(&image.path)?;
    mounted.close()?;
    let Err(ExtError::Refused(refusal)) = Ext::open(&Device::memory(bytes)) else {
        anyhow::bail!("the mounted volume opened");
    };
    ensure!(refusal.to_string().contains("needs_recovery"), "{refusal}");
    Ok(())
}

#[test]
fn mount_protection_in_use_is_refused() -> Result<()> {
    if skips(any_missing(&["mkfs.ext4"])) {
        return Ok(());
    }
    let image = Image::new(32, &["-t", "ext4", "-b", "4096", "-O", "mmp,^metadata_csum"])?;
    let mut bytes = std::fs::read(&image.path)?;
    Ext::open(&Device::memory(bytes.clone()))?;
    let block = u64::from_le_bytes(bytes[1024 + 0x168..][..8].try_into()?);
    let at = block as usize * 4096 + 4;
    bytes[at..at + 4].copy_from_slice(&0xe24d_4d50_u32.to_le_bytes());
    let opened = Ext::open(&Device::memory(bytes));
    let expected = Refusal::InUse {
        block: BlockNumber::new(block),
        sequence: 0xe24d_4d50,
    };
    ensure!(matches!(opened, Err(ExtError::Refused(found)) if found == expected));
    Ok(())
}
