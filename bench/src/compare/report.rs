//! The file that a comparison writes: `bench/results/NAME.json` with `rows` and `ratios`.

use std::path::PathBuf;
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// Row of a table: a variant of a case.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ReportRow {
    pub(crate) case: String,
    pub(crate) variant: String,
    /// Requests answered, over all rounds.
    pub(crate) n: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) rps: f64,
    pub(crate) cpu_us_per_request: f64,
    /// Requests failed, over all rounds.
    pub(crate) failed: u64,
}

/// Direction of improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BetterDirection {
    Lower,
    Higher,
}

impl BetterDirection {
    /// Returns the relation of a value to its goal.
    pub(crate) fn goal_sign(self) -> &'static str {
        match self {
            Self::Lower => "≤",
            Self::Higher => "≥",
        }
    }
}

/// A number with a goal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GoalRatio {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) better: BetterDirection,
    pub(crate) goal: f64,
}

impl GoalRatio {
    pub(crate) fn is_met(&self) -> bool {
        // NaN fulfils neither comparison: a goal without a measurement is missed.
        match self.better {
            BetterDirection::Lower => self.value <= self.goal,
            BetterDirection::Higher => self.value >= self.goal,
        }
    }
}

/// A whole comparison.
#[derive(Debug, Serialize)]
pub(crate) struct ComparisonReport {
    #[serde(skip)]
    name: String,
    pub(crate) rows: Vec<ReportRow>,
    pub(crate) ratios: Vec<GoalRatio>,
}

impl ComparisonReport {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            rows: Vec::new(),
            ratios: Vec::new(),
        }
    }

    pub(crate) fn find_row(&self, case: &str, variant: &str) -> Option<&ReportRow> {
        self.rows
            .iter()
            .find(|row| row.case == case && row.variant == variant)
    }

    /// Writes `bench/results/NAME.json` below the current directory, or into
    /// `NEARPATH_BENCH_RESULTS`.
    pub(crate) fn write_file(&self) -> io::Result<PathBuf> {
        let folder = results_folder();
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}.json", self.name));
        let mut text = serde_json::to_string_pretty(self)?;
        // The files are committed, and git reports a missing newline in every diff.
        text.push('\n');
        fs::write(&path, text)?;
        Ok(path)
    }
}

/// `bench/results` below the current directory, or `NEARPATH_BENCH_RESULTS`.
pub(super) fn results_folder() -> PathBuf {
    std::env::var_os("NEARPATH_BENCH_RESULTS").map_or_else(|| "bench/results".into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals() {
        let ratio = |value, better| GoalRatio {
            name: "r".into(),
            value,
            better,
            goal: 0.8,
        };
        assert!(
            ratio(0.9, BetterDirection::Higher).is_met()
                && !ratio(0.9, BetterDirection::Lower).is_met()
        );
        assert!(
            !ratio(f64::NAN, BetterDirection::Higher).is_met(),
            "nothing measured is no success"
        );
    }

    #[test]
    fn exactly_the_agreed_keys() {
        let row = ReportRow {
            case: "c".into(),
            variant: "v".into(),
            n: 1,
            p50_us: 1.5,
            p99_us: 2.0,
            rps: 3.0,
            cpu_us_per_request: 4.0,
            failed: 0,
        };
        let ratio = GoalRatio {
            name: "r".into(),
            value: 1.0,
            better: BetterDirection::Lower,
            goal: 2.0,
        };
        let report = ComparisonReport {
            name: "x".into(),
            rows: vec![row],
            ratios: vec![ratio],
        };
        assert_eq!(
            serde_json::to_value(&report).unwrap(),
            serde_json::json!({
                "rows": [{ "case": "c", "variant": "v", "n": 1, "p50_us": 1.5, "p99_us": 2.0, "rps": 3.0,
                           "cpu_us_per_request": 4.0, "failed": 0 }],
                "ratios": [{ "name": "r", "value": 1.0, "better": "lower", "goal": 2.0 }],
            })
        );
    }
}
