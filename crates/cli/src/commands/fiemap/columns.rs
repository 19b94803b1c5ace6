//! Columns of a line of `filefrag -v`.
//!
//! A map may have millions of lines, and `format!` takes longer than finding an extent. The printer
//! therefore prepares a blank line per file, copies it for each extent, and fills in the digits. If
//! a number exceeds its column, the following columns shift right, as in `printf`; such lines are
//! built piece by piece. For larger numbers, only the column of extent numbers grows, because these
//! numbers only increase.

use buttress_exact::Exact as _;
use core::ops::Range;

/// Number of numbers in every line.
const NUMBERS: usize = 6;

/// Text after each number.
const BEHIND: [&[u8]; NUMBERS] = [b": ", b"..", b": ", b"..", b": ", b": "];

/// Smallest width of the extent number column.
const NUMBER_WIDTH: usize = 4;

/// Width of the length column.
const LENGTH_WIDTH: usize = 6;

/// Layout of a line.
#[derive(Debug)]
pub struct Columns {
    /// Widths of the offset and address columns.
    widths: (usize, usize),
    /// A line without numbers and flags.
    blank: Vec<u8>,
    /// Positions of the numbers in the line.
    places: [Range<usize>; NUMBERS],
    /// Position of the expected address.
    expected: Range<usize>,
}

impl Columns {
    /// Creates a layout with these widths of offsets and addresses, for extents up to number 9999.
    pub fn new(widths: (usize, usize)) -> Self {
        Self::with(NUMBER_WIDTH, widths)
    }

    /// Widens the layout for extent numbers from `number` on.
    pub fn grow_for(&mut self, number: u64) {
        let digits = number.checked_ilog10().unwrap_or(0).saturating_add(1);
        let width = usize::try_from(digits).unwrap_or(NUMBER_WIDTH).max(NUMBER_WIDTH);
        if self.places.first().is_some_and(|place| place.len() < width) {
            *self = Self::with(width, self.widths);
        }
    }

    fn with(number_width: usize, widths: (usize, usize)) -> Self {
        let (offset_width, address_width) = widths;
        let mut blank = Vec::new();
        let widths_in_order = [
            number_width,
            offset_width,
            offset_width,
            address_width,
            address_width,
            LENGTH_WIDTH,
        ];
        let mut columns = widths_in_order.into_iter().zip(BEHIND);
        let places = core::array::from_fn(|_| {
            let (width, behind) = columns.next().unwrap_or((0, b""));
            let place = push_spaces(width, &mut blank);
            blank.extend_from_slice(behind);
            place
        });
        let expected = push_spaces(address_width, &mut blank);
        push_spaces(2, &mut blank);
        Self {
            widths,
            blank,
            places,
            expected,
        }
    }

    /// Appends the header line.
    pub fn push_head(&self, text: &mut Vec<u8>) {
        let (offset_width, address_width) = self.widths;
        let (offsets, addresses) = (offset_width.saturating_mul(2), address_width.saturating_mul(2));
        let head = format!(
            " ext: {:>offsets$} {:>addresses$} length: {:>expected$} flags:\n",
            "logical_offset:",
            "physical_offset:",
            "expected:",
            offsets = offsets.saturating_add(3),
            addresses = addresses.saturating_add(3),
            expected = address_width.saturating_add(1),
        );
        text.extend_from_slice(head.as_bytes());
    }

    /// Appends a line up to its flags.
    pub fn push_numbers(&self, numbers: [u64; NUMBERS], expected: Option<u64>, text: &mut Vec<u8>) {
        let start = text.len();
        text.extend_from_slice(&self.blank);
        let line = text.get_mut(start..).unwrap_or_default();
        let fits = numbers
            .iter()
            .zip(&self.places)
            .all(|(number, place)| fill(line.get_mut(place.clone()).unwrap_or_default(), *number))
            && expected.is_none_or(|expected| self.fill_expected(expected, line));
        if !fits {
            text.truncate(start);
            self.push_wide(numbers, expected, text);
        }
    }

    fn fill_expected(&self, expected: u64, line: &mut [u8]) -> bool {
        if let Some(behind) = line.get_mut(self.expected.end) {
            *behind = b':';
        }
        fill(line.get_mut(self.expected.clone()).unwrap_or_default(), expected)
    }

    /// Appends a line with numbers of any width, up to its flags.
    fn push_wide(&self, numbers: [u64; NUMBERS], expected: Option<u64>, text: &mut Vec<u8>) {
        let mut push = |number: u64, width: usize, behind: &[u8]| {
            text.extend_from_slice(format!("{number:>width$}").as_bytes());
            text.extend_from_slice(behind);
        };
        for ((number, place), behind) in numbers.into_iter().zip(&self.places).zip(BEHIND) {
            push(number, place.len(), behind);
        }
        match expected {
            Some(expected) => push(expected, self.expected.len(), b": "),
            None => drop(push_spaces(self.expected.len().saturating_add(2), text)),
        }
    }
}

/// Appends `count` spaces to the text; returns their position.
fn push_spaces(count: usize, text: &mut Vec<u8>) -> Range<usize> {
    let start = text.len();
    text.resize(start.saturating_add(count), b' ');
    start..text.len()
}

/// Right-aligns the digits of a number in a column of spaces; returns false if they do not fit.
fn fill(column: &mut [u8], number: u64) -> bool {
    let mut rest = number;
    for places in column.rchunks_mut(2) {
        let pair = (rest % 100).narrow::<usize>();
        rest /= 100;
        let is_wider = rest > 0;
        let [tens, ones] = PAIRS.get(pair).copied().unwrap_or_default();
        match places {
            [tens_place, ones_place] => {
                *ones_place = ones;
                *tens_place = if is_wider || pair >= 10 { tens } else { b' ' };
            }
            [ones_place] => {
                *ones_place = ones;
                return !is_wider && pair < 10;
            }
            _ => return false,
        }
        if !is_wider {
            return true;
        }
    }
    false
}

/// Digits of the numbers below a hundred.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [*b"00"; 100];
    let mut rest: &mut [[u8; 2]] = &mut pairs;
    let (mut tens, mut ones) = (b'0', b'0');
    while let [first, others @ ..] = rest {
        *first = [tens, ones];
        (tens, ones) = if ones == b'9' {
            (tens.wrapping_add(1), b'0')
        } else {
            (tens, ones.wrapping_add(1))
        };
        rest = others;
    }
    pairs
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds the line of an extent with `format!`, for comparison.
    fn expected_line(widths: (usize, usize), numbers: [u64; NUMBERS], expected: Option<u64>) -> String {
        let [count, start, end, address, address_end, length] = numbers;
        let (offset_width, address_width) = widths;
        let expected = match expected {
            Some(expected) => format!("{expected:>address_width$}: "),
            None => " ".repeat(address_width + 2),
        };
        format!(
            "{count:>4}: {start:>offset_width$}..{end:>offset_width$}: \
             {address:>address_width$}..{address_end:>address_width$}: {length:>6}: {expected}"
        )
    }

    #[test]
    fn lines_are_those_of_format() {
        // Numbers for tests: zero, and for each number of digits the smallest, the largest, and an
        // intermediate number.
        let mut of_all_lengths = vec![0];
        for digits in 1..=20_u32 {
            let least = 10_u64.pow(digits - 1);
            let greatest = 10_u64.checked_pow(digits).map_or(u64::MAX, |next| next - 1);
            of_all_lengths.extend([least, least + (greatest - least) / 7 * 3, greatest]);
        }
        let mut text = Vec::new();
        for widths in [(8, 10), (9, 10), (11, 13)] {
            let columns = Columns::new(widths);
            for (place, number) in
                (0..NUMBERS).flat_map(|place| of_all_lengths.iter().map(move |n| (place, *n)))
            {
                for expected in [None, Some(number), Some(7)] {
                    let mut numbers = [1, 23, 456, 7890, 98_765, 40];
                    numbers[place] = number;
                    let wanted = expected_line(widths, numbers, expected);
                    text.clear();
                    columns.push_numbers(numbers, expected, &mut text);
                    assert_eq!(String::from_utf8(text.clone()).unwrap(), wanted);
                    let mut grown = Columns::new(widths);
                    grown.grow_for(numbers[0]);
                    text.clear();
                    grown.push_numbers(numbers, expected, &mut text);
                    assert_eq!(String::from_utf8(text.clone()).unwrap(), wanted);
                }
            }
        }
    }
}
