//! Filters as words of the command line: parsed as btrfs-progs does, and printed in the same form.
//!
//! `-dusage=10..50,devid=1`: filters of one type of block groups, joined by commas. If a filter
//! name is repeated, the later filter replaces the earlier one. Sizes may have suffixes, which
//! btrfs-progs 6.2 refuses.
//!
//! Source: btrfs-balance(8), section "Filters"; messages as btrfs-progs 6.2 prints them.

use anyhow::{Result, anyhow, bail};
use buttress::balance::{BalanceArgumentFlags as Filter, BalanceArguments};
use buttress::{BlockGroupFlags, DeviceId, Logical, Physical, Profile};

use crate::globals::parse_size;

/// Parses the balance filters of one option; empty for no filter.
pub(super) fn parse(text: &str) -> Result<BalanceArguments> {
    let mut filters = BalanceArguments::NONE;
    for word in text.split(',').filter(|word| !word.is_empty()) {
        let (name, value) = word.split_once('=').map_or((word, ""), |pair| pair);
        parse_filter(&mut filters, name, value)?;
    }
    if filters.flags.contains(Filter::SOFT) && !filters.flags.contains(Filter::CONVERT) {
        bail!("'soft' option can be used only when converting profiles");
    }
    if filters.flags.contains(Filter::DRANGE) && !filters.flags.contains(Filter::DEVID) {
        bail!("drange filter must be used with devid filter");
    }
    Ok(filters)
}

fn parse_filter(filters: &mut BalanceArguments, name: &str, value: &str) -> Result<()> {
    const WITH_VALUE: [&str; 8] = [
        "profiles", "usage", "devid", "drange", "vrange", "convert", "limit", "stripes",
    ];
    if WITH_VALUE.contains(&name) && value.is_empty() {
        bail!("the {name} filter requires an argument");
    }
    let invalid = || anyhow!("invalid {name} argument: {value}");
    match name {
        "profiles" => {
            filters.profiles = value
                .split('|')
                .map(|name| profile(name).map(|profile| profile.flag().profile_in_set()))
                .collect::<Result<BlockGroupFlags>>()?;
            filters.flags |= Filter::PROFILES;
        }
        "usage" => parse_usage(filters, value)?,
        "limit" => parse_limit(filters, value)?,
        "devid" => {
            let id: u64 = value.parse().map_err(|_| invalid())?;
            if id == 0 {
                return Err(invalid());
            }
            filters.device = DeviceId::new(id);
            filters.flags |= Filter::DEVID;
        }
        "drange" => {
            let (start, end) = byte_range(name, value)?;
            (filters.physical_start, filters.physical_end) = (Physical::new(start), Physical::new(end));
            filters.flags |= Filter::DRANGE;
        }
        "vrange" => {
            let (start, end) = byte_range(name, value)?;
            (filters.logical_start, filters.logical_end) = (Logical::new(start), Logical::new(end));
            filters.flags |= Filter::VRANGE;
        }
        "convert" => *filters = filters.with_target(profile(value)?),
        "soft" => filters.flags |= Filter::SOFT,
        "stripes" => {
            let range = number_range(value)?.ok_or_else(invalid)?;
            (filters.stripes_min, filters.stripes_max) = range;
            filters.flags |= Filter::STRIPES_RANGE;
        }
        _ => bail!("unrecognized balance option: {name}"),
    }
    Ok(())
}

fn parse_usage(filters: &mut BalanceArguments, value: &str) -> Result<()> {
    /// The greatest percentage that the command line takes.
    const WHOLE: u32 = 100;
    let invalid = || anyhow!("invalid usage argument: {value}");
    let Some((least, most)) = number_range(value)? else {
        let percent: u32 = value.parse().map_err(|_| invalid())?;
        if percent > WHOLE {
            return Err(invalid());
        }
        *filters = filters.with_usage(percent);
        return Ok(());
    };
    let most = if value.ends_with("..") { WHOLE } else { most };
    if least > WHOLE || most > WHOLE {
        return Err(invalid());
    }
    (filters.usage_min, filters.usage_max) = (least, most);
    filters.flags = filters.flags.difference(Filter::USAGE) | Filter::USAGE_RANGE;
    Ok(())
}

fn parse_limit(filters: &mut BalanceArguments, value: &str) -> Result<()> {
    match number_range(value)? {
        Some((least, most)) => {
            (filters.limit_min, filters.limit_max) = (least, most);
            filters.flags = filters.flags.difference(Filter::LIMIT) | Filter::LIMIT_RANGE;
        }
        None => {
            let limit = value.parse();
            *filters = filters.with_limit(limit.map_err(|_| anyhow!("invalid limit argument: {value}"))?);
        }
    }
    Ok(())
}

/// Parses the name of a profile, in any case.
fn profile(name: &str) -> Result<Profile> {
    let mut all = Profile::ALL.into_iter();
    all.find(|profile| profile.name().eq_ignore_ascii_case(name))
        .ok_or_else(|| anyhow!("unknown profile: {name}"))
}

/// Parses `least..most`, of which each end may be absent. Returns `None` if the value lacks the
/// dots.
fn number_range(value: &str) -> Result<Option<(u32, u32)>> {
    let Some((least, most)) = value.split_once("..") else {
        return Ok(None);
    };
    let end = |text: &str, absent: u32| match text {
        "" => Ok(absent),
        text => text.parse().map_err(|_| anyhow!("invalid range: {value}")),
    };
    if least.is_empty() && most.is_empty() {
        bail!("invalid range: {value}");
    }
    let (least, most) = (end(least, 0)?, end(most, u32::MAX)?);
    if least > most {
        bail!("range {value} doesn't make sense");
    }
    Ok(Some((least, most)))
}

/// Parses `start..end` in bytes; the end is exclusive.
fn byte_range(name: &str, value: &str) -> Result<(u64, u64)> {
    let invalid = || anyhow!("invalid {name} argument: {value}");
    let (start, end) = value.split_once("..").ok_or_else(invalid)?;
    let bound = |text: &str, absent: u64| match text {
        "" => Ok(absent),
        text => parse_size(text).map_err(|_| invalid()),
    };
    if start.is_empty() && end.is_empty() {
        return Err(invalid());
    }
    let (start, end) = (bound(start, 0)?, bound(end, u64::MAX)?);
    if start >= end {
        bail!("range {value} not allowed");
    }
    Ok((start, end))
}

/// Returns the filters in the syntax of the command line, which [`parse`] reads.
pub(super) fn to_words(filters: &BalanceArguments) -> String {
    let has = |filter: Filter| filters.flags.contains(filter);
    let mut words: Vec<String> = Vec::new();
    if has(Filter::CONVERT) {
        let target = names(filters.target);
        words.push(format!("convert={target}"));
    }
    words.extend(has(Filter::SOFT).then(|| "soft".to_owned()));
    if has(Filter::PROFILES) {
        words.push(format!("profiles={}", names(filters.profiles)));
    }
    if has(Filter::USAGE) {
        words.push(format!("usage={}", filters.usage()));
    }
    if has(Filter::USAGE_RANGE) {
        words.push(format!("usage={}..{}", filters.usage_min, filters.usage_max));
    }
    if has(Filter::DEVID) {
        words.push(format!("devid={}", filters.device));
    }
    if has(Filter::DRANGE) {
        words.push(format!(
            "drange={}..{}",
            filters.physical_start, filters.physical_end
        ));
    }
    if has(Filter::VRANGE) {
        words.push(format!(
            "vrange={}..{}",
            filters.logical_start, filters.logical_end
        ));
    }
    if has(Filter::LIMIT) {
        words.push(format!("limit={}", filters.limit()));
    }
    if has(Filter::LIMIT_RANGE) {
        words.push(range("limit", filters.limit_min, filters.limit_max));
    }
    if has(Filter::STRIPES_RANGE) {
        words.push(range("stripes", filters.stripes_min, filters.stripes_max));
    }
    words.join(",")
}

/// Returns the filters as `btrfs balance status -v` prints them.
pub(super) fn described(filters: &BalanceArguments) -> String {
    let has = |filter: Filter| filters.flags.contains(filter);
    let mut parts = vec![
        if has(Filter::CONVERT) {
            "converting"
        } else {
            "balancing"
        }
        .to_owned(),
    ];
    if has(Filter::CONVERT) {
        parts.push(format!("target={}", filters.target.bits()));
        parts.push(format!(
            "soft is {}",
            if has(Filter::SOFT) { "on" } else { "off" }
        ));
    }
    if has(Filter::PROFILES) {
        parts.push(format!("profiles={}", filters.profiles.bits()));
    }
    let rest = BalanceArguments {
        flags: filters
            .flags
            .difference(Filter::CONVERT | Filter::SOFT | Filter::PROFILES),
        ..*filters
    };
    let words = to_words(&rest);
    parts.extend(
        words
            .split(',')
            .filter(|word| !word.is_empty())
            .map(str::to_owned),
    );
    parts.join(", ")
}

/// Returns a range as btrfs-progs prints it: without an end that bounds nothing.
fn range(name: &str, least: u32, most: u32) -> String {
    match most {
        u32::MAX => format!("{name}={least}.."),
        most => format!("{name}={least}..{most}"),
    }
}

/// Returns the names of a set of profiles, joined by `|`.
fn names(set: BlockGroupFlags) -> String {
    let names: Vec<String> = Profile::ALL
        .into_iter()
        .filter(|profile| set.contains(profile.flag().profile_in_set()))
        .map(|profile| profile.name().to_ascii_lowercase())
        .collect();
    names.join("|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn printed_filters_are_parsed_back() {
        for text in [
            "",
            "usage=0",
            "usage=10..50",
            "usage=0..7,devid=3,drange=4096..8192,vrange=0..1048576,limit=2..10,stripes=1..4",
            "convert=raid1c3,soft,profiles=single|dup,limit=3",
            "convert=single",
            "limit=3..,stripes=2..",
        ] {
            assert_eq!(to_words(&parse(text).unwrap()), text);
        }
    }

    #[test]
    fn words_of_btrfs_progs_are_taken() {
        let range = parse("usage=..50,limit=..3").unwrap();
        assert_eq!((range.usage_min, range.usage_max), (0, 50));
        assert_eq!((range.limit_min, range.limit_max), (0, 3));
        assert_eq!(parse("usage=50..").unwrap().usage_max, 100);
        let flags = Filter::USAGE | Filter::LIMIT;
        assert_eq!(parse("usage=5,,limit=1").unwrap().flags, flags);
        assert_eq!(parse("usage=5..6,usage=7").unwrap(), parse("usage=7").unwrap());
        let profiles = parse("profiles=RAID1|SINGLE").unwrap().profiles;
        assert_eq!(profiles.bits(), 281_474_976_710_672);
        let sizes = parse("vrange=1M..5M").unwrap();
        assert_eq!(
            (sizes.logical_start.get(), sizes.logical_end.get()),
            (1 << 20, 5 << 20)
        );
        assert_eq!(parse("convert=DUP").unwrap().target, BlockGroupFlags::DUP);
    }

    #[test]
    fn wrong_filters_are_refused_by_name() {
        for (text, expected) in [
            ("foo", "unrecognized balance option: foo"),
            ("usage", "the usage filter requires an argument"),
            ("profiles=", "the profiles filter requires an argument"),
            ("usage=101", "invalid usage argument: 101"),
            ("usage=0..101", "invalid usage argument: 0..101"),
            ("usage=50..20", "range 50..20 doesn't make sense"),
            ("limit=a", "invalid limit argument: a"),
            ("limit=..", "invalid range: .."),
            ("devid=0", "invalid devid argument: 0"),
            ("stripes=3", "invalid stripes argument: 3"),
            ("vrange=5..5", "range 5..5 not allowed"),
            ("vrange=5", "invalid vrange argument: 5"),
            ("profiles=raid9", "unknown profile: raid9"),
            ("soft", "'soft' option can be used only when converting profiles"),
            ("drange=1..5", "drange filter must be used with devid filter"),
        ] {
            assert_eq!(error(text), expected, "{text}");
        }
    }

    #[test]
    fn described_as_by_btrfs_progs() {
        let described = |text| described(&parse(text).unwrap());
        assert_eq!(described("usage=10"), "balancing, usage=10");
        assert_eq!(described(""), "balancing");
        assert_eq!(
            described("convert=dup,soft,profiles=single|dup,limit=3"),
            "converting, target=32, soft is on, profiles=281474976710688, limit=3"
        );
    }
}
