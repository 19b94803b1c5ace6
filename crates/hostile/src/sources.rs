//! Targets for the sources of images: tar archives, manifests, OCI layouts.

use crate::Depth;
use crate::input::Input;
use buttress_build::{Entry, EntryKind, Source, SourceError};
use buttress_format::{FileOffset, Timestamp};
use buttress_fs::Progress;
use buttress_sources::store::Store;
use buttress_sources::{Layer, Layers, Manifest, oci};
use sha2::{Digest as _, Sha256};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The number of bytes that a target reads of each file.
const READ_BYTES_MAX: usize = 64 << 10;
/// The number of ranges that a target inspects in each file.
const RANGES_MAX: usize = 64;
/// The number of entries that a target inspects in each source.
const ENTRIES_MAX: usize = 4096;

/// The target of a tar archive, plain or as two layers with marks. Checksums are repaired unless
/// the first byte says otherwise.
pub fn tar(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let choices = input.byte();
    let mut archive = input.rest().to_vec();
    if choices & 1 == 0 {
        mend(&mut archive);
    }
    let layers = if choices & 2 == 0 {
        Layers::of_archive("tar".to_owned(), Store::of_bytes(archive))
    } else {
        // The archive is cut anywhere between blocks, so that marks and links act across layers.
        let blocks = archive.len() / 512;
        let cut = (usize::from(choices >> 2) * blocks / 64) * 512;
        let (lower, upper) = archive.split_at(cut);
        let layer = |bytes: &[u8]| Layer {
            name: "layer".to_owned(),
            store: Store::of_bytes(bytes),
        };
        let layers = Layers::of_image("image".to_owned(), vec![layer(lower), layer(upper)]);
        match buttress_build::EntryPath::new(b"states") {
            Ok(path) if choices & 4 == 0 => layers.with_snapshots(path),
            _ => layers,
        }
    };
    look(layers, bytes.len())
}

/// The target of a manifest. A head and a table precede the input unless the first byte says
/// otherwise.
pub fn manifest(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let mut text = Vec::new();
    if input.byte() & 1 == 0 {
        text.extend_from_slice(b"manifest = 1\n[[directory]]\npath = \"/d\"\n");
    }
    text.extend_from_slice(input.rest());
    let folder = Path::new("/nonexistent");
    let read = Box::new(Cursor::new(text));
    match Manifest::new("manifest", read, folder, Timestamp::default(), &|_| {
        Err("none".into())
    }) {
        Ok(manifest) => {
            let rules = manifest.rules();
            look_and(manifest, bytes.len(), &|entry| {
                rules.apply(entry);
            })
        }
        Err(error) => refused(&error),
    }
}

/// The target of a layout on disk with one document, or the layer, from the input. Digests that
/// lead to the document are correct.
pub fn oci(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let which = input.byte() % 4;
    let given = input.rest();
    let folder = folder();
    let mut made: Vec<PathBuf> = Vec::new();
    let mut blob = |content: &[u8]| {
        let hex: String = Sha256::digest(content)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let path = folder.join("blobs/sha256").join(&hex);
        if std::fs::write(&path, content).is_ok() {
            made.push(path);
        }
        (hex, content.len())
    };
    let mut layer = if which == 3 { given.to_vec() } else { vec![0; 1024] };
    mend(&mut layer);
    let (layer, layer_bytes) = blob(&layer);
    let config = format!("{{\"rootfs\":{{\"diff_ids\":[\"sha256:{layer}\"]}}}}");
    let config = if which == 2 { given } else { config.as_bytes() };
    let (config, config_bytes) = blob(config);
    let manifest = format!(
        "{{\"config\":{{\"digest\":\"sha256:{config}\",\"size\":{config_bytes}}},\"layers\":[{{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\",\"digest\":\"sha256:{layer}\",\"size\":{layer_bytes}}}]}}"
    );
    let manifest = if which == 1 { given } else { manifest.as_bytes() };
    let (manifest, manifest_bytes) = blob(manifest);
    let index = format!("{{\"manifests\":[{{\"digest\":\"sha256:{manifest}\",\"size\":{manifest_bytes}}}]}}");
    let index = if which == 0 { given } else { index.as_bytes() };
    let written = std::fs::write(folder.join("index.json"), index);
    let opened = oci::open(folder, &oci::Wanted::default(), folder, &Progress::new());
    let depth = match opened {
        Ok(layers) => look(layers, bytes.len()),
        Err(error) => refused(&error),
    };
    for path in made {
        let _ = std::fs::remove_file(path);
    }
    written.map_or(Depth::Refused, |()| depth)
}

/// Returns a folder for this process's layouts, in memory if possible.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let above = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let folder = above.join(format!("buttress-hostile-oci-{}", std::process::id()));
        let _ = std::fs::create_dir_all(folder.join("blobs/sha256"));
        let _ = std::fs::write(folder.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}");
        folder
    })
}

/// Repairs the checksum of every block with a header's magic, or with bytes in the place of a
/// checksum.
fn mend(archive: &mut [u8]) {
    for block in archive.chunks_exact_mut(512) {
        let is_header = block[257..262] == *b"ustar" || block[154..156] == *b"\0 ";
        if !is_header {
            continue;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

fn refused(error: &SourceError) -> Depth {
    std::hint::black_box(error.to_string());
    Depth::Refused
}

fn look(source: impl Source, input_bytes: usize) -> Depth {
    look_and(source, input_bytes, &|_| {})
}

/// Reads all entries, then contents. The entries' memory must be proportional to the input.
fn look_and(mut source: impl Source, input_bytes: usize, apply: &dyn Fn(&mut Entry)) -> Depth {
    let mut entries = Vec::new();
    let mut kept = 0_usize;
    while entries.len() < ENTRIES_MAX {
        match source.next_entry() {
            Ok(Some(mut entry)) => {
                apply(&mut entry);
                assert!(
                    entry
                        .path
                        .as_bytes()
                        .split(|byte| *byte == b'/')
                        .all(|name| name != b".."),
                    "a path climbs"
                );
                let xattrs = entry.attributes.xattrs.iter();
                kept += entry.path.as_bytes().len() + xattrs.map(|xattr| xattr.value.len()).sum::<usize>();
                entries.push(entry);
            }
            Ok(None) => break,
            Err(error) => {
                refused(&error);
                break;
            }
        }
    }
    // Global headers and states of layers repeat the same data for each entry.
    assert!(
        kept <= (input_bytes + 64) * (entries.len() + 1),
        "entries are larger than the input"
    );
    let Ok(contents) = source.contents() else {
        return Depth::Refused;
    };
    for entry in entries.iter().take(64) {
        let EntryKind::File(file) = &entry.kind else {
            continue;
        };
        let Ok(mut reader) = contents.open(&entry.path, file) else {
            continue;
        };
        let mut at = FileOffset::new(0);
        for _ in 0..RANGES_MAX {
            let Ok(Some(range)) = reader.next_data(at) else {
                break;
            };
            assert!(range.start >= at && range.start < range.end, "ranges rise");
            assert!(range.end.get() <= file.size.get(), "data lies within the file");
            let length = usize::try_from(range.end.get() - range.start.get()).unwrap_or(usize::MAX);
            let mut buffer = vec![0; length.min(READ_BYTES_MAX)];
            assert!(
                reader.read_exact_at(range.start, &mut buffer).is_ok(),
                "what is told of can be read"
            );
            at = range.end;
        }
    }
    Depth::passed(!entries.is_empty())
}

/// Returns first archives, manifests and layouts, by target.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut seeds = Vec::new();
    for archive in archives() {
        for choices in [0_u8, 2, 0x82, 0x46] {
            seeds.push(("tar", [&[choices][..], &archive].concat()));
        }
        seeds.push(("oci", [&[3][..], &archive].concat()));
    }
    let head = "manifest = 1\n[volume]\nlabel = \"x\"\n[[rule]]\npath = \"/a\"\nnodatacow = true\ncompression = \"zstd:3\"\n";
    let tables = [
        "[[file]]\npath = \"/a/b\"\ntext = \"content\"\nmode = \"0644\"\ntime = 2024-02-29T00:00:00Z\n",
        "[[file]]\npath-base64 = \"/w==\"\nbase64 = \"AAEC\"\nsize = 3\nxattrs = { \"user.a\" = { base64 = \"AA==\" } }\n",
        "[[subvolume]]\npath = \"/s\"\nread-only = true\ndefault = true\n[[snapshot]]\npath = \"/t\"\nof = \"/s\"\n",
        "[[symlink]]\npath = \"/l\"\ntarget = \"a\"\n[[hard-link]]\npath = \"/h\"\nto = \"/a/b\"\n[[remove]]\npath = \"/x\"\n",
        "[[device]]\npath = \"/n\"\nkind = \"character\"\nmajor = 1\nminor = 3\n[[fifo]]\npath = \"/f\"\ntime = \"@-1.5\"\n[[socket]]\npath = \"/k\"\nflags = [\"noatime\"]\n",
    ];
    seeds.push((
        "manifest",
        [&[1][..], head.as_bytes(), tables.concat().as_bytes()].concat(),
    ));
    for table in tables {
        seeds.push(("manifest", [&[0][..], table.as_bytes()].concat()));
    }
    let index = "{\"manifests\":[{\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"digest\":\"sha256:0000000000000000000000000000000000000000000000000000000000000000\",\"size\":2,\"platform\":{\"os\":\"linux\",\"architecture\":\"arm64\",\"variant\":\"v8\"},\"annotations\":{\"org.opencontainers.image.ref.name\":\"x\"}}]}";
    seeds.push(("oci", [&[0][..], index.as_bytes()].concat()));
    let manifest = "{\"config\":{\"digest\":\"sha256:00\",\"size\":2},\"layers\":[]}";
    seeds.push(("oci", [&[1][..], manifest.as_bytes()].concat()));
    seeds.push(("oci", [&[2][..], b"{\"rootfs\":{\"diff_ids\":[]}}"].concat()));
    seeds
}

/// Returns small archives of every kind of member.
fn archives() -> Vec<Vec<u8>> {
    let header = |name: &[u8], letter: u8, size: usize, link: &[u8]| {
        let mut block = [0_u8; 512];
        block[..name.len()].copy_from_slice(name);
        block[100..108].copy_from_slice(b"0000644\0");
        block[108..116].copy_from_slice(b"0000000\0");
        block[116..124].copy_from_slice(b"0000000\0");
        block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        block[136..148].copy_from_slice(b"00000000017\0");
        block[156] = letter;
        block[157..157 + link.len()].copy_from_slice(link);
        block[257..265].copy_from_slice(if letter == b'S' {
            b"ustar  \0"
        } else {
            b"ustar\x0000"
        });
        block.to_vec()
    };
    let body = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    };
    let with =
        |letter: u8, records: &[u8]| [header(b"pax", letter, records.len(), b""), body(records)].concat();
    let plain = [
        header(b"d/", b'5', 0, b""),
        header(b"d/a", b'0', 5, b""),
        body(b"hello"),
        header(b"b", b'1', 0, b"d/a"),
        header(b"l", b'2', 0, b"d/a"),
        header(b"n", b'3', 0, b""),
        header(b"p", b'6', 0, b""),
        header(b"d/.wh.a", b'0', 0, b""),
        header(b"d/.wh..wh..opq", b'0', 0, b""),
    ];
    let long = [
        header(b"././@LongLink", b'L', 12, b""),
        body(b"a/long/name\0"),
        header(b"x", b'0', 0, b""),
    ];
    let extended = [
        with(b'g', b"9 uid=77\n"),
        with(
            b'x',
            b"10 path=p\n22 mtime=1234.5678901\n29 SCHILY.xattr.user.a=b\0c\n=\n",
        ),
        header(b"x", b'0', 0, b""),
    ];
    let mut old = header(b"sparse", b'S', 512, b"");
    old[386..398].copy_from_slice(b"00000010000\0");
    old[398..410].copy_from_slice(b"00000001000\0");
    old[483..495].copy_from_slice(b"00000020000\0");
    let old = [old, body(&[1; 512])];
    let map = b"1\n4096\n512\n";
    let newest = [
        with(b'x', b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n25 GNU.sparse.name=real\n28 GNU.sparse.realsize=8192\n"),
        header(b"x", b'0', 1024, b""),
        body(map),
        body(&[1; 512]),
    ];
    let older = [
        with(
            b'x',
            b"30 GNU.sparse.map=0,256,512,256\n24 GNU.sparse.size=8192\n",
        ),
        header(b"x", b'0', 512, b""),
        body(&[1; 512]),
    ];
    let mut archives = vec![
        plain.concat(),
        long.concat(),
        extended.concat(),
        old.concat(),
        newest.concat(),
        older.concat(),
    ];
    for archive in &mut archives {
        mend(archive);
    }
    archives
}
