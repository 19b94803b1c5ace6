//! Tests of steps that may lose something: without consent, nothing is lost.

use super::{check, devices};
use buttress_check::Report;
use buttress_device::Device;
use buttress_format::{ItemType, Key, TreeId};
use buttress_fs::{OpenOptions, Progress};
use buttress_hostile::editor::Editor;
use buttress_hostile::plants;
use buttress_repair::{Options, Outcome};

/// Returns the damaged volume of a plant.
fn planted(name: &str) -> Editor {
    let mut plants = plants::all().into_iter();
    plants
        .find(|plant| plant.name == name)
        .expect("the plant exists")
        .make()
}

/// Repairs a volume without consent to any loss.
fn repair_without_consent(devices: &[Device], before: &Report) -> Outcome {
    let options = Options::default();
    buttress_repair::run(devices, before, &options, &mut |_| false, &Progress::new()).expect("a repair ends")
}

/// Returns an item of the volume on devices.
fn item(devices: &[Device], tree: TreeId, key: &Key) -> Option<Vec<u8>> {
    let filesystem = OpenOptions::new(devices.to_vec())
        .for_inspection(true)
        .open()
        .unwrap();
    let item = filesystem.tree(tree).unwrap().get(key).unwrap();
    item.map(|item| item.data().to_vec())
}

#[test]
fn place_of_missing_subvolume_stays_without_consent() {
    let editor = planted("subvolume-missing");
    let (place, data) = editor.find(TreeId::ROOT, ItemType::ROOT_REF, |key, _| key.offset == 9999);
    let devices = devices(&editor);
    let mut before = check(&devices, false);
    // A report that leaves out the missing subvolume gives no consent either.
    for leaves_out in [false, true] {
        if leaves_out {
            before
                .findings
                .retain(|reported| reported.finding.code() != "subvolume-missing");
        }
        let outcome = repair_without_consent(&devices, &before);
        let codes = outcome.refused.iter().flat_map(|step| step.codes.iter().copied());
        let codes: Vec<_> = codes.collect();
        assert!(codes.contains(&"subvolume-entry-missing"), "{codes:?}");
        assert_eq!(item(&devices, TreeId::ROOT, &place), Some(data.clone()));
    }
}
