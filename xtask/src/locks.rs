//! Compares docs/internals/locking.md with the code: each lock of the layers that writers and
//! readers share, and its rank.

use crate::run::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Crates whose locks the document lists.
const CRATES: [&str; 10] = [
    "scrub", "repair", "writer", "engine", "accounts", "fs", "tree", "volume", "device", "lab",
];

/// A crate, and the files in it whose locks have no class of `locks`. Threads may acquire an
/// allocator's locks under any lock.
const WITHOUT_CLASSES: (&str, &str) = ("device", "buffer/");

/// Types that make a field or a static a lock.
const TYPES: [&str; 3] = ["Mutex<", "RwLock<", "ReentrantMutex<"];

/// A field, static or structure that is a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lock {
    name: String,
    /// The last parameter of the lock's type, if the type has several.
    class: Option<String>,
}

/// A lock's rank, from its declaration to `locks` or from a table of the document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// The rank: `leaf` or a number.
    rank: String,
    /// `yes`, `no`, `when exclusive` or `when shared`.
    over_device: String,
}

/// Returns the last parameter of the lock's type, if the type has several.
fn class_of(declared: &str) -> Option<String> {
    let start = TYPES
        .iter()
        .find_map(|lock| Some(declared.find(lock)? + lock.len()))?;
    let (mut depth, mut from, mut several) = (0_usize, start, false);
    for (at, letter) in declared[start..].char_indices() {
        match letter {
            '<' | '(' | '[' => depth += 1,
            '>' if depth == 0 => return several.then(|| declared[from..start + at].trim().to_owned()),
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => (from, several) = (start + at + 1, true),
            _ => {}
        }
    }
    None
}

/// Returns the lock that a line declares, if any.
fn lock_in(line: &str) -> Option<Lock> {
    let line = line.trim();
    let is_made =
        line.starts_with("//") || line.contains("fn ") || line.contains("let ") || line.contains("&'");
    if is_made || line.contains("Guard<") {
        return None;
    }
    let is_lock = |declared: &str| TYPES.iter().any(|lock| declared.contains(lock));
    let lock = |name: &str, declared: &str| Lock {
        name: name.to_owned(),
        class: class_of(declared),
    };
    if let Some((_, structure)) = line.split_once("struct ")
        && let Some((name, held)) = structure.split_once('(')
    {
        return is_lock(held).then(|| lock(name, held));
    }
    let (before, after) = line.split_once(": ")?;
    let name = before.rsplit(' ').next()?;
    let is_name = !name.is_empty()
        && name
            .chars()
            .all(|letter| letter.is_alphanumeric() || letter == '_');
    // A value in a constructor has no type in angle brackets.
    (is_name && is_lock(after)).then(|| lock(name, after))
}

/// Returns the class, the lock's name and its rank, from a line that declares them.
fn class_in(line: &str) -> Option<(String, String, Rank)> {
    let declared = line.trim().strip_prefix("lock_class!(")?;
    let mut parts = declared.splitn(3, ", ");
    let class = parts.next()?.rsplit(' ').next()?;
    let name = parts.next()?.trim_matches('"');
    let rank = parts.next()?;
    let number = rank
        .split_once("Rank::new(")
        .and_then(|(_, rest)| rest.split(')').next())
        .unwrap_or("leaf");
    let over_device = if rank.contains("over_device_when_exclusive") {
        "when exclusive"
    } else if rank.contains("over_device_when_shared") {
        "when shared"
    } else if rank.contains("over_device") {
        "yes"
    } else {
        "no"
    };
    let rank = Rank {
        rank: number.to_owned(),
        over_device: over_device.to_owned(),
    };
    Some((class.to_owned(), name.to_owned(), rank))
}

/// Returns the ranks in the document's tables, by the lock's file and name.
fn ranks_in(page: &str) -> BTreeMap<(String, String), Rank> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let mut found = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [rank, lock, _, over_device] = cells[..] else {
            continue;
        };
        let Some((names, place)) = lock.split_once(" in `") else {
            continue;
        };
        let place = place.split('`').next().unwrap_or_default();
        let known = ["yes", "no", "when exclusive", "when shared"];
        let over_device = known
            .iter()
            .find(|known| over_device.starts_with(**known))
            .unwrap_or_else(|| panic!("held over a device, one of {known:?}: {row}"));
        for name in names.split('`').skip(1).step_by(2) {
            let rank = Rank {
                rank: rank.to_owned(),
                over_device: (*over_device).to_owned(),
            };
            let other = found.insert((place.to_owned(), name.to_owned()), rank);
            assert_eq!(other, None, "each lock has one row: {row}");
        }
    }
    found
}

/// Returns each file of a crate below `src` with its text, without tests.
fn code_of(name: &str) -> Vec<(String, String)> {
    let top = root().unwrap().join("crates").join(name).join("src");
    let mut found = Vec::new();
    code_below(&top, &top, &mut found);
    found
}

fn code_below(folder: &Path, top: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(top).unwrap().display().to_string();
        if name.contains("test") {
            continue;
        }
        if path.is_dir() {
            code_below(&path, top, found);
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            found.push((name, code.to_owned()));
        }
    }
}

fn page() -> String {
    std::fs::read_to_string(root().unwrap().join("docs/internals/locking.md")).unwrap()
}

#[test]
fn every_lock_is_in_the_document() {
    let page = page();
    let mut missing = Vec::new();
    let mut count = 0;
    for name in CRATES {
        for (file, code) in code_of(name) {
            for lock in code.lines().filter_map(lock_in).collect::<BTreeSet<_>>() {
                count += 1;
                if !page.contains(&format!("`{}`", lock.name)) {
                    missing.push(format!("{} in crates/{name}/src/{file}", lock.name));
                }
            }
        }
    }
    assert!(count > 30, "locks are found: {count}");
    assert_eq!(
        missing, [""; 0],
        "docs/internals/locking.md: what each protects, its rank, what it is held over"
    );
}

#[test]
fn the_code_has_the_ranks_of_the_document() {
    let mut rows = ranks_in(&page());
    let mut wrong = Vec::new();
    let mut count = 0;
    for name in CRATES {
        for (file, code) in code_of(name) {
            if name == WITHOUT_CLASSES.0 && file.starts_with(WITHOUT_CLASSES.1) {
                continue;
            }
            let classes: Vec<_> = code.lines().filter_map(class_in).collect();
            for lock in code.lines().filter_map(lock_in) {
                let is_own = classes
                    .iter()
                    .any(|(class, name, _)| lock.class.as_ref() == Some(class) && *name == lock.name);
                if !is_own {
                    wrong.push(format!(
                        "`{}` of crates/{name}/src/{file} has no class of its name, declared in its file",
                        lock.name
                    ));
                }
            }
            for (_, lock, rank) in classes {
                count += 1;
                let is_here = |place: &str| file == place || file.starts_with(&format!("{place}/"));
                let row = rows
                    .keys()
                    .find(|(place, name)| *name == lock && (is_here(place) || file == format!("{place}.rs")))
                    .cloned();
                match row.and_then(|row| rows.remove(&row)) {
                    Some(row) if row == rank => {}
                    row => wrong.push(format!(
                        "`{lock}` of crates/{name}/src/{file} is {rank:?}, in the document {row:?}"
                    )),
                }
            }
        }
    }
    wrong.extend(
        rows.into_keys()
            .map(|(place, lock)| format!("`{lock}` in `{place}` is only in the document")),
    );
    assert!(count > 20, "classes are found: {count}");
    assert_eq!(wrong, [""; 0], "docs/internals/locking.md");
}

#[test]
fn a_class_is_read_as_it_is_declared() {
    let rank = |rank: &str, over_device: &str| Rank {
        rank: rank.to_owned(),
        over_device: over_device.to_owned(),
    };
    let named = |class: &str, name: &str, rank| Some((class.to_owned(), name.to_owned(), rank));
    assert_eq!(
        class_in("lock_class!(pub(crate) EditLock, \"running\", Rank::new(40));"),
        named("EditLock", "running", rank("40", "no"))
    );
    assert_eq!(
        class_in("lock_class!(FileLock, \"state\", Rank::new(10).over_device().several());"),
        named("FileLock", "state", rank("10", "yes"))
    );
    assert_eq!(
        class_in("lock_class!(InPlace, \"in_place\", Rank::new(30).over_device_when_shared());"),
        named("InPlace", "in_place", rank("30", "when shared"))
    );
    assert_eq!(
        class_in("lock_class!(FilesLock, \"files\", Rank::LEAF);"),
        named("FilesLock", "files", rank("leaf", "no"))
    );
    assert_eq!(class_in("use buttress_locks::lock_class;"), None);

    let page = "| 40 | `running` in `transaction.rs` (the *edit lock*) | all | no. But |\n\
                | leaf | `a`, `b` in `space` | sums | no |\n";
    let rows = ranks_in(page);
    let key = |place: &str, name: &str| (place.to_owned(), name.to_owned());
    assert_eq!(
        rows.get(&key("transaction.rs", "running")),
        Some(&rank("40", "no"))
    );
    assert_eq!(rows.get(&key("space", "b")), Some(&rank("leaf", "no")));
    assert_eq!(rows.len(), 3);
}

#[test]
fn fields_and_statics_are_locks_and_variables_are_not() {
    let found = |line: &str| lock_in(line).map(|lock| (lock.name, lock.class));
    let lock = |name: &str, class: Option<&str>| Some((name.to_owned(), class.map(str::to_owned)));
    assert_eq!(
        found("    running: Mutex<Running, EditLock>,"),
        lock("running", Some("EditLock"))
    );
    assert_eq!(
        found("    pub(crate) in_place: RwLock<()>,"),
        lock("in_place", None)
    );
    assert_eq!(
        found("pub(crate) struct LiveTrees(RwLock<HashMap<TreeId, LiveTree>, TreesLock>);"),
        lock("LiveTrees", Some("TreesLock"))
    );
    assert_eq!(
        found("    shards: Box<[RwLock<Shard, ShardLock>; SHARDS]>,"),
        lock("shards", Some("ShardLock"))
    );
    assert_eq!(
        found("    held: Mutex<BTreeMap<Generation, usize>>,"),
        lock("held", None)
    );
    assert_eq!(lock_in("pub(crate) struct Id(u64);"), None);
    assert_eq!(found("    log: Arc<Mutex<Log>>,"), lock("log", None));
    assert_eq!(
        found("static IDLE: Mutex<Idle> = Mutex::new(Idle {"),
        lock("IDLE", None)
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
