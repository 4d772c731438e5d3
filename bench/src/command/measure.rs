//! Options of comparisons: rounds and lengths, and the CPU time of a window.

use std::time::Duration;

use tokio::time::sleep_until;

use super::parse_seconds;
use crate::compare::ROUNDS;
use crate::cpu::CpuSnapshot;
use crate::load::MeasureWindow;

/// Options of every comparison of rates.
#[derive(Debug, clap::Args)]
pub(super) struct RateOptions {
    /// Set the rounds of each variant in each case
    #[arg(long, default_value_t = ROUNDS)]
    pub(super) rounds: usize,

    /// Set the length of a measurement in seconds
    #[arg(long, default_value = "2", value_parser = parse_seconds)]
    duration: Duration,

    /// Set the warm-up before a measurement, in seconds
    #[arg(long, default_value = "0.5", value_parser = parse_seconds)]
    warm_up: Duration,
}

impl RateOptions {
    /// Starts a window now.
    pub(super) fn start_window(&self) -> MeasureWindow {
        self.start_window_after(self.warm_up)
    }

    /// Returns the length of a measurement.
    pub(super) fn length(&self) -> Duration {
        self.duration
    }

    /// Returns the warm-up before a measurement.
    pub(super) fn warm_up(&self) -> Duration {
        self.warm_up
    }

    /// Starts a window of another length.
    pub(super) fn start_window_of(&self, length: Duration) -> MeasureWindow {
        MeasureWindow::starting_after(self.warm_up, length)
    }

    /// Starts a window after another warm-up.
    pub(super) fn start_window_after(&self, warm_up: Duration) -> MeasureWindow {
        MeasureWindow::starting_after(warm_up, self.duration)
    }
}

/// Runs a load and reads the CPU time that `pids` and their descendants spend within its window.
pub(super) async fn measure_cpu<L>(
    load: impl Future<Output = L>,
    window: MeasureWindow,
    pids: &[u32],
) -> (L, Duration) {
    measure_cpu_without(load, window, pids, None).await
}

/// The same without the time of one of these processes.
pub(super) async fn measure_cpu_without<L>(
    load: impl Future<Output = L>,
    window: MeasureWindow,
    pids: &[u32],
    without: Option<u32>,
) -> (L, Duration) {
    let apart: Vec<u32> = without.into_iter().collect();
    let (loaded, (all, left_out)) = measure_cpu_apart(load, window, pids, &apart).await;
    (loaded, all.saturating_sub(left_out))
}

/// Runs a load and returns the CPU time of all these processes, and of those `apart` among them.
pub(super) async fn measure_cpu_apart<L>(
    load: impl Future<Output = L>,
    window: MeasureWindow,
    pids: &[u32],
    apart: &[u32],
) -> (L, (Duration, Duration)) {
    let clock = async {
        sleep_until(window.from).await;
        // At the window's edges, as the answers are counted: both refer to the same time.
        let before = CpuSnapshot::read_now(pids);
        sleep_until(window.until).await;
        let after = CpuSnapshot::read_now(pids);
        let apart = apart.iter().map(|pid| before.process_spent(*pid, &after));
        (before.spent_until(&after), apart.sum())
    };
    // On one task: the clock costs no thread of its own.
    tokio::join!(load, clock)
}
