//! How long and how often a comparison measures, and the CPU time that goes with it.

use std::time::Duration;

use tokio::time::sleep_until;

use super::seconds;
use crate::compare::ROUNDS;
use crate::cpu::Moment;
use crate::load::Window;

/// Options of every comparison of rates.
#[derive(Debug, clap::Args)]
pub(super) struct Measure {
    /// How often each variant is measured in each case
    #[arg(long, default_value_t = ROUNDS)]
    pub(super) rounds: usize,

    /// How long a measurement is, in seconds
    #[arg(long, default_value = "2", value_parser = seconds)]
    duration: Duration,

    /// How long it runs before counting, in seconds
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    warm_up: Duration,
}

impl Measure {
    /// Begins now.
    pub(super) fn window(&self) -> Window {
        Window::after(self.warm_up, self.duration)
    }
}

/// Runs a load and reads the CPU time that `pids` and their descendants spend within its window.
pub(super) async fn measured<L>(
    load: impl Future<Output = L>,
    window: Window,
    pids: &[u32],
) -> (L, Duration) {
    let clock = async {
        sleep_until(window.from).await;
        let before = Moment::now(pids);
        sleep_until(window.until).await;
        before.until(&Moment::now(pids))
    };
    tokio::join!(load, clock)
}
