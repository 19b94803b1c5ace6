//! The error for a broken invariant of this program.

use core::fmt;

/// A violated rule or a wrong sum of this program, with its numbers. Writing stops before the
/// consequences of a defect reach the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    what: &'static str,
    numbers: Vec<(&'static str, i128)>,
}

impl Defect {
    /// Makes a defect of the violated rule.
    #[must_use]
    pub const fn new(what: &'static str) -> Self {
        Self {
            what,
            numbers: Vec::new(),
        }
    }

    /// Adds a named number that shows the violation.
    #[must_use]
    pub fn with(mut self, name: &'static str, number: impl Into<i128>) -> Self {
        self.numbers.push((name, number.into()));
        self
    }

    /// Returns the violated rule, without the numbers.
    #[must_use]
    pub const fn what(&self) -> &'static str {
        self.what
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a fault of this program: {}", self.what)?;
        for (index, (name, number)) in self.numbers.iter().enumerate() {
            let before = if index == 0 { " (" } else { ", " };
            write!(f, "{before}{name} {number}")?;
        }
        if !self.numbers.is_empty() {
            f.write_str(")")?;
        }
        f.write_str("; please report it")
    }
}

impl core::error::Error for Defect {}

/// Adds to a sum.
///
/// # Errors
/// Fails if the sum exceeds its type.
pub fn add(sum: &mut u64, more: u64, what: &'static str) -> Result<(), Defect> {
    let Some(grown) = sum.checked_add(more) else {
        return Err(Defect::new(what).with("sum", *sum).with("more", more));
    };
    *sum = grown;
    Ok(())
}

/// Subtracts from a sum.
///
/// # Errors
/// Fails if the sum is smaller than `less`.
pub fn take(sum: &mut u64, less: u64, what: &'static str) -> Result<(), Defect> {
    let Some(rest) = sum.checked_sub(less) else {
        return Err(Defect::new(what).with("sum", *sum).with("less", less));
    };
    *sum = rest;
    Ok(())
}

/// Returns a length as a size in memory, after a check has bounded it.
///
/// # Errors
/// Fails if the length exceeds the memory sizes of the machine.
pub fn usize_of(value: u64, what: &'static str) -> Result<usize, Defect> {
    usize::try_from(value).map_err(|_| Defect::new(what).with("value", value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defects_report_numbers_and_leave_sums_unchanged() {
        let mut sum = 3;
        assert_eq!(take(&mut sum, 2, "less than is there"), Ok(()));
        let defect = take(&mut sum, 2, "less than is there").unwrap_err();
        assert_eq!(
            defect.to_string(),
            "a fault of this program: less than is there (sum 1, less 2); please report it"
        );
        assert!(add(&mut sum, u64::MAX, "more than fits").is_err());
        assert_eq!((add(&mut sum, 4, "more than fits"), sum), (Ok(()), 5));
        let bare = Defect::new("nothing to count").to_string();
        assert_eq!(
            bare,
            "a fault of this program: nothing to count; please report it"
        );
    }
}
