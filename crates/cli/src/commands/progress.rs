//! Waits for functions and shows progress on standard error.
//!
//! On a terminal it is redrawn in place, elsewhere each change is a line; with `--json` there is
//! none.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;

use super::readiness::{ReadyPhase, WaitOutcome, WaitState};
use crate::api::ApiClient;
use crate::exit::{CommandError, ExitStatus};
use crate::output::{TextMeaning, TextStyle};

/// First interval between two polls; it doubles up to the last one.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Last interval between two polls.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A function to wait for, and its state.
pub(super) struct WaitItem {
    pub(super) id: FunctionId,
    /// The last phase seen.
    pub(super) phase: Option<ReadyPhase>,
    pub(super) outcome: WaitOutcome,
    /// The last report of what is wrong.
    last_failure: Option<String>,
    state: WaitState,
    elapsed: Duration,
}

impl WaitItem {
    pub(super) fn new(id: FunctionId) -> Self {
        let (state, elapsed) = (WaitState::default(), Duration::ZERO);
        Self {
            id,
            phase: None,
            outcome: WaitOutcome::Pending,
            last_failure: None,
            state,
            elapsed,
        }
    }

    /// Returns what explains a start that goes on; empty if nothing does.
    fn remark_text(&self) -> String {
        let is_starting = matches!(self.phase, Some(ReadyPhase::Starting { .. }));
        // Tenant's output may be in it, whose escape sequences must not reach the terminal.
        self.last_failure
            .as_ref()
            .filter(|_| is_starting)
            .map(|text| format!(" ({})", text.replace(char::is_control, " ")))
            .unwrap_or_default()
    }
}

/// Waits until each item is ready or has failed, or until `timeout`; then the others stay pending.
///
/// # Errors
/// When the gateway does not answer, or a function was removed meanwhile.
pub(super) fn wait(
    client: &ApiClient,
    items: &mut [WaitItem],
    timeout: Duration,
    quiet: bool,
) -> Result<(), CommandError> {
    let start = Instant::now();
    let mut screen = ProgressScreen::new(quiet, items.len());
    let mut interval = MIN_POLL_INTERVAL;
    loop {
        for item in items
            .iter_mut()
            .filter(|item| item.outcome == WaitOutcome::Pending)
        {
            // One call per item: a list would hold the whole namespace for a few functions.
            let status = client.function(&item.id)?;
            let phase = ReadyPhase::from_status(&status);
            item.last_failure = status.last_failure;
            item.elapsed = start.elapsed();
            item.outcome = item.state.observe(item.elapsed, &phase);
            let changed = item.phase.as_ref() != Some(&phase);
            item.phase = Some(phase);
            if changed {
                screen.print_change(item);
            }
        }
        // Also without a change: the times go on.
        screen.redraw(items);
        if items
            .iter()
            .all(|item| item.outcome != WaitOutcome::Pending)
            // Checked after a poll: `--timeout 0s` still reports the state.
            || start.elapsed() >= timeout
        {
            return Ok(());
        }
        std::thread::sleep(interval.min(timeout.saturating_sub(start.elapsed())));
        interval = (interval * 2).min(MAX_POLL_INTERVAL);
    }
}

/// Prints why a function is not ready; returns the exit status.
pub(super) fn report_outcome(item: &WaitItem, timeout: Duration) -> ExitStatus {
    match &item.outcome {
        WaitOutcome::Ready => ExitStatus::Ok,
        WaitOutcome::Failed(why) => {
            eprintln!(
                "nearpath: {} does not start: {why}; `nearpath logs {}` shows its output",
                item.id, item.id
            );
            ExitStatus::NotReady
        }
        WaitOutcome::Pending => {
            let state = item
                .phase
                .as_ref()
                .map(ReadyPhase::to_text)
                .unwrap_or_default();
            let timeout = nearpath_types::duration::format_duration(timeout);
            eprintln!(
                "nearpath: {} is not ready after {timeout}: {state}{}; increase --timeout to wait longer",
                item.id,
                item.remark_text()
            );
            ExitStatus::NotReady
        }
    }
}

enum ProgressScreen {
    Quiet,
    Lines,
    /// A terminal of `columns` characters, with the number of lines drawn last.
    Live {
        style: TextStyle,
        columns: usize,
        drawn: usize,
    },
}

impl ProgressScreen {
    /// Redraws in place only where all lines fit: lines that scrolled away cannot be drawn over.
    fn new(quiet: bool, items: usize) -> Self {
        let size = rustix::termios::tcgetwinsize(stderr()).ok();
        match size.filter(|size| stderr().is_terminal() && usize::from(size.ws_row) > items + 1) {
            _ if quiet => Self::Quiet,
            Some(size) => Self::Live {
                style: TextStyle::for_stream(&stderr()),
                columns: size.ws_col.into(),
                drawn: 0,
            },
            None => Self::Lines,
        }
    }

    fn print_change(&self, item: &WaitItem) {
        if let (Self::Lines, Some(phase)) = (self, &item.phase) {
            eprintln!(
                "{}: {} ({} ms)",
                item.id.name,
                phase.to_text(),
                item.elapsed.as_millis()
            );
        }
    }

    fn redraw(&mut self, items: &[WaitItem]) {
        let Self::Live {
            style,
            columns,
            drawn,
        } = self
        else {
            return;
        };
        let width = items
            .iter()
            .map(|item| item.id.name.as_str().len())
            .max()
            .unwrap_or(0);
        let mut text = if *drawn > 0 {
            // Cursor up (ECMA-48 CUU); 0 lines would be taken as 1.
            format!("\x1b[{drawn}A")
        } else {
            String::new()
        };
        for item in items {
            let Some(phase) = &item.phase else { continue };
            // A wrapped line would break the count of lines to go up; 14 columns are for the gaps
            // and the time.
            let phase_width = columns.saturating_sub(width + 14).max(10);
            let short: String = phase.to_text().chars().take(phase_width).collect();
            let (name, short) = (item.id.name.as_str(), style.paint(phase.color(), &short));
            let elapsed = style.paint(
                TextMeaning::Faint,
                &format!("{} ms", item.elapsed.as_millis()),
            );
            text += &format!("\x1b[2K{name:<width$}  {short}  {elapsed}\n");
        }
        *drawn = items.iter().filter(|item| item.phase.is_some()).count();
        let _ = stderr().write_all(text.as_bytes()); // lost progress changes no result
    }
}
