//! Tables of pairs of runs.

use crate::measure::Run;

/// Pairs of runs of a job, ours and the other side's, and the goal for their ratio.
pub(crate) struct Pairs {
    /// The name of the job.
    pub(crate) job: String,
    /// The state of the page cache: cold or warm.
    pub(crate) cache: &'static str,
    /// Our runs.
    pub(crate) ours: Vec<Run>,
    /// The other side's runs.
    pub(crate) theirs: Vec<Run>,
    /// The largest ratio of our time to the other side's that meets the goal.
    pub(crate) goal: f64,
}

pub(crate) fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}

pub(crate) fn median(numbers: &[f64]) -> f64 {
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => numbers[middle],
        _ => f64::midpoint(numbers[middle - 1], numbers[middle]),
    }
}

impl Pairs {
    /// Returns the head of the table that [`Pairs::row`] fills.
    pub(crate) fn head() -> &'static str {
        "| job | cache | buttress s | other s | ratio | goal | peak MiB |\n|---|---|---|---|---|---|---|"
    }

    /// Returns the medians of the seconds, ours and the other side's.
    pub(crate) fn seconds(&self) -> [f64; 2] {
        [&self.ours, &self.theirs].map(|runs| median(&sorted(runs.iter().map(|run| run.seconds).collect())))
    }

    /// Returns the median of our processor seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        median(&sorted(self.ours.iter().map(|run| run.cpu_seconds).collect()))
    }

    /// Returns the medians of the machine's busy seconds, during our runs and the other side's.
    pub(crate) fn machine_seconds(&self) -> [f64; 2] {
        [&self.ours, &self.theirs]
            .map(|runs| median(&sorted(runs.iter().map(|run| run.machine_seconds).collect())))
    }

    /// Returns a row of the table. Times are medians. The ratio is the median of the pairs, with
    /// the least and the most.
    pub(crate) fn row(&self) -> String {
        let [ours, theirs] = self.seconds();
        let ratios = sorted(
            self.ours
                .iter()
                .zip(&self.theirs)
                .map(|(a, b)| a.seconds / b.seconds)
                .collect(),
        );
        let ratio = median(&ratios);
        let peak = self.ours.iter().map(|run| run.peak_kib).max().unwrap_or(0) / 1024;
        format!(
            "| {} | {} | {:.3} | {:.3} | {ratio:.2} ({:.2}–{:.2}) | {:.2}{} | {peak} |",
            self.job,
            self.cache,
            ours,
            theirs,
            ratios.first().copied().unwrap_or(f64::NAN),
            ratios.last().copied().unwrap_or(f64::NAN),
            self.goal,
            if ratio <= self.goal { "" } else { " missed" },
        )
    }
}
