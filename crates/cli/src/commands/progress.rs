//! Waiting for functions, with what happens meanwhile on standard error: redrawn in place on a terminal, one line a change
//! otherwise, nothing with `--json`.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;

use super::readiness::{Phase, Verdict, Waiting};
use crate::api::Client;
use crate::exit::{Exit, Failure};
use crate::output::{Paint, Style};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// One function that is waited for, and what is known of it.
pub(super) struct Item {
    pub(super) id: FunctionId,
    /// The last phase seen.
    pub(super) phase: Option<Phase>,
    /// What it came to.
    pub(super) verdict: Verdict,
    waiting: Waiting,
    took: Duration,
}

impl Item {
    pub(super) fn new(id: FunctionId) -> Self {
        let (waiting, took) = (Waiting::default(), Duration::ZERO);
        Self { id, phase: None, verdict: Verdict::Pending, waiting, took }
    }
}

/// Waits until each item is there or has failed, or `timeout` has passed. What is still pending then has not arrived.
///
/// # Errors
/// When the gateway cannot be asked any more, or a function was removed meanwhile.
pub(super) fn wait(client: &Client, items: &mut [Item], timeout: Duration, quiet: bool) -> Result<(), Failure> {
    let start = Instant::now();
    let mut screen = Screen::new(quiet, items.len());
    let mut pause = FIRST_PAUSE;
    loop {
        for item in items.iter_mut().filter(|item| item.verdict == Verdict::Pending) {
            let phase = Phase::of(&client.function(&item.id)?);
            item.took = start.elapsed();
            item.verdict = item.waiting.observe(item.took, &phase);
            let changed = item.phase.as_ref() != Some(&phase);
            item.phase = Some(phase);
            if changed {
                screen.line(item);
            }
        }
        screen.draw(items);
        if items.iter().all(|item| item.verdict != Verdict::Pending) || start.elapsed() >= timeout {
            return Ok(());
        }
        std::thread::sleep(pause.min(timeout.saturating_sub(start.elapsed())));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What the wait for one function came to, as an exit code with its text told.
pub(super) fn settle(item: &Item, timeout: Duration) -> Exit {
    match &item.verdict {
        Verdict::There => Exit::Ok,
        Verdict::Failed(why) => {
            eprintln!("nearpath: {} does not start: {why}; `nearpath logs {}` shows what it wrote", item.id, item.id);
            Exit::NotReady
        }
        Verdict::Pending => {
            let state = item.phase.as_ref().map(Phase::text).unwrap_or_default();
            let timeout = nearpath_types::duration::format(timeout);
            eprintln!("nearpath: {} is not ready after {timeout}: {state}; --timeout waits longer", item.id);
            Exit::NotReady
        }
    }
}

enum Screen {
    Quiet,
    Lines,
    /// A terminal so many characters wide, and how many lines were drawn last.
    Live {
        style: Style,
        columns: usize,
        drawn: usize,
    },
}

impl Screen {
    /// Redraws in place only where all lines fit: what has scrolled away cannot be drawn over.
    fn new(quiet: bool, items: usize) -> Self {
        let size = rustix::termios::tcgetwinsize(stderr()).ok();
        match size.filter(|size| stderr().is_terminal() && usize::from(size.ws_row) > items + 1) {
            _ if quiet => Self::Quiet,
            Some(size) => Self::Live { style: Style::of(&stderr()), columns: size.ws_col.into(), drawn: 0 },
            None => Self::Lines,
        }
    }

    fn line(&self, item: &Item) {
        if let (Self::Lines, Some(phase)) = (self, &item.phase) {
            eprintln!("{}: {} ({} ms)", item.id.name, phase.text(), item.took.as_millis());
        }
    }

    fn draw(&mut self, items: &[Item]) {
        let Self::Live { style, columns, drawn } = self else { return };
        let width = items.iter().map(|item| item.id.name.as_str().len()).max().unwrap_or(0);
        let mut text = if *drawn > 0 { format!("\x1b[{drawn}A") } else { String::new() };
        for item in items {
            let Some(phase) = &item.phase else { continue };
            let paint = match phase {
                Phase::Ready { .. } | Phase::Asleep => Paint::Good,
                Phase::Starting { .. } => Paint::Doubtful,
                Phase::Trouble { .. } => Paint::Bad,
            };
            let room = columns.saturating_sub(width + 14).max(10); // the name, gaps and the time
            let short: String = phase.text().chars().take(room).collect();
            let took = style.paint(Paint::Faint, &format!("{} ms", item.took.as_millis()));
            text += &format!("\x1b[2K{:<width$}  {}  {took}\n", item.id.name.as_str(), style.paint(paint, &short));
        }
        *drawn = items.iter().filter(|item| item.phase.is_some()).count();
        let _ = stderr().write_all(text.as_bytes()); // progress that cannot be shown changes nothing
    }
}
