//! The columns of a span of a row, the sectors in which each is trusted, and all ways to rebuild a
//! column.
//!
//! A sector can be rebuilt if the number of untrusted columns at this sector is at most the
//! profile's number of parities. A range may have several sectors, each with its own set of
//! untrusted columns. Each way to rebuild a column is tried over all sectors of the range. A sector
//! that only one way can rebuild uses that way.

use buttress_exact::Exact as _;
use buttress_volume::parity::{Recovery, Row, compute_p, compute_q};
use core::ops::Range;

/// A column of a RAID5 or RAID6 row, data or parity.
#[derive(Debug)]
struct Column {
    bytes: Vec<u8>,
    /// For each sector, whether it is trusted.
    trusted: Vec<bool>,
}

/// Data columns, then `P`, then `Q` for RAID6.
#[derive(Debug)]
pub(super) struct Columns {
    columns: Vec<Column>,
    data: usize,
    sector_bytes: usize,
}

impl Columns {
    /// Returns columns of zeros, all trusted.
    pub(super) fn new(data: usize, has_q: bool, length: usize, sector_bytes: usize) -> Self {
        let count = data.exact_add(1).exact_add(usize::from(has_q));
        let sector_bytes = sector_bytes.max(1);
        let column = || Column {
            bytes: vec![0; length],
            trusted: vec![true; length.div_ceil(sector_bytes)],
        };
        Self {
            columns: (0..count).map(|_| column()).collect(),
            data,
            sector_bytes,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.columns.len()
    }

    pub(super) fn set(&mut self, column: usize, bytes: &[u8]) {
        if let Some(column) = self.columns.get_mut(column)
            && column.bytes.len() == bytes.len()
        {
            column.bytes.copy_from_slice(bytes);
        }
    }

    /// Returns the numbers of the sectors of a range.
    fn sectors(&self, range: &Range<usize>) -> Range<usize> {
        let first = range.start.quotient(self.sector_bytes);
        first..range.end.div_ceil(self.sector_bytes)
    }

    pub(super) fn distrust(&mut self, column: usize, range: Range<usize>) {
        let sectors = self.sectors(&range);
        if let Some(marks) = self
            .columns
            .get_mut(column)
            .and_then(|column| column.trusted.get_mut(sectors))
        {
            marks.fill(false);
        }
    }

    /// Marks existing bytes of a column as right.
    pub(super) fn trust(&mut self, column: usize, range: Range<usize>) {
        let sectors = self.sectors(&range);
        if let Some(marks) = self
            .columns
            .get_mut(column)
            .and_then(|column| column.trusted.get_mut(sectors))
        {
            marks.fill(true);
        }
    }

    /// Stores the verified bytes of a column.
    pub(super) fn replace(&mut self, column: usize, range: Range<usize>, bytes: &[u8]) {
        let sectors = self.sectors(&range);
        let Some(column) = self.columns.get_mut(column) else {
            return;
        };
        if let Some(place) = column.bytes.get_mut(range)
            && place.len() == bytes.len()
        {
            place.copy_from_slice(bytes);
            if let Some(marks) = column.trusted.get_mut(sectors) {
                marks.fill(true);
            }
        }
    }

    pub(super) fn get(&self, column: usize, range: &Range<usize>) -> Option<&[u8]> {
        self.columns.get(column)?.bytes.get(range.clone())
    }

    pub(super) fn is_trusted(&self, column: usize, range: &Range<usize>) -> bool {
        let marks = |column: &Column| {
            let marks = column.trusted.get(self.sectors(range));
            marks.is_some_and(|marks| marks.iter().all(|trusted| *trusted))
        };
        self.columns.get(column).is_some_and(marks)
    }

    pub(super) fn data_is_trusted(&self, range: &Range<usize>) -> bool {
        (0..self.data).all(|column| self.is_trusted(column, range))
    }

    fn data(&self, range: &Range<usize>) -> Vec<&[u8]> {
        (0..self.data)
            .filter_map(|column| self.get(column, range))
            .collect()
    }

    /// Returns the `P` parity of the row's data.
    pub(super) fn p(&self, range: &Range<usize>) -> Vec<u8> {
        let mut p = vec![0; range.len()];
        compute_p(self.data(range), &mut p);
        p
    }

    /// Returns `Q` of the data.
    pub(super) fn q(&self, range: &Range<usize>) -> Vec<u8> {
        let mut q = vec![0; range.len()];
        compute_q(self.data(range).into_iter().map(Some), &mut q);
        q
    }

    /// Rebuilds a range of a data column. Returns the first result that passes.
    pub(super) fn rebuild(
        &self,
        target: usize,
        range: &Range<usize>,
        passes: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let others = (0..self.data).filter(|other| *other != target);
        let ways = [Recovery::WithP, Recovery::WithQ]
            .into_iter()
            .chain(others.map(|other| Recovery::WithPAndQ { other }));
        for way in ways {
            let rebuilt = self.rebuild_by(target, range, way);
            if let Some(rebuilt) = rebuilt.filter(|bytes| passes(bytes)) {
                return Some(rebuilt);
            }
            if buttress_faults::on("scrub-one-recovery-tried") {
                break;
            }
        }
        None
    }

    fn rebuild_by(&self, target: usize, range: &Range<usize>, way: Recovery) -> Option<Vec<u8>> {
        let mut rebuilt = vec![0; range.len()];
        let mut out = rebuilt.as_mut_slice();
        let mut start = range.start;
        while start < range.end {
            let sector_end = self
                .sectors(&(start..start.exact_add(1)))
                .end
                .exact_mul(self.sector_bytes);
            let sector = start..sector_end.min(range.end);
            let (here, rest) = out.split_at_mut_checked(sector.len())?;
            self.rebuild_sector(target, &sector, way, here)?;
            out = rest;
            start = sector.end;
        }
        Some(rebuilt)
    }

    fn rebuild_sector(
        &self,
        target: usize,
        sector: &Range<usize>,
        way: Recovery,
        out: &mut [u8],
    ) -> Option<()> {
        let mut distrusted =
            (0..self.data).filter(|column| *column != target && !self.is_trusted(*column, sector));
        let [p, q] = [self.data, self.data.exact_add(1)].map(|column| self.is_trusted(column, sector));
        let way = match (distrusted.next(), distrusted.next()) {
            // If one parity is bad, the other is used.
            (None, _) if way == Recovery::WithP && !p => Recovery::WithQ,
            (None, _) if way == Recovery::WithQ && !q => Recovery::WithP,
            (None, _) => way,
            (Some(other), None) => Recovery::WithPAndQ { other },
            (Some(_), Some(_)) => return None,
        };
        let trusted = |column: usize| {
            self.get(column, sector)
                .filter(|_| self.is_trusted(column, sector))
        };
        let row = Row {
            data: (0..self.data).map(trusted).collect(),
            p: trusted(self.data),
            q: trusted(self.data.exact_add(1)),
        };
        row.rebuild(target, way, out)
    }

    /// Returns which other columns cannot help in a range, or that their result is wrong.
    pub(super) fn why_not(
        &self,
        target: usize,
        range: &Range<usize>,
        name: impl Fn(usize) -> String,
    ) -> Vec<String> {
        let bad = (0..self.len()).filter(|column| *column != target && !self.is_trusted(*column, range));
        let bad: Vec<String> = bad
            .map(|column| format!("{}: missing, unreadable or wrong itself", name(column)))
            .collect();
        if bad.is_empty() {
            return vec!["rebuilding from parity: no result passes the check".to_owned()];
        }
        bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: usize = 16;

    fn columns(data: usize) -> Columns {
        let mut columns = Columns::new(data, true, 4 * SECTOR, SECTOR);
        for column in 0..data {
            let bytes: Vec<u8> = (0..4 * SECTOR)
                .map(|at| u8::try_from((at * 7 + column * 31) % 251).unwrap())
                .collect();
            columns.set(column, &bytes);
        }
        let all = 0..4 * SECTOR;
        let (p, q) = (columns.p(&all), columns.q(&all));
        columns.set(data, &p);
        columns.set(data + 1, &q);
        columns
    }

    #[test]
    fn each_sector_is_rebuilt_from_trusted_columns() {
        let mut columns = columns(4);
        let all = 0..4 * SECTOR;
        let right = columns.get(1, &all).unwrap().to_vec();
        columns.set(1, &[0xee; 4 * SECTOR]);
        columns.distrust(1, all.clone());
        // The test makes another column bad in the second sector, P in the third, and Q in the
        // last.
        columns.distrust(3, SECTOR..2 * SECTOR);
        columns.distrust(4, 2 * SECTOR..3 * SECTOR);
        columns.distrust(5, 3 * SECTOR..4 * SECTOR);
        for sector in 0..4 {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            let wanted = &right[range.clone()];
            assert_eq!(
                columns.rebuild(1, &range, |bytes| bytes == wanted).as_deref(),
                Some(wanted)
            );
        }
        assert_eq!(columns.rebuild(1, &all, |bytes| bytes == right), Some(right));
        columns.distrust(0, SECTOR..2 * SECTOR);
        assert_eq!(columns.rebuild(1, &(SECTOR..2 * SECTOR), |_| true), None);
        assert_eq!(
            columns
                .why_not(1, &(SECTOR..2 * SECTOR), |column| column.to_string())
                .len(),
            2
        );
    }

    #[test]
    fn a_column_that_is_wrong_unnoticed_is_found_by_trying() {
        let mut columns = columns(3);
        let range = 0..SECTOR;
        let right = columns.get(0, &range).unwrap().to_vec();
        columns.set(2, &[1; 4 * SECTOR]);
        columns.distrust(0, range.clone());
        assert_eq!(
            columns.rebuild(0, &range, |bytes| bytes == right),
            Some(right.clone())
        );
    }
}
