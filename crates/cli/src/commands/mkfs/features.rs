//! The features of `-O`, which mkfs and convert share.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use buttress::mkfs::Feature;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::{Advice, Outcome};

/// Prints the features that can be selected.
pub(crate) fn list(context: &Context) -> Result<Outcome> {
    if context.json() {
        let features = Feature::ALL.iter();
        let features =
            features.map(|feature| json!({ "name": feature.name(), "default": feature.is_default() }));
        context.print_json("mkfs-features", Value::Array(features.collect()))?;
        return Ok(Outcome::Done);
    }
    let mut out = context.stdout();
    writeln!(out, "Filesystem features available:")?;
    for feature in Feature::ALL {
        let default = if feature.is_default() { "default" } else { "" };
        writeln!(out, "{:<20}- {default}", feature.name())?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}

/// Returns true if a list asks for the names of all features.
pub(crate) fn asks_for_list<'a>(lists: impl Iterator<Item = &'a String>) -> bool {
    lists
        .flat_map(|list| list.split(','))
        .any(|word| word == "list-all")
}

/// Returns the features of the words of all lists; `^NAME` disables a feature.
pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Vec<(Feature, bool)>> {
    let mut features = Vec::new();
    for word in words {
        let (name, wanted) = word.strip_prefix('^').map_or((word, true), |name| (name, false));
        if name == "zoned" && wanted {
            return Err(anyhow::anyhow!("feature {name} is not supported yet"));
        }
        let feature = Feature::from_name(name).with_context(|| format!("unknown feature {name:?}"));
        let advice = || Advice::new("`buttress mkfs -O list-all` prints all of them");
        features.push((feature.with_context(advice)?, wanted));
    }
    Ok(features)
}
