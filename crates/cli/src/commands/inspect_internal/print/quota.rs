//! Items of the quota tree.
//!
//! Source: on-disk format documentation, sections QGROUP_STATUS, QGROUP_INFO, QGROUP_LIMIT; "Simple quotas".

use super::Options;
use super::fields::{Fields, Short};
use super::flags;
use super::sink::Sink;
use super::value::{PlainHex, Signed};

/// Prints a QGROUP_STATUS.
pub(super) fn status(sink: &mut impl Sink, data: &[u8], options: &Options) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let (version, generation) = (fields.u64()?, fields.u64()?);
    let (flags, scan) = (fields.u64()?, fields.u64()?);
    sink.begin(2);
    sink.field("version", version);
    sink.field("generation", generation);
    sink.field("flags", flags::quota_status(flags));
    sink.field("scan", scan);
    if options.simple_quotas {
        sink.field("enable_gen", fields.u64()?);
    }
    sink.end();
    Ok(())
}

/// Prints a QGROUP_INFO.
pub(super) fn info(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let lines: [&[&str]; 3] = [
        &["generation"],
        &["referenced", "referenced_compressed"],
        &["exclusive", "exclusive_compressed"],
    ];
    for names in lines {
        sink.begin(2);
        for name in names {
            sink.field(name, fields.u64()?);
        }
        sink.end();
    }
    Ok(())
}

/// Prints a QGROUP_LIMIT.
pub(super) fn limit(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    sink.begin(2);
    sink.field("flags", PlainHex(fields.u64()?));
    sink.end();
    for names in [
        ["max_referenced", "max_exclusive"],
        ["rsv_referenced", "rsv_exclusive"],
    ] {
        sink.begin(2);
        for name in names {
            sink.field(name, Signed(fields.u64()?));
        }
        sink.end();
    }
    Ok(())
}
