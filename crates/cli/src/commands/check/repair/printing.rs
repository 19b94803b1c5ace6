//! The output of a repair: the plan, and both verdicts side by side.

use std::io::Write;

use anyhow::Result;
use buttress::repair::{Applied, Done, Left, Lost, Plan, Step, severity};
use serde_json::{Map, Value, json};

use super::Shown;
use crate::context::Context;
use crate::output::json::insert_name;

/// The names of the grades, in the order of [`severity`].
const GRADES: [&str; 4] = ["loss", "unsafe", "inconsistent", "redundancy"];

/// Prints the steps of a plan, and the findings without a step.
pub(super) fn plan(context: &Context, out: &mut dyn Write, plan: &Plan) -> Result<()> {
    if plan.steps.is_empty() && plan.left.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    for (number, step) in (1_u64..).zip(&plan.steps) {
        print_step(context, out, number, step)?;
    }
    for left in &plan.left {
        print_left(context, out, left)?;
    }
    Ok(())
}

fn print_step(context: &Context, out: &mut dyn Write, number: u64, step: &Step) -> Result<()> {
    let codes: Vec<&str> = step.codes.iter().copied().collect();
    write!(out, "step {number} [{}]: ", codes.join(", "))?;
    out.write_all(&context.printable(step.what.as_bytes()))?;
    writeln!(out)?;
    for finding in &step.findings {
        out.write_all(b"\tfinding: ")?;
        out.write_all(&context.printable(finding.as_bytes()))?;
        writeln!(out)?;
    }
    writeln!(out, "\tevidence: {}", step.evidence)?;
    writeln!(out, "\tmay lose: {}", step.loss)?;
    for path in &step.affected {
        out.write_all(b"\taffects: ")?;
        out.write_all(&context.printable(path))?;
        writeln!(out)?;
    }
    Ok(())
}

fn print_left(context: &Context, out: &mut dyn Write, left: &Left) -> Result<()> {
    write!(out, "not repaired [{}]: ", left.code)?;
    out.write_all(&context.printable(left.finding.as_bytes()))?;
    writeln!(out, ": {}", left.reason)?;
    Ok(())
}

/// Prints the result of a repair, with both verdicts side by side. The plan has already listed the
/// findings that it leaves.
pub(super) fn outcome(context: &Context, out: &mut dyn Write, shown: &Shown<'_>) -> Result<()> {
    let repaired = shown.repaired;
    if repaired.done.is_empty() && repaired.refused.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    for step in &repaired.refused {
        let codes: Vec<&str> = step.codes.iter().copied().collect();
        write!(out, "not allowed [{}]: ", codes.join(", "))?;
        out.write_all(&context.printable(step.what.as_bytes()))?;
        let first = codes.first().copied().unwrap_or_default();
        writeln!(
            out,
            ": it may lose {}; to allow it, give --yes-to {first}",
            step.loss
        )?;
    }
    for done in &repaired.done {
        if let Applied::Nothing(reason) = done.applied {
            write!(out, "unchanged: ")?;
            out.write_all(&context.printable(done.step.what.as_bytes()))?;
            writeln!(out, ": {reason}")?;
        }
    }
    for lost in &repaired.lost {
        print_lost(context, out, lost)?;
    }
    let (before, after) = (severity(shown.before), severity(&repaired.after));
    writeln!(out, "{:<14} {:>8} {:>8}", "findings", "before", "after")?;
    for (grade, (before, after)) in GRADES.iter().zip(before.iter().zip(&after)) {
        writeln!(out, "{grade:<14} {before:>8} {after:>8}")?;
    }
    let is_known = |left: &Left| {
        let mut known = shown.plan.left.iter();
        known.any(|known| known.finding == left.finding && known.reason == left.reason)
    };
    for left in repaired.left.iter().filter(|left| !is_known(left)) {
        print_left(context, out, left)?;
    }
    Ok(())
}

fn print_lost(context: &Context, out: &mut dyn Write, lost: &Lost) -> Result<()> {
    write!(
        out,
        "lost: subvolume {}, inode {}: {}",
        lost.subvolume, lost.inode, lost.what
    )?;
    for path in &lost.paths {
        out.write_all(b" /")?;
        out.write_all(&context.printable(path))?;
    }
    writeln!(out)?;
    Ok(())
}

/// Returns the JSON document of a check with a repair: that of the check before, and `repair`.
pub(super) fn as_json(image: &str, shown: &Shown<'_>) -> Value {
    let repaired = shown.repaired;
    let severity_of = |report| -> Map<String, Value> {
        let counts = GRADES.iter().zip(severity(report));
        counts
            .map(|(grade, count)| ((*grade).to_owned(), json!(count)))
            .collect()
    };
    let left = |left: &Left| json!({ "code": left.code, "finding": left.finding, "reason": left.reason });
    let repair = json!({
        "kept": repaired.kept.name(),
        "overlay": shown.overlay.map(|overlay| overlay.to_string_lossy()),
        "committed": shown.committed,
        "severity-before": severity_of(shown.before),
        "severity-after": severity_of(&repaired.after),
        "plan": shown.plan.steps.iter().map(step_as_json).collect::<Vec<_>>(),
        "blocked": shown.plan.blocked,
        "done": repaired.done.iter().map(done_as_json).collect::<Vec<_>>(),
        "refused": repaired.refused.iter().map(step_as_json).collect::<Vec<_>>(),
        "left": repaired.left.iter().map(left).collect::<Vec<_>>(),
        "lost": repaired.lost.iter().map(lost_as_json).collect::<Vec<_>>(),
        "after": super::super::as_json(&repaired.after, image, &shown.uuid),
    });
    let mut document = super::super::as_json(shown.before, image, &shown.uuid);
    if let Value::Object(members) = &mut document {
        members.insert("repair".to_owned(), repair);
    }
    document
}

fn paths_as_json<'p>(paths: impl Iterator<Item = &'p Vec<u8>>) -> Vec<Value> {
    let object = |path: &Vec<u8>| {
        let mut object = Map::new();
        insert_name(&mut object, "path", path);
        Value::Object(object)
    };
    paths.map(object).collect()
}

fn step_as_json(step: &Step) -> Value {
    json!({
        "codes": step.codes,
        "change": step.what,
        "findings": step.findings,
        "evidence": step.evidence,
        "may-lose": step.loss.to_string(),
        "needs-consent": step.loss.needs_consent(),
        "affected": paths_as_json(step.affected.iter()),
    })
}

fn done_as_json(done: &Done) -> Value {
    let reason = match done.applied {
        Applied::Changed => None,
        Applied::Nothing(reason) => Some(reason),
    };
    json!({
        "round": done.round,
        "codes": done.step.codes,
        "change": done.step.what,
        "changed": reason.is_none(),
        "reason": reason,
    })
}

fn lost_as_json(lost: &Lost) -> Value {
    json!({
        "subvolume": lost.subvolume.get(),
        "inode": lost.inode.get(),
        "difference": lost.what,
        "paths": paths_as_json(lost.paths.iter()),
    })
}
