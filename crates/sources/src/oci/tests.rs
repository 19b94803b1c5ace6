//! Tests of hand-made layouts, each broken in one place.

use super::*;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;

/// A layout with one image of three layers: plain, gzip, zstd.
struct Made {
    folder: tempfile::TempDir,
}

fn sha256(bytes: &[u8]) -> String {
    let mut hasher = Hasher::Sha256(Box::new(Sha256::new()));
    hasher.add(bytes);
    format!("sha256:{}", hasher.hex())
}

fn archive(name: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(name.len() as u64);
    builder.append_data(&mut header, name, name.as_bytes()).unwrap();
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

impl Made {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("blobs/sha256")).unwrap();
        let made = Self { folder };
        made.write("oci-layout", &json!({"imageLayoutVersion": "1.0.0"}));
        let manifest = made.image(&["one", "two", "three"]);
        made.index(&[manifest]);
        made
    }

    fn write(&self, file: &str, document: &Value) {
        fs::write(self.folder.path().join(file), document.to_string()).unwrap();
    }

    fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = sha256(bytes);
        let hex = digest.strip_prefix("sha256:").unwrap();
        fs::write(self.folder.path().join("blobs/sha256").join(hex), bytes).unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    fn image(&self, names: &[&str]) -> Value {
        let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
        for (name, number) in names.iter().zip(0..) {
            let plain = archive(name);
            diff_ids.push(sha256(&plain));
            layers.push(match number % 3 {
                0 => self.blob(LAYER, &plain),
                1 => self.blob(&format!("{LAYER}+gzip"), &gzip(&plain)),
                _ => self.blob(
                    &format!("{LAYER}+zstd"),
                    &zstd::bulk::compress(&plain, 3).unwrap(),
                ),
            });
        }
        self.image_of(&layers, &diff_ids)
    }

    fn image_of(&self, layers: &[Value], diff_ids: &[String]) -> Value {
        let config = json!({"os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        let config = self.blob(
            "application/vnd.oci.image.config.v1+json",
            config.to_string().as_bytes(),
        );
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        self.blob(MANIFEST, manifest.to_string().as_bytes())
    }

    fn index(&self, manifests: &[Value]) {
        self.write("index.json", &json!({"schemaVersion": 2, "manifests": manifests}));
    }

    fn open(&self, wanted: &Wanted) -> Result<Vec<Layer>, OciError> {
        let spool = self.folder.path();
        Layout(spool.to_owned()).layers(wanted, spool, &Progress::new())
    }

    fn names(&self, wanted: &Wanted) -> Result<Vec<Vec<u8>>, OciError> {
        let layers = self.open(wanted)?.into_iter();
        let first = |layer: Layer| {
            let mut reader = crate::tar::Reader::new(layer.store);
            reader.next_member().unwrap().unwrap().path
        };
        Ok(layers.map(first).collect())
    }
}

fn wanted(tag: Option<&str>, platform: Option<&str>) -> Wanted {
    Wanted {
        tag: tag.map(Into::into),
        platform: platform.map(Into::into),
    }
}

#[test]
fn layers_keep_their_order_for_every_compression() {
    let names = Made::new().names(&Wanted::default()).unwrap();
    assert_eq!(names, [&b"one"[..], b"two", b"three"]);
}

#[test]
fn every_byte_of_every_blob_is_compared() {
    let blobs = |made: &Made| {
        let mut files: Vec<PathBuf> = fs::read_dir(made.folder.path().join("blobs/sha256"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        files
    };
    for number in 0..blobs(&Made::new()).len() {
        let made = Made::new();
        let file = &blobs(&made)[number];
        let whole = fs::read(file).unwrap();
        for at in [0, whole.len() / 2, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 0x20;
            fs::write(file, &changed).unwrap();
            let error = made.open(&Wanted::default()).map(|_| ()).unwrap_err();
            assert!(
                matches!(error, OciError::Digest { .. } | OciError::Layer { .. }),
                "{error}"
            );
        }
        fs::write(file, [whole.as_slice(), b"x"].concat()).unwrap();
        let error = made.open(&Wanted::default()).map(|_| ()).unwrap_err();
        assert!(matches!(error, OciError::Size { .. }), "{error}");
        fs::remove_file(file).unwrap();
        let error = made.open(&Wanted::default()).map(|_| ()).unwrap_err();
        assert!(matches!(error, OciError::Read { .. }), "{error}");
    }
}

#[test]
fn a_layer_must_unpack_to_what_the_configuration_says() {
    let made = Made::new();
    let layer = made.blob(&format!("{LAYER}+gzip"), &gzip(&archive("one")));
    let image = made.image_of(std::slice::from_ref(&layer), &[sha256(&archive("two"))]);
    made.index(&[image]);
    let error = made.open(&Wanted::default()).map(|_| ()).unwrap_err();
    assert!(
        matches!(
            error,
            OciError::Digest {
                what: "its unpacked content",
                ..
            }
        ),
        "{error}"
    );
    let image = made.image_of(&[layer], &[]);
    made.index(&[image]);
    let error = made.open(&Wanted::default()).map(|_| ()).unwrap_err();
    assert!(
        matches!(
            error,
            OciError::LayerCount {
                layers: 1,
                named: 0,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn digests_lead_nowhere_else() {
    let made = Made::new();
    let hex = "0".repeat(64);
    for digest in [
        "sha256:../../../../etc/passwd".to_owned(),
        format!("sha256:{}", "A".repeat(64)),
        format!("sha256:{}", "0".repeat(63)),
        format!("md5:{hex}"),
        hex,
    ] {
        made.index(&[json!({"mediaType": MANIFEST, "digest": digest, "size": 1})]);
        let error = made.open(&Wanted::default()).map(|_| ()).unwrap_err();
        assert!(matches!(error, OciError::NoDigest { .. }), "{error}");
    }
}

#[test]
fn tags_and_platforms_choose() {
    let made = Made::new();
    let with = |mut descriptor: Value, tag: Option<&str>, platform: Option<Value>| {
        if let Some(tag) = tag {
            descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        }
        if let Some(platform) = platform {
            descriptor["platform"] = platform;
        }
        descriptor
    };
    let amd = with(
        made.image(&["amd"]),
        None,
        Some(json!({"os": "linux", "architecture": "amd64"})),
    );
    let arm = json!({"os": "linux", "architecture": "arm64", "variant": "v8"});
    let arm = with(made.image(&["arm"]), None, Some(arm));
    let none = json!({"os": "unknown", "architecture": "unknown"});
    let attached = with(made.image(&["attached"]), None, Some(none));
    let inner = json!({"schemaVersion": 2, "manifests": [amd, arm, attached]});
    let inner = with(made.blob(INDEX, inner.to_string().as_bytes()), Some("many"), None);
    let single = with(made.image(&["single"]), Some("single"), None);
    made.index(&[inner, single]);
    let names = |tag, platform| made.names(&wanted(tag, platform));
    assert_eq!(names(Some("single"), None).unwrap(), [b"single"]);
    assert_eq!(names(Some("many"), Some("linux/amd64")).unwrap(), [b"amd"]);
    assert_eq!(names(Some("many"), Some("linux/arm64")).unwrap(), [b"arm"]);
    assert_eq!(names(Some("many"), Some("linux/arm64/v8")).unwrap(), [b"arm"]);
    assert!(matches!(
        names(None, None),
        Err(OciError::Several { count: 2, .. })
    ));
    assert!(matches!(
        names(Some("many"), None),
        Err(OciError::Several { count: 2, .. })
    ));
    let error = names(Some("many"), Some("linux/riscv64"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("linux/amd64") && error.contains("linux/arm64/v8"),
        "{error}"
    );
    let error = names(Some("other"), None).unwrap_err().to_string();
    assert!(error.contains("\"other\"") && error.contains("single"), "{error}");
}

#[test]
fn invalid_layouts_fail_without_waiting() {
    let made = Made::new();
    made.write("oci-layout", &json!({"imageLayoutVersion": "2.0.0"}));
    assert!(matches!(made.open(&Wanted::default()), Err(OciError::Version(_))));
    made.write("oci-layout", &json!({"imageLayoutVersion": "1.0.0"}));
    let encrypted = format!("{LAYER}+gzip+encrypted");
    for media_type in [encrypted.as_str(), "application/octet-stream"] {
        let layer = made.blob(media_type, b"x");
        let image = made.image_of(&[layer], &[sha256(b"x")]);
        made.index(&[image]);
        let error = made.open(&Wanted::default()).map(|_| ()).unwrap_err();
        assert!(matches!(error, OciError::MediaType { .. }), "{error}");
    }
    let loops = made.folder.path().join("blobs/sha256").join("1".repeat(64));
    rustix::fs::mknodat(rustix::fs::CWD, &loops, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    made.index(&[json!({"mediaType": MANIFEST, "digest": format!("sha256:{}", "1".repeat(64)), "size": 1})]);
    let error = made.open(&Wanted::default()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    fs::write(made.folder.path().join("index.json"), "{\n \"manifests\": [}").unwrap();
    let error = made.open(&Wanted::default()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("line 2"), "{error}");
    fs::write(made.folder.path().join("index.json"), vec![b' '; 5 << 20]).unwrap();
    let error = made.open(&Wanted::default()).map(|_| ()).unwrap_err();
    assert!(matches!(error, OciError::Large { .. }), "{error}");
}
