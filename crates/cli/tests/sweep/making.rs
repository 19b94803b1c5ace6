//! The files that the command lines use.

use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use crate::support::{buttress, image, inside, json};

/// Files outside of `out` that a command may change.
pub(crate) const CHANGEABLE: [&str; 3] = ["volume.img", "received.img", "damaged"];

/// Entries of the test folder.
const PARTS: [&str; 14] = [
    "volume.img",
    "received.img",
    "pristine",
    "out",
    "host",
    "host.tar",
    "plan.toml",
    "contexts",
    "stream",
    "incremental",
    "unknown",
    "damaged",
    "compressed",
    "deep",
];

pub(crate) fn is_part(path: &Path) -> bool {
    let name = path.file_name().unwrap();
    PARTS.iter().any(|part| name == *part)
}

/// Runs the command, which must succeed.
fn must(words: &[&str]) -> Vec<u8> {
    let ended = buttress(words);
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{words:?}: {told}");
    ended.stdout
}

/// Creates all entries of the folder.
pub(crate) fn fill(folder: &Path) {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("pristine")).unwrap();
    make_host(&folder.join("host"));
    let packed = Command::new("tar")
        .args(["-C", &path("host/folder"), "-cf", &path("host.tar"), "."])
        .status();
    assert!(packed.unwrap().success());
    make_volume(&path("pristine/volume.img"), &path("host"));
    fs::write(path("stream"), must(&["send", &inside("/home-monday")])).unwrap();
    let of_volume = |name: &str| format!("{}:{name}", path("pristine/volume.img"));
    let changes = must(&["send", "-p", &of_volume("/home-monday"), &of_volume("/home-now")]);
    fs::write(path("incremental"), &changes).unwrap();
    let packed = must(&["send", "--compressed-data", &inside("/home-monday")]);
    fs::write(path("compressed"), packed).unwrap();
    make_received(&path("pristine/received.img"), &path("stream"));
    fs::write(path("contexts"), "/.* system_u:object_r:etc_t:s0\n").unwrap();
    fs::write(
        path("plan.toml"),
        "manifest = 1\n[[file]]\npath = \"/planned\"\ntext = \"planned\"\n",
    )
    .unwrap();
    make_damaged(&path("pristine/damaged"));
    make_deep(folder);
}

/// Creates a copy of the tour's volume with additional files.
fn make_volume(volume: &str, host: &str) {
    let copied = Command::new("cp")
        .arg("--sparse=always")
        .args([image(), Path::new(volume)])
        .status();
    assert!(copied.unwrap().success());
    let at = |path: &str| format!("{volume}:{path}");
    must(&["cp", "-a", &format!("{host}/.hidden"), &at("/home/.hidden")]);
    must(&["cp", "-a", &format!("{host}/.hidden"), &at("/home/plain/.hidden")]);
    must(&["subvolume", "snapshot", &at("/home/projects"), &at("/nested")]);
    must(&["subvolume", "create", &at("/nested/deeper")]);
    must(&["cp", "-a", &format!("{host}/text"), &at("/nested/deeper/text")]);
    must(&[
        "cp",
        "-a",
        &format!("{host}/folder"),
        &at("/home/projects/folder"),
    ]);
    must(&["subvolume", "snapshot", "-r", &at("/home"), &at("/home-now")]);
}

/// Creates a volume with a received subvolume and with quotas.
fn make_received(volume: &str, stream: &str) {
    must(&["mkfs", "-q", "-b", "128M", volume]);
    must(&["receive", "-q", "-f", stream, &format!("{volume}:/")]);
    must(&["quota", "enable", volume]);
    must(&["qgroup", "create", "1/1", volume]);
    must(&["qgroup", "create", "2/1", volume]);
    must(&["qgroup", "assign", "0/5", "2/1", volume]);
}

/// Creates a damaged volume: a finding for check, a bad copy for scrub.
fn make_damaged(volume: &str) {
    must(&[
        "mkfs",
        "-q",
        "-b",
        "128M",
        "-d",
        "dup",
        "-r",
        concat!(env!("CARGO_MANIFEST_DIR"), "/src"),
        volume,
    ]);
    let inside = format!("{volume}:/exit.rs");
    let map = json(&["fiemap", "-v", &inside], "fiemap");
    let logical = map[0]["logical"].as_u64().unwrap_or_else(|| panic!("{map}"));
    let chunks = json(&["inspect-internal", "list-chunks", volume], "list-chunks");
    let physical = chunks.as_array().unwrap().iter().find_map(|chunk| {
        let number = |key: &str| chunk[key].as_u64();
        let (start, length, at) = (number("lstart")?, number("length")?, number("pstart")?);
        (start..start + length)
            .contains(&logical)
            .then(|| at + (logical - start))
    });
    let physical = physical.unwrap_or_else(|| panic!("{chunks}"));
    let file = File::options().write(true).open(volume).unwrap();
    file.write_all_at(&[0xa5; 16], physical).unwrap();
}

/// Creates a volume whose trees have three levels.
fn make_deep(folder: &Path) {
    let many = folder.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..4000 {
        File::create(many.join(format!("a-name-of-some-length-{number:04}"))).unwrap();
    }
    let (many, deep) = (many.to_str().unwrap(), folder.join("deep"));
    must(&["mkfs", "-q", "-n", "4K", "-r", many, deep.to_str().unwrap()]);
    fs::remove_dir_all(many).unwrap();
}

/// Creates a folder of the host with files for the options of mkfs and cp.
fn make_host(host: &Path) {
    fs::create_dir_all(host.join("folder/below")).unwrap();
    let text = "one line of text that is there many times\n".repeat(4000);
    for name in [
        "text",
        "same",
        "folder/text",
        "folder/below/text.o",
        "link-target",
    ] {
        fs::write(host.join(name), &text).unwrap();
    }
    fs::write(host.join(".hidden"), "hidden").unwrap();
    symlink("link-target", host.join("link")).unwrap();
    fs::hard_link(host.join("text"), host.join("other-name")).unwrap();
    fs::set_permissions(host.join("same"), Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(host.join("same"), Some(1000), Some(1000)).unwrap();
    // If the file system of the test has no such attributes, setting them fails, and the table's
    // rows about them report it.
    let _ = rustix::fs::setxattr(
        host.join("same"),
        "user.note",
        b"value",
        rustix::fs::XattrFlags::empty(),
    );
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    for name in [
        "text",
        "same",
        ".hidden",
        "link-target",
        "folder/text",
        "folder/below/text.o",
    ] {
        let file = File::options().write(true).open(host.join(name)).unwrap();
        file.set_times(FileTimes::new().set_modified(time).set_accessed(time))
            .unwrap();
    }
}

/// Creates existing destinations in the folder for outputs before a run.
pub(crate) fn fill_outputs(out: &Path) {
    fs::create_dir_all(out.join("there")).unwrap();
    fs::write(out.join("there/text"), "what was there").unwrap();
    fs::write(out.join("elsewhere"), "behind a link").unwrap();
    symlink("../elsewhere", out.join("there/holes")).unwrap();
}

/// Replaces the placeholders in a word of the table.
pub(crate) fn value(folder: &Path, word: &str) -> String {
    match word {
        "@data" => data_address().to_string(),
        "@block" => block_address(folder).to_string(),
        "@uuid" => subvolume_uuid().to_owned(),
        _ => word.to_owned(),
    }
}

/// Returns an address of file data that two subvolumes share.
fn data_address() -> u64 {
    static ADDRESS: OnceLock<u64> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let map = json(&["fiemap", "-v", &inside("/home/plain/reflink")], "fiemap");
        map[0]["logical"].as_u64().unwrap_or_else(|| panic!("{map}"))
    })
}

/// Returns the address of a node of the deep volume's file tree.
fn block_address(folder: &Path) -> u64 {
    static ADDRESS: OnceLock<u64> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let deep = folder.join("deep");
        let words = ["inspect-internal", "dump-tree", "-t", "5", deep.to_str().unwrap()];
        let text = String::from_utf8(must(&words)).unwrap();
        let node = text.lines().find_map(|line| line.strip_prefix("node "));
        let address = node.and_then(|rest| rest.split(' ').next()?.parse().ok());
        address.unwrap_or_else(|| panic!("no node in {text}"))
    })
}

/// Returns the uuid of a subvolume that the command line does not name.
fn subvolume_uuid() -> &'static str {
    static UUID: OnceLock<String> = OnceLock::new();
    UUID.get_or_init(|| {
        let list = json(
            &["subvolume", "list", "-u", image().to_str().unwrap()],
            "subvolume-list",
        );
        let found = list
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["path"] == "home-monday")
            .unwrap();
        found["uuid"].as_str().unwrap().to_owned()
    })
}
