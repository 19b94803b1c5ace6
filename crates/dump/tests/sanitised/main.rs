//! Sanitised dumps of the kernel's volumes: no name, attribute or content of the source is in them,
//! and a check of the restored volume finds what it finds without sanitising.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold, with known numbers"
)]

mod reduced;
mod secrets;

use buttress_check::{Options, check};
use buttress_device::Device;
use buttress_dump::{DumpItem, DumpOptions, DumpReader, Dumped, Sanitise, restore, write};
use buttress_fs::{Filesystem, OpenOptions, Progress};
use buttress_hostile::editor::Editor;
use buttress_hostile::{plants, seeds};
use secrets::Secrets;
use std::collections::BTreeMap;
use std::io::Cursor;

const SANITISE: Sanitise = Sanitise {
    secret: [9; 32],
    strict: false,
};

fn dumped(volume: &Filesystem, sanitise: Option<Sanitise>) -> (Dumped, Vec<u8>) {
    let options = DumpOptions {
        sanitise,
        ..DumpOptions::default()
    };
    let mut bytes = Vec::new();
    let dumped = write(volume, &mut bytes, &options, &Progress::new()).unwrap();
    (dumped, bytes)
}

fn items(dump: &[u8]) -> Vec<DumpItem> {
    let mut reader = DumpReader::new(dump);
    core::iter::from_fn(|| reader.next_item().unwrap()).collect()
}

/// Restores a dump to as many devices as the source has. Returns the counts of all findings.
fn findings(dump: &[u8], devices: &[u64]) -> Option<BTreeMap<&'static str, usize>> {
    let devices: Vec<Device> = devices
        .iter()
        .map(|bytes| Device::memory(vec![0; usize::try_from(*bytes).unwrap()]))
        .collect();
    restore(&mut Cursor::new(dump), &devices, &Progress::new()).ok()?;
    let opened = OpenOptions::new(devices).for_inspection(true).open().unwrap();
    let report = check(&opened, &Options::default(), &Progress::new()).unwrap();
    let mut counts = BTreeMap::new();
    for reported in report.findings {
        *counts.entry(reported.finding.code()).or_default() += 1;
    }
    Some(counts)
}

fn device_bytes(editor: &Editor) -> Vec<u64> {
    editor
        .devices()
        .iter()
        .map(|device| device.size_bytes())
        .collect()
}

#[test]
fn dumps_have_no_names_and_stay_clean() {
    let mut short = 0;
    for aims in seeds::volumes() {
        let name = &aims.volume.name;
        let editor = Editor::new(aims);
        let volume = editor.open();
        let (_, plain) = dumped(&volume, None);
        let (report, sanitised) = dumped(&volume, Some(SANITISE));
        assert_eq!(report.kept_names, 0, "{name}");
        let secrets = Secrets::of(&volume, &items(&plain));
        short += secrets.short_names();
        assert!(
            secrets.found_in(&items(&plain)) > 0,
            "{name}: the search finds names"
        );
        secrets.require_none_in(name, &items(&sanitised));
        secrets.require_no_short_name(&volume, &items(&sanitised));
        let devices = device_bytes(&editor);
        let (before, after) = (findings(&plain, &devices), findings(&sanitised, &devices));
        assert_eq!(before, after, "{name}");
        assert!(before.is_some(), "{name}: the dump can be restored");
    }
    assert!(short > 0, "some names are short");
}

/// The suite takes each sixth plant, and the variable `BUTTRESS_SOAK` all of them.
#[test]
fn damaged_volumes_keep_their_findings() {
    let step = match std::env::var_os("BUTTRESS_SOAK") {
        Some(_) => 1,
        None => 6,
    };
    let mut differ = Vec::new();
    let mut compared = 0;
    for plant in plants::all().into_iter().step_by(step) {
        let editor = plant.make();
        let volume = editor.open();
        let (_, plain) = dumped(&volume, None);
        let (_, sanitised) = dumped(&volume, Some(SANITISE));
        Secrets::of(&volume, &items(&plain)).require_none_in(plant.name, &items(&sanitised));
        let devices = device_bytes(&editor);
        let (before, after) = (findings(&plain, &devices), findings(&sanitised, &devices));
        compared += usize::from(before.is_some());
        if before != after {
            differ.push(format!("{}: {before:?} {after:?}", plant.name));
        }
    }
    assert!(differ.is_empty(), "{compared} compared\n{}", differ.join("\n"));
    assert!(compared * step > 90, "{compared} plants compared");
}

#[test]
fn secret_selects_the_names() {
    let volume = plants::seed("kinds").open();
    let (_, first) = dumped(&volume, Some(SANITISE));
    let (_, again) = dumped(&volume, Some(SANITISE));
    assert!(first == again);
    let other = Sanitise {
        secret: [8; 32],
        ..SANITISE
    };
    assert!(first != dumped(&volume, Some(other)).1);
}
