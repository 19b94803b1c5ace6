//! Messages at the end of a balance, and the plan of a dry run.

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use buttress::balance::{BalanceEnd, BalanceSummary, Candidate, Choice};
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::output::size::Units;

/// Prints how a run ended, in the words of btrfs-progs.
pub(super) fn ended(
    context: &Context,
    command: &'static str,
    image: &Path,
    summary: &BalanceSummary,
) -> Result<Outcome> {
    let counts = summary.counts;
    let (end, line) = match summary.end {
        BalanceEnd::Finished => (
            "finished",
            format!(
                "Done, had to relocate {} out of {} chunks",
                counts.relocated, counts.considered
            ),
        ),
        BalanceEnd::Paused => ("paused", "balance paused by user".to_owned()),
        BalanceEnd::Cancelled => ("cancelled", "balance canceled by user".to_owned()),
    };
    let left = summary.without_space.iter();
    let document = json!({
        "end": end,
        "relocated": counts.relocated,
        "expected": counts.expected,
        "considered": counts.considered,
        "data_bytes": summary.moved.data_bytes,
        "tree_blocks": summary.moved.tree_blocks,
        "without_space": left.map(|left| json!({
            "logical": left.group.get(),
            "used_bytes": left.used.get(),
        })).collect::<Vec<Value>>(),
        "left_groups": summary.moved.left_groups,
        "process": null,
    });
    context.print_answer(command, document, format_args!("{line}"))?;
    if summary.moved.left_groups > 0 {
        context.notice(format_args!(
            "{}: {} block groups are empty; they are removed once readers of their old content end",
            image.display(),
            summary.moved.left_groups
        ));
    }
    for left in &summary.without_space {
        context.warn(format_args!(
            "{}: block group {} stays: no space for its {} bytes; free space, or add a device",
            image.display(),
            left.group,
            left.used
        ));
    }
    Ok(match summary.without_space.is_empty() {
        true => Outcome::Done,
        false => Outcome::Negative,
    })
}

/// Prints the block groups that a balance would move.
pub(super) fn plan(context: &Context, units: Units, choice: &Choice) -> Result<Outcome> {
    if context.json() {
        let group = |group: &Candidate| {
            json!({
                "logical": group.start.get(),
                "length": group.length.get(),
                "used_bytes": group.used.get(),
                "type": group.flags.type_name(),
                "profile": profile(group),
            })
        };
        let document = json!({
            "considered": choice.starts.len(),
            "bytes": choice.bytes().get(),
            "block_groups": choice.groups.iter().map(group).collect::<Vec<Value>>(),
        });
        context.print_json("balance-start", document)?;
        return Ok(Outcome::Done);
    }
    let mut out = context.stdout();
    for group in &choice.groups {
        writeln!(
            out,
            "{}, {} at {}: {} of {}",
            group.flags.type_name(),
            profile(group),
            group.start,
            units.text(group.used.get()),
            units.text(group.length.get())
        )?;
    }
    writeln!(
        out,
        "would relocate {} out of {} chunks, {}",
        choice.groups.len(),
        choice.starts.len(),
        units.text(choice.bytes().get())
    )?;
    out.flush()?;
    Ok(Outcome::Done)
}

fn profile(group: &Candidate) -> &'static str {
    let profile = group.flags.profile();
    profile.map_or("unknown", buttress::Profile::name)
}
