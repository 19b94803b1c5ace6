//! The status file of a balance that is running: which process it is, its filters, and how far it is.
//!
//! The file is at `IMAGE.balance-status`, or where `--status-file` says. The volume itself records
//! all lasting state. A run that ends in order removes the file, unless it failed in the
//! background: then the file has the cause until the next run.

use buttress::balance::{BalanceCounts, BalanceFlags, BalanceItem};
use serde_json::{Value, json};

use super::filters;
use crate::background::this_process;
use crate::status_files::{self, process_from_json, process_to_json};

/// The version of the file's format.
const VERSION: u64 = 1;

/// A balance, as its status file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The process, and when it began, by the kernel's count.
    pub(super) process: (u32, u64),
    pub(super) item: BalanceItem,
    pub(super) counts: BalanceCounts,
    /// Why the balance ended, if it failed.
    pub(super) error: Option<String>,
}

/// The option of each type of block groups.
pub(super) const TYPES: [(BalanceFlags, &str, &str); 3] = [
    (BalanceFlags::DATA, "data", "DATA"),
    (BalanceFlags::METADATA, "metadata", "METADATA"),
    (BalanceFlags::SYSTEM, "system", "SYSTEM"),
];

/// Returns what a balance works on, as JSON: the filters of each type.
pub(super) fn item_to_json(item: &BalanceItem) -> Value {
    let mut object = serde_json::Map::new();
    for (flag, name, _) in TYPES {
        if item.flags.contains(flag) {
            object.insert(name.to_owned(), filters::to_words(of_type(item, flag)).into());
        }
    }
    object.insert(
        "force".to_owned(),
        item.flags.contains(BalanceFlags::FORCE).into(),
    );
    Value::Object(object)
}

/// Returns the filters of one type.
pub(super) const fn of_type(item: &BalanceItem, flag: BalanceFlags) -> &buttress::balance::BalanceArguments {
    match flag {
        BalanceFlags::DATA => &item.data,
        BalanceFlags::METADATA => &item.metadata,
        _ => &item.system,
    }
}

fn item_from_json(value: &Value) -> Option<BalanceItem> {
    let mut flags = BalanceFlags::empty();
    let mut filters_of = |flag: BalanceFlags, name: &str| match value.get(name) {
        None => Some(buttress::balance::BalanceArguments::NONE),
        Some(words) => {
            flags |= flag;
            filters::parse(words.as_str()?).ok()
        }
    };
    let [data, metadata, system] = TYPES.map(|(flag, name, _)| filters_of(flag, name));
    flags.set(BalanceFlags::FORCE, value.get("force")?.as_bool()?);
    Some(BalanceItem {
        flags,
        data: data?,
        metadata: metadata?,
        system: system?,
    })
}

impl Record {
    /// Returns the record of a balance that this process begins.
    pub(super) fn beginning(item: BalanceItem) -> Self {
        Self {
            process: this_process(),
            item,
            counts: BalanceCounts::default(),
            error: None,
        }
    }
}

impl status_files::Record for Record {
    const JOB: &'static str = "a balance";
    const REMEDY: &'static str = "remove it, or name another file with --status-file";

    fn process(&self) -> (u32, u64) {
        self.process
    }

    fn to_json(&self) -> Value {
        json!({
            "version": VERSION,
            "process": process_to_json(self.process),
            "filters": item_to_json(&self.item),
            "expected": self.counts.expected,
            "considered": self.counts.considered,
            "relocated": self.counts.relocated,
            "error": self.error,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let number = |name: &str| value.get(name)?.as_u64();
        if number("version")? != VERSION {
            return None;
        }
        Some(Self {
            process: process_from_json(value.get("process")?)?,
            item: item_from_json(value.get("filters")?)?,
            counts: BalanceCounts {
                expected: number("expected")?,
                considered: number("considered")?,
                relocated: number("relocated")?,
            },
            error: value.get("error")?.as_str().map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status_files::Record as _;

    #[test]
    fn record_is_read_back() {
        let record = Record {
            process: this_process(),
            item: BalanceItem {
                flags: BalanceFlags::DATA | BalanceFlags::SYSTEM | BalanceFlags::FORCE,
                data: filters::parse("usage=5,limit=2").unwrap(),
                metadata: filters::parse("").unwrap(),
                system: filters::parse("convert=dup,soft").unwrap(),
            },
            counts: BalanceCounts {
                expected: 1,
                considered: 2,
                relocated: 3,
            },
            error: Some("cause".to_owned()),
        };
        assert_eq!(Record::from_json(&record.to_json()), Some(record.clone()));
        assert!(record.is_alive());
    }
}
