//! docs/locking.md names every lock of the layers that writers and readers share.

use crate::run::root;
use std::collections::BTreeSet;
use std::path::Path;

const CRATES: [&str; 6] = ["writer", "accounts", "fs", "tree", "volume", "device"];

/// What makes a field or a static a lock.
const TYPES: [&str; 3] = ["Mutex<", "RwLock<", "ReentrantMutex<"];

/// The name of the field, static or structure that a line declares, if it is a lock.
fn lock_in(line: &str) -> Option<&str> {
    let line = line.trim();
    let is_made =
        line.starts_with("//") || line.contains("fn ") || line.contains("let ") || line.contains("&'");
    if is_made || line.contains("Guard<") {
        return None;
    }
    if let Some((_, structure)) = line.split_once("struct ")
        && let Some((name, held)) = structure.split_once('(')
    {
        return TYPES.iter().any(|lock| held.contains(lock)).then_some(name);
    }
    let (before, after) = line.split_once(": ")?;
    let name = before.rsplit(' ').next()?;
    let is_name = !name.is_empty()
        && name
            .chars()
            .all(|letter| letter.is_alphanumeric() || letter == '_');
    // A value in a constructor has no type in angle brackets.
    (is_name && TYPES.iter().any(|lock| after.contains(lock))).then_some(name)
}

/// Fields and statics that are locks: the file below `src`, and the name.
fn locks_below(folder: &Path, top: &Path, found: &mut BTreeSet<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(top).unwrap().display().to_string();
        if name.contains("test") {
            continue;
        }
        if path.is_dir() {
            locks_below(&path, top, found);
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            found.extend(
                code.lines()
                    .filter_map(lock_in)
                    .map(|lock| (name.clone(), lock.to_owned())),
            );
        }
    }
}

#[test]
fn every_lock_is_in_the_document() {
    let root = root().unwrap();
    let page = std::fs::read_to_string(root.join("docs/locking.md")).unwrap();
    let mut missing = Vec::new();
    let mut count = 0;
    for name in CRATES {
        let top = root.join("crates").join(name).join("src");
        let mut found = BTreeSet::new();
        locks_below(&top, &top, &mut found);
        for (file, lock) in found {
            count += 1;
            if !page.contains(&format!("`{lock}`")) {
                missing.push(format!("{lock} in crates/{name}/src/{file}"));
            }
        }
    }
    assert!(count > 30, "locks are found: {count}");
    assert_eq!(
        missing, [""; 0],
        "docs/locking.md: what each protects, its rank, what it is held over"
    );
}

#[test]
fn fields_and_statics_are_locks_and_variables_are_not() {
    assert_eq!(lock_in("    running: Mutex<Running>,"), Some("running"));
    assert_eq!(lock_in("    pub(crate) in_place: RwLock<()>,"), Some("in_place"));
    assert_eq!(
        lock_in("pub(crate) struct LiveTree(Arc<RwLock<Tree>>);"),
        Some("LiveTree")
    );
    assert_eq!(lock_in("pub(crate) struct Id(u64);"), None);
    assert_eq!(lock_in("    log: Arc<Mutex<Log>>,"), Some("log"));
    assert_eq!(
        lock_in("static IDLE: Mutex<Idle> = Mutex::new(Idle {"),
        Some("IDLE")
    );
    for line in [
        "            running: Mutex::new(running),",
        "    running: MutexGuard<'a, Running>,",
        "    pub(super) fn new(log: Arc<Mutex<Log>>) -> Self {",
        "        let made: Arc<Mutex<Option<PathBuf>>> = Arc::default();",
        "    sets: &'a Mutex<Sets>,",
        "    // running: Mutex<Running>,",
    ] {
        assert_eq!(lock_in(line), None, "{line}");
    }
}
