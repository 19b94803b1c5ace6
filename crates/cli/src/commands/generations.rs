//! `buttress generations IMAGE`: the commits of a volume whose roots are still known.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use buttress::ByteCount;
use buttress::salvage::{Origin, State, Survey, Surveyor, ViewOptions, open_state, states};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::{DEFAULT_CACHE_BYTES, Uses};
use crate::manual::{Example, example};
use crate::opening::states::{identity_of, index_of};
use crate::output::terminal::Stdout;
use crate::output::time::Clock;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::Subcommand;
use crate::target::Target;

/// List the older states of a volume that are still on its devices
///
/// Superblocks name the last four commits. `buttress rescue scan` finds older ones, and keeps them in
/// IMAGE.scan. A state is whole if all blocks of its trees can be read. File content is not read: a
/// later commit can have overwritten it, which reading then reports. To read a state, give
/// --generation N to any command that reads.
#[derive(Args, Debug)]
pub struct Generations {
    /// The index of a scan [default: the image's name with .scan appended, if the file exists]
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Generations {
    const NAME: &'static str = "generations";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress generations disk.img",
            "Lists the commits that can still be read",
        ),
        example(
            "buttress generations --index /var/tmp/disk.scan disk.img",
            "Lists older commits, too, which a scan found",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses {
            state: false,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let devices = context.open_devices(std::slice::from_ref(&target.image))?;
        let index = index_of(context, &target.image, self.index.as_deref(), &devices)?.map(Arc::new);
        let progress = context.progress();
        let cancelling = Cancelling::start_reading(&progress)?;
        let watch = Watch::start(context, "generations", progress.clone());
        let identity = identity_of(&target.image, &devices, index.as_deref(), &progress)?;
        let found = states(&devices, identity.fsid, index.as_deref())?;
        if found.is_empty() {
            return Err(anyhow!("{}: no root tree is known", target.image.display())).context(Advice::new(
                "to search the whole device, run `buttress rescue scan IMAGE`",
            ));
        }
        let globals = context.globals();
        let options = ViewOptions {
            // Clamp: without the option, the default budget counts.
            cache: ByteCount::new(globals.cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES)),
            rescue: globals.rescue(),
            degraded: globals.degraded,
            index,
        };
        let mut surveyor = Surveyor::new();
        let mut listing = Listing::start(context)?;
        for state in &found {
            let survey = match open_state(&devices, &identity, state, &options) {
                Ok(view) => Ok(surveyor.survey(&view, &progress)?),
                Err(error) => Err(anyhow!(error)),
            };
            listing.add(state, &survey)?;
        }
        watch.end_as(true);
        drop(cancelling);
        listing.finish(context)
    }
}

/// The list of states, written as far as it is known.
struct Listing {
    /// The elements of the JSON document; `None` for text.
    json: Option<Vec<Value>>,
    out: Stdout,
    clock: Clock,
}

impl Listing {
    fn start(context: &Context) -> Result<Self> {
        let mut listing = Self {
            json: context.json().then(Vec::new),
            out: context.stdout(),
            clock: Clock::system(),
        };
        if listing.json.is_none() {
            writeln!(
                listing.out,
                "{:>10}  {:19}  {:10}  {:>10}  state",
                "generation", "time", "named by", "subvolumes"
            )?;
        }
        Ok(listing)
    }

    fn add(&mut self, state: &State, survey: &Result<Survey>) -> Result<()> {
        if let Some(elements) = &mut self.json {
            elements.push(as_json(state, survey));
            return Ok(());
        }
        let (time, subvolumes) = match survey {
            Ok(survey) => {
                let time = survey.changed.map(|time| self.clock.plain(time.seconds));
                (time, survey.subvolumes.to_string())
            }
            Err(_) => (None, "-".to_owned()),
        };
        let text = match survey {
            Ok(survey) => describe(survey),
            Err(error) => format!("does not open: {error:#}"),
        };
        writeln!(
            self.out,
            "{:>10}  {:19}  {:10}  {subvolumes:>10}  {text}",
            state.generation(),
            // Clamp: the time of a state that does not open is unknown.
            time.as_deref().unwrap_or("-"),
            origin(state),
        )?;
        self.out.flush()?;
        Ok(())
    }

    fn finish(self, context: &Context) -> Result<Outcome> {
        if let Some(elements) = self.json {
            context.print_json(Generations::NAME, Value::Array(elements))?;
        }
        Ok(Outcome::Done)
    }
}

fn origin(state: &State) -> &'static str {
    match state.origin {
        Origin::Superblock(_) => "superblock",
        Origin::Backup(_) => "backup",
        Origin::Scan => "scan",
    }
}

/// Describes how much of a state can be read.
fn describe(survey: &Survey) -> String {
    if survey.is_whole() {
        return format!("whole ({} tree blocks)", survey.blocks.readable);
    }
    let trees: Vec<String> = survey
        .damaged
        .iter()
        .take(TREES_SHOWN)
        .map(|(tree, counts)| format!("{} of tree {tree}", counts.unreadable))
        .collect();
    let more = match survey.damaged.len() > TREES_SHOWN {
        true => ", …",
        false => "",
    };
    format!("damaged: unreadable blocks: {}{more}", trees.join(", "))
}

/// The number of damaged trees that a line names.
const TREES_SHOWN: usize = 3;

fn as_json(state: &State, survey: &Result<Survey>) -> Value {
    let mut object = Map::new();
    object.insert("generation".to_owned(), json!(state.generation().get()));
    object.insert("root".to_owned(), json!(state.root.logical.get()));
    object.insert("level".to_owned(), json!(state.root.level));
    object.insert("named-by".to_owned(), json!(origin(state)));
    match survey {
        Ok(survey) => {
            let trees: Vec<Value> = survey
                .damaged
                .iter()
                .map(|(tree, counts)| {
                    json!({
                        "tree": tree.get(),
                        "readable-blocks": counts.readable,
                        "unreadable-blocks": counts.unreadable,
                    })
                })
                .collect();
            let time = survey.changed.map(|time| time.seconds);
            object.insert("whole".to_owned(), json!(survey.is_whole()));
            object.insert("time".to_owned(), json!(time));
            object.insert("subvolumes".to_owned(), json!(survey.subvolumes));
            object.insert("readable-blocks".to_owned(), json!(survey.blocks.readable));
            object.insert("unreadable-blocks".to_owned(), json!(survey.blocks.unreadable));
            object.insert("damaged-trees".to_owned(), trees.into());
        }
        Err(error) => {
            object.insert("whole".to_owned(), json!(false));
            object.insert("error".to_owned(), json!(format!("{error:#}")));
        }
    }
    Value::Object(object)
}
