//! The parts of rows of the table.

/// The effect of an option on the command line of its sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The command line does something else, and ends with this code.
    Acts(i32),
    /// Exit code 2.
    Refused,
    /// Nothing, as its help says.
    Nothing,
    /// The same, in another way: the command line succeeds.
    Manner,
    /// This test is about it.
    Elsewhere(&'static str),
}

/// An option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The option and its value.
    pub(crate) words: &'static str,
    pub(crate) kind: Kind,
    /// Other options that it needs to act.
    pub(crate) context: &'static str,
    /// Whether it is taken without them: the program that the command imitates takes it.
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

    /// Whether it is tried beside each other option.
    pub(crate) fn takes_part(&self) -> bool {
        matches!(self.kind, Kind::Acts(_))
    }
}

/// An option that acts.
pub(crate) const fn acts(name: &'static str, words: &'static str) -> Row {
    Row::new(name, words, Kind::Acts(0))
}

/// An option that acts, and ends with this code.
pub(crate) const fn ends(name: &'static str, words: &'static str, code: i32) -> Row {
    Row::new(name, words, Kind::Acts(code))
}

/// An option that acts beside others, and is refused without them.
pub(crate) const fn beside(context: &'static str, name: &'static str, words: &'static str) -> Row {
    Row {
        context,
        ..acts(name, words)
    }
}

/// An option that acts beside others; the program that the command imitates takes it without them, too.
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

/// Options beside which others add nothing, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    pub(crate) by: &'static str,
    /// Names, or `*` for all.
    pub(crate) options: &'static [&'static str],
    #[expect(dead_code, reason = "for readers")]
    pub(crate) why: &'static str,
}

/// A command line and what options do on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) command: &'static str,
    /// The words after the options.
    pub(crate) base: &'static str,
    /// The exit code without any option.
    pub(crate) code: i32,
    pub(crate) own: &'static [Row],
    /// Whether the command has the unit flags: the long ones, and the short ones.
    pub(crate) units: Units,
    /// Whether options are tried in pairs.
    pub(crate) pairs: bool,
    pub(crate) covered: &'static [Covered],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    No,
    Long,
    /// With -b only.
    LongAndRaw,
    All,
    /// The command prints sizes in rare states only.
    Idle,
}

/// The long unit flags.
pub(crate) const UNITS: [Row; 8] = [
    acts("--raw", "--raw"),
    manner("--human-readable", "--human-readable"),
    manner("--iec", "--iec"),
    acts("--si", "--si"),
    acts("--kbytes", "--kbytes"),
    // It is often the friendly unit, too.
    manner("--mbytes", "--mbytes"),
    acts("--gbytes", "--gbytes"),
    acts("--tbytes", "--tbytes"),
];

/// The short ones.
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

    /// Whether an option may add nothing beside another one.
    pub(crate) fn covers(&self, by: &Row, option: &Row) -> bool {
        self.covered.iter().any(|covered| {
            let fits = covered.options.contains(&option.name) || covered.options.contains(&"*");
            (covered.by == by.name || covered.by == "*") && fits
        })
    }
}
