//! Tests of hand-made layers: marks, links across layers, snapshots of layers.

use super::*;
use buttress_format::FileOffset;

struct Archive(tar::Builder<Vec<u8>>);

impl Archive {
    fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    fn file(mut self, path: &str, content: &str) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o640);
        self.0.append_data(&mut header, path, content.as_bytes()).unwrap();
        self
    }

    fn directory(mut self, path: &str) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_mode(0o755);
        self.0.append_data(&mut header, path, std::io::empty()).unwrap();
        self
    }

    fn link(mut self, path: &str, target: &str) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Link);
        header.set_size(0);
        header.set_mode(0o640);
        self.0.append_link(&mut header, path, target).unwrap();
        self
    }

    fn layer(self) -> Layer {
        Layer {
            name: "layer".to_owned(),
            store: Store::of_bytes(self.0.into_inner().unwrap()),
        }
    }
}

fn entries(layers: &mut Layers) -> Vec<Entry> {
    let mut entries = Vec::new();
    while let Some(entry) = layers.next_entry().unwrap() {
        entries.push(entry);
    }
    entries
}

fn content(layers: &mut Layers, entry: &Entry) -> String {
    let EntryKind::File(file) = &entry.kind else {
        panic!("{entry:?} is no file");
    };
    let mut reader = layers.contents().unwrap().open(&entry.path, file).unwrap();
    let mut bytes = vec![0; file.size.get() as usize];
    reader.read_exact_at(FileOffset::new(0), &mut bytes).unwrap();
    reader.finish().unwrap();
    String::from_utf8(bytes).unwrap()
}

fn find<'a>(entries: &'a [Entry], path: &str) -> Vec<&'a Entry> {
    entries
        .iter()
        .filter(|entry| entry.path.as_bytes() == path.as_bytes())
        .collect()
}

#[test]
fn the_later_of_two_members_has_precedence() {
    let archive = Archive::new().file("a", "first").file("./a", "second");
    let mut layers = Layers::of_archive("x".into(), archive.layer().store);
    let entries = entries(&mut layers);
    assert_eq!(entries.len(), 2);
    assert!(entries[0].precedence < entries[1].precedence);
    assert_eq!(content(&mut layers, &entries[0]), "first");
    assert_eq!(content(&mut layers, &entries[1]), "second");
}

#[test]
fn hard_link_keeps_the_file_of_a_replaced_target() {
    let lower = Archive::new().file("a", "old").link("b", "a").link("c", "b");
    let upper = Archive::new().file("a", "new").file(".wh.b", "").link("d", "c");
    let mut layers = Layers::of_image("x".into(), vec![lower.layer(), upper.layer()]);
    let entries = entries(&mut layers);
    let old = find(&entries, "a")[0].attributes.link;
    assert!(old.is_some());
    for path in ["b", "c", "d"] {
        let entry = find(&entries, path)[0].clone();
        assert_eq!(entry.attributes.link, old);
        assert_eq!(entry.attributes.permissions, 0o640);
        assert_eq!(content(&mut layers, &entry), "old");
    }
    let new = find(&entries, "a")[1].clone();
    assert_ne!(new.attributes.link, old);
    assert_eq!(content(&mut layers, &new), "new");
    assert_eq!(find(&entries, "b")[1].kind, EntryKind::Whiteout);
}

#[test]
fn marks_act_on_lower_layers_only() {
    let lower = Archive::new().directory("d").file("d/x", "1").file("e", "2");
    let upper = Archive::new()
        .file("d/y", "3")
        .file("e", "4")
        .file("d/.wh..wh..opq", "")
        .file(".wh.e", "")
        .file(".wh..wh.plnk", "");
    let mut layers = Layers::of_image("x".into(), vec![lower.layer(), upper.layer()]);
    let entries = entries(&mut layers);
    let one = |path, kind: fn(&EntryKind) -> bool| {
        let found: Vec<Precedence> = find(&entries, path)
            .into_iter()
            .filter(|entry| kind(&entry.kind))
            .map(|entry| entry.precedence)
            .collect();
        found
    };
    let file = |kind: &EntryKind| matches!(kind, EntryKind::File(_));
    let opaque = one("d", |kind| matches!(kind, EntryKind::Opaque));
    assert!(one("d/x", file)[0] < opaque[0] && opaque[0] < one("d/y", file)[0]);
    let gone = one("e", |kind| matches!(kind, EntryKind::Whiteout));
    let files = one("e", file);
    assert!(files[0] < gone[0] && gone[0] < files[1]);
    assert_eq!(entries.len(), 7);
    // In a plain archive, names with the prefix `.wh.` are ordinary files.
    let archive = Archive::new().file(".wh.e", "");
    let mut plain = Layers::of_archive("x".into(), archive.layer().store);
    assert!(matches!(
        plain.next_entry().unwrap().unwrap().kind,
        EntryKind::File(_)
    ));
}

#[test]
fn each_layer_state_is_complete_and_shares_contents() {
    let lower = Archive::new().file("a", "one").link("b", "a");
    let upper = Archive::new().file("c", "two").file(".wh.a", "");
    let directory = EntryPath::new(b"states").unwrap();
    let mut layers =
        Layers::of_image("x".into(), vec![lower.layer(), upper.layer()]).with_snapshots(directory);
    let entries = entries(&mut layers);
    let paths: Vec<String> = entries
        .iter()
        .map(|entry| String::from_utf8(entry.path.as_bytes().to_vec()).unwrap())
        .collect();
    assert_eq!(
        paths,
        [
            "a",
            "b",
            "c",
            "a",
            "states/1",
            "states/1/a",
            "states/1/b",
            "states/2",
            "states/2/a",
            "states/2/b",
            "states/2/c",
            "states/2/a"
        ]
    );
    let share = |entry: &Entry| match &entry.kind {
        EntryKind::File(content) => content.share,
        _ => None,
    };
    assert!(share(&entries[0]).is_some());
    for at in [1, 5, 6, 8, 9] {
        assert_eq!(share(&entries[at]), share(&entries[0]));
    }
    // Two names are one file within one state of the tree, but not across states.
    assert_eq!(entries[0].attributes.link, entries[1].attributes.link);
    assert_eq!(entries[5].attributes.link, entries[6].attributes.link);
    assert_ne!(entries[0].attributes.link, entries[5].attributes.link);
    let mark = Some(SubvolumeMark {
        read_only: true,
        default: false,
    });
    assert_eq!(entries[4].kind, EntryKind::Directory(mark));
}

#[test]
fn invalid_members_are_reported_with_their_place() {
    let error = |archive: Archive, marks: bool| {
        let mut layers = if marks {
            Layers::of_image("x".into(), vec![archive.layer()])
                .with_snapshots(EntryPath::new(b"states").unwrap())
        } else {
            Layers::of_archive("x".into(), archive.layer().store)
        };
        loop {
            match layers.next_entry() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("nothing was wrong"),
                Err(error) => return error.to_string(),
            }
        }
    };
    let text = error(Archive::new().file("a", "").link("b", "nothing"), false);
    assert!(
        text.contains("byte 512 of the archive") && text.contains("not an earlier member"),
        "{text}"
    );
    let text = error(Archive::new().link("a", "a"), false);
    assert!(text.contains("not an earlier member"), "{text}");
    let text = error(Archive::new().directory("d").link("a", "d"), false);
    assert!(text.contains("is a directory"), "{text}");
    let text = error(Archive::new().file("d/.wh..", ""), true);
    assert!(text.contains("marks nothing"), "{text}");
    let text = error(Archive::new().file("states/1/x", ""), true);
    assert!(text.contains("directory of layer snapshots"), "{text}");
}

#[test]
fn cancelled_job_ends_before_the_first_entry() {
    let archive = Archive::new().file("a", "x").link("b", "a");
    let progress = Progress::new();
    let store = archive.layer().store;
    let mut layers = Layers::of_archive("x".into(), store).with_progress(&progress);
    progress.cancel();
    let error = layers.next_entry().unwrap_err();
    let SourceError::Io { cause, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(cause.kind(), std::io::ErrorKind::Interrupted);
}

#[test]
fn paths_lie_in_directories() {
    let path = |text: &str| EntryPath::new(text.as_bytes()).unwrap();
    assert!(is_in(&path("a/b"), &path("a")));
    assert!(is_in(&path("a"), &path("a")));
    assert!(is_in(&path("a"), &path("")));
    assert!(!is_in(&path("ab"), &path("a")));
    assert!(!is_in(&path("a"), &path("a/b")));
}
