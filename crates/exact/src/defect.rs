//! The error for a broken invariant of this program.

use core::fmt;

/// A sum or a rule of this program that does not hold, with its numbers. Writing stops before its consequences reach the
/// volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    what: &'static str,
    numbers: Vec<(&'static str, i128)>,
}

impl Defect {
    /// Names the rule that does not hold.
    #[must_use]
    pub const fn new(what: &'static str) -> Self {
        Self {
            what,
            numbers: Vec::new(),
        }
    }

    /// Adds one of the numbers that break the rule.
    #[must_use]
    pub fn with(mut self, name: &'static str, number: impl Into<i128>) -> Self {
        self.numbers.push((name, number.into()));
        self
    }

    /// Returns the rule that does not hold, without the numbers.
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
/// If the sum becomes larger than its type can hold.
pub fn add(sum: &mut u64, more: u64, what: &'static str) -> Result<(), Defect> {
    let Some(grown) = sum.checked_add(more) else {
        return Err(Defect::new(what).with("sum", *sum).with("more", more));
    };
    *sum = grown;
    Ok(())
}

/// Takes from a sum.
///
/// # Errors
/// If the sum is smaller than `less`.
pub fn take(sum: &mut u64, less: u64, what: &'static str) -> Result<(), Defect> {
    let Some(rest) = sum.checked_sub(less) else {
        return Err(Defect::new(what).with("sum", *sum).with("less", less));
    };
    *sum = rest;
    Ok(())
}

/// Returns a length that a check has bounded as a size in memory.
///
/// # Errors
/// If no memory can be that large.
pub fn usize_of(value: u64, what: &'static str) -> Result<usize, Defect> {
    usize::try_from(value).map_err(|_| Defect::new(what).with("value", value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_and_sums_stay_as_they_were() {
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
