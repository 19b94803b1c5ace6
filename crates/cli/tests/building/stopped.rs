//! Tests of SIGINT during a build from a pipe, and of truncated sources: no image remains.

use super::{mkfs, noise};
use std::io::Write;
use std::process::Stdio;

#[test]
fn an_interrupted_or_cut_off_build_leaves_no_image() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), noise(1, 3_000_000)).unwrap();
    let archive = std::process::Command::new("tar")
        .arg("-C")
        .arg(&tree)
        .args(["-c", "."])
        .output()
        .unwrap()
        .stdout;
    let half = &archive[..archive.len() / 2];
    for interrupted in [true, false] {
        let image = folder.path().join("image.img");
        let mut child = mkfs()
            .args(["--tar", "-"])
            .arg(&image)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(half).unwrap();
        if interrupted {
            // The pipe stays open, so the building command waits for input when the signal arrives.
            let process = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(200));
            rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        drop(input);
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{error}");
        assert!(!image.exists(), "interrupted {interrupted}: {error}");
        if !interrupted {
            assert!(error.contains("is truncated"), "{error}");
        }
    }
}
