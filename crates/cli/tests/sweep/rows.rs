//! Parts of the table's rows.

/// The effect of an option on the command line of its sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The option changes the effect of the command line, which exits with this code.
    Acts(i32),
    /// The option is refused with exit code 2.
    Refused,
    /// The option has no effect, as the command's help says.
    Nothing,
    /// The option changes only the manner, not the effect: the command line succeeds.
    Manner,
    /// This other test covers the option.
    Elsewhere(&'static str),
}

/// An option of a command, with its expected effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Option and its value.
    pub(crate) words: &'static str,
    pub(crate) kind: Kind,
    /// Other options that the option needs to act.
    pub(crate) context: &'static str,
    /// True if the option is accepted without other options, as in the imitated program.
    pub(crate) is_idle_alone: bool,
}

impl Row {
    const fn new(name: &'static str, words: &'static str, kind: Kind) -> Self {
        Self {
            name,
            words,
            kind,
            context: "",
            is_idle_alone: false,
        }
    }

    /// Returns whether the option is tested beside each other option.
    pub(crate) fn takes_part(&self) -> bool {
        matches!(self.kind, Kind::Acts(_))
    }
}

/// Builds the row of an option that acts.
pub(crate) const fn acts(name: &'static str, words: &'static str) -> Row {
    Row::new(name, words, Kind::Acts(0))
}

/// Builds the row of an option with which the command acts and exits with this code.
pub(crate) const fn ends(name: &'static str, words: &'static str, code: i32) -> Row {
    Row::new(name, words, Kind::Acts(code))
}

/// Builds the row of an option that acts beside other ones, and is refused without them.
pub(crate) const fn beside(context: &'static str, name: &'static str, words: &'static str) -> Row {
    Row {
        context,
        ..acts(name, words)
    }
}

/// Builds the row of an option that acts only beside other options; the imitated program accepts it
/// alone, too.
pub(crate) const fn idle_without(context: &'static str, name: &'static str, words: &'static str) -> Row {
    Row {
        is_idle_alone: true,
        ..beside(context, name, words)
    }
}

pub(crate) const fn refused(name: &'static str, words: &'static str) -> Row {
    Row::new(name, words, Kind::Refused)
}

pub(crate) const fn nothing(name: &'static str, words: &'static str) -> Row {
    Row::new(name, words, Kind::Nothing)
}

pub(crate) const fn manner(name: &'static str, words: &'static str) -> Row {
    Row::new(name, words, Kind::Manner)
}

pub(crate) const fn elsewhere(name: &'static str, test: &'static str) -> Row {
    Row::new(name, name, Kind::Elsewhere(test))
}

/// Options that make other options ineffective, with the reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    pub(crate) by: &'static str,
    /// Names of the options in this row, or `*` for all.
    pub(crate) options: &'static [&'static str],
    #[expect(dead_code, reason = "for readers")]
    pub(crate) why: &'static str,
}

/// A command line and the effects of options on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) command: &'static str,
    /// Arguments after the options.
    pub(crate) base: &'static str,
    /// Exit code of the command line without any option.
    pub(crate) code: i32,
    pub(crate) own: &'static [Row],
    /// Kinds of unit flags that the command has: long ones, and short ones.
    pub(crate) units: Units,
    /// True if options are tested in pairs.
    pub(crate) pairs: bool,
    pub(crate) covered: &'static [Covered],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    No,
    Long,
    /// The case uses the long unit flags, and `-b`.
    LongAndRaw,
    All,
    /// The command prints sizes only in rare states, so the option is idle here.
    Idle,
}

/// Rows of the long unit flags.
pub(crate) const UNITS: [Row; 8] = [
    acts("--raw", "--raw"),
    manner("--human-readable", "--human-readable"),
    manner("--iec", "--iec"),
    acts("--si", "--si"),
    acts("--kbytes", "--kbytes"),
    // The megabyte is often the automatically chosen unit, too.
    manner("--mbytes", "--mbytes"),
    acts("--gbytes", "--gbytes"),
    acts("--tbytes", "--tbytes"),
];

/// Rows of the short unit flags.
pub(crate) const SHORT_UNITS: [Row; 7] = [
    acts("-b", "-b"),
    manner("-h", "-h"),
    acts("-H", "-H"),
    acts("-k", "-k"),
    manner("-m", "-m"),
    acts("-g", "-g"),
    acts("-t", "-t"),
];

impl Sweep {
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = self.own.to_vec();
        let units = UNITS.iter().copied();
        match self.units {
            Units::No => {}
            Units::Long => rows.extend(units),
            Units::LongAndRaw => rows.extend(units.chain([SHORT_UNITS[0]])),
            Units::All => rows.extend(units.chain(SHORT_UNITS)),
            Units::Idle => rows.extend(units.map(|row| manner(row.name, row.words))),
        }
        rows
    }

    /// Returns whether an option may have no effect beside another one.
    pub(crate) fn covers(&self, by: &Row, option: &Row) -> bool {
        self.covered.iter().any(|covered| {
            let fits = covered.options.contains(&option.name) || covered.options.contains(&"*");
            (covered.by == by.name || covered.by == "*") && fits
        })
    }
}
