//! Bar charts as SVG, for the documentation.
//!
//! A series has one colour, a label has one group of bars, and values are above the bars. A chart
//! contains no fonts, scripts or external links. Text takes the reader's own colour, so that it is
//! visible on light and dark pages.

use std::fmt::Write;

const COLOURS: [&str; 5] = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377"];
const PLOT_HEIGHT: f64 = 260.0;
const BAR_WIDTH: f64 = 34.0;
const GROUP_GAP: f64 = 30.0;
const LEFT: f64 = 20.0;
const TOP: f64 = 70.0;
const ROW_HEIGHT: f64 = 16.0;
const ROW_GAP: f64 = 14.0;
const ROW_WIDTH: f64 = 560.0;

/// A group of bars: its label, and a value (or none) for each series.
pub(crate) struct Group {
    pub(crate) label: String,
    pub(crate) values: Vec<Option<f64>>,
}

/// Returns a chart as the text of an SVG file.
pub(crate) fn bars(title: &str, unit: &str, series: &[&str], groups: &[Group]) -> String {
    let group_width = series.len() as f64 * BAR_WIDTH + GROUP_GAP;
    let width = (LEFT * 2.0 + group_width * groups.len() as f64).max(480.0);
    let height = TOP + PLOT_HEIGHT + 40.0;
    let all = groups.iter().flat_map(|group| group.values.iter().flatten());
    let largest = all.fold(f64::MIN_POSITIVE, |largest, value| largest.max(*value));
    let mut svg = String::new();
    head(&mut svg, width, height, &format!("{title} ({unit})"), series);
    for (place, group) in groups.iter().enumerate() {
        let left = LEFT + place as f64 * group_width;
        for (number, value) in group.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let bar = PLOT_HEIGHT * value / largest;
            let (x, y) = (left + number as f64 * BAR_WIDTH, TOP + PLOT_HEIGHT - bar);
            let (colour, wide) = (COLOURS[number % COLOURS.len()], BAR_WIDTH - 4.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide}\" height=\"{bar:.1}\" fill=\"{colour}\"/>"
            );
            text(&mut svg, x + wide / 2.0, y - 4.0, "middle", &short(*value));
        }
        let middle = left + (group_width - GROUP_GAP) / 2.0;
        text(&mut svg, middle, TOP + PLOT_HEIGHT + 18.0, "middle", &group.label);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns a chart with horizontal bars, each group below its label: for long labels.
pub(crate) fn rows(title: &str, unit: &str, series: &[&str], groups: &[Group]) -> String {
    let group_height = ROW_HEIGHT * (series.len() + 1) as f64 + ROW_GAP;
    let height = TOP + group_height * groups.len() as f64;
    let width = LEFT * 2.0 + ROW_WIDTH + 60.0;
    let all = groups.iter().flat_map(|group| group.values.iter().flatten());
    let largest = all.fold(f64::MIN_POSITIVE, |largest, value| largest.max(*value));
    let mut svg = String::new();
    head(&mut svg, width, height, &format!("{title} ({unit})"), series);
    for (place, group) in groups.iter().enumerate() {
        let top = TOP + place as f64 * group_height;
        text(&mut svg, LEFT, top, "start", &group.label);
        for (number, value) in group.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let (bar, y) = (
                ROW_WIDTH * value / largest,
                top + 6.0 + number as f64 * ROW_HEIGHT,
            );
            let (colour, high) = (COLOURS[number % COLOURS.len()], ROW_HEIGHT - 3.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT:.1}\" y=\"{y:.1}\" width=\"{bar:.1}\" height=\"{high}\" fill=\"{colour}\"/>"
            );
            text(&mut svg, LEFT + bar + 6.0, y + 11.0, "start", &short(*value));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Writes the beginning of a chart: its title, and the legend of colours.
fn head(svg: &mut String, width: f64, height: f64, title: &str, series: &[&str]) {
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#808080\">"
    );
    text(svg, LEFT, 20.0, "start", title);
    for (number, name) in series.iter().enumerate() {
        let x = LEFT + number as f64 * (width - 2.0 * LEFT) / series.len() as f64;
        let colour = COLOURS[number % COLOURS.len()];
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{colour}\"/>"
        );
        text(svg, x + 14.0, 42.0, "start", name);
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let escaped = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{escaped}</text>"
    );
}

/// Returns a number with three significant digits.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_as_long_as_their_values() {
        let groups = [Group {
            label: "full send, cold".to_owned(),
            values: vec![Some(1.0), Some(4.0)],
        }];
        let svg = rows("title", "seconds", &["one", "two"], &groups);
        assert!(
            svg.contains("width=\"140.0\"") && svg.contains("width=\"560.0\""),
            "{svg}"
        );
        assert!(svg.contains("full send, cold"));
    }

    #[test]
    fn the_largest_value_has_the_highest_bar_and_words_are_escaped() {
        let groups = [Group {
            label: "a < b".to_owned(),
            values: vec![Some(100.0), Some(50.0), None],
        }];
        let svg = bars("time", "s", &["x", "y", "z"], &groups);
        assert!(svg.contains("height=\"260.0\"") && svg.contains("height=\"130.0\""));
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
    }
}
