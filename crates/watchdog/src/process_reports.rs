//! Why a process of the tenant ended or never answers: for its caller, and for the node, which logs,
//! counts and describes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nearpath_types::{PlatformError, Reason};

use crate::errors::watchdog_error;
use crate::logs::log_line;
use crate::oom_counter::OomCounter;
use crate::process::TenantExit;
use crate::start_notes::StartNotes;

/// SIGKILL, and the exit code by which a shell reports a killed child.
const KILL_EXITS: [TenantExit; 2] = [TenantExit::Signal(9), TenantExit::Code(128 + 9)];
/// Cause of a kill by the kernel, for callers.
const MEMORY_CAUSE: &str =
    "the kernel killed it, because the instance needed more memory than it may use";

/// Reports about processes; see the module documentation. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessReports {
    notes: StartNotes,
    oom_counter: OomCounter,
    /// The node knows already that the function is or may be a server: each call would find it
    /// again.
    server_reported: Arc<AtomicBool>,
}

impl ProcessReports {
    pub(crate) fn new(notes: StartNotes, oom_counter: OomCounter) -> Self {
        Self {
            notes,
            oom_counter,
            server_reported: Arc::default(),
        }
    }

    /// Returns the processes killed for lack of memory so far, for a later comparison.
    pub(crate) fn oom_kills(&self) -> Option<u64> {
        self.oom_counter.read_kills()
    }

    /// Returns the error for a call whose process failed. `before` is the counter at its start.
    pub(crate) fn failed_exit(&self, exit: TenantExit, before: Option<u64>) -> PlatformError {
        let text = format!("the process ended with {exit}");
        // A kill alone proves nothing (decision 74): another process may send the signal.
        if !KILL_EXITS.contains(&exit) || !self.oom_counter.has_grown(before) {
            return watchdog_error(Reason::FunctionFailed, text).governed_by("function_process");
        }
        // The instance survives, so nothing else would tell the node.
        self.notes.write_oom_kill();
        watchdog_error(Reason::FunctionFailed, format!("{text}: {MEMORY_CAUSE}"))
            .governed_by("limits.memory")
    }

    /// Adds the cause to the error of a call that the tenant's server did not answer, if the kernel
    /// killed it. `before` is the counter at the call's start: later calls are not to blame an
    /// earlier kill.
    pub(crate) fn explain_lost_server(
        &self,
        mut error: PlatformError,
        before: Option<u64>,
    ) -> PlatformError {
        // Other errors, such as those of the caller's body, do not come from the server.
        let is_lost = matches!(error.reason, Reason::ConnectFailed | Reason::FunctionFailed);
        if is_lost && self.oom_counter.has_grown(before) {
            error.message = format!("{}: {MEMORY_CAUSE}", error.message).into();
            error = error.governed_by("limits.memory");
        }
        error
    }

    /// Returns the error for a process that is a server: it would not answer before the call's time
    /// limit. Its port is for the administrator alone.
    pub(crate) fn server_error(&self, port: u16) -> PlatformError {
        self.report_server(&format!(
            "the tenant's process listens on port {port} instead of answering on its stdout: {}",
            server_advice(port)
        ));
        let text = "the process is a server, and the function's mode is not http";
        watchdog_error(Reason::FunctionFailed, text).governed_by("mode")
    }

    /// Reports another process of a call that listens, while its call goes on.
    pub(crate) fn note_possible_server(&self, port: u16) {
        self.report_server(&format!(
            "a process of a call without output listens on port {port}, without connections; if it is the \
             function's server: {}",
            server_advice(port)
        ));
    }

    /// Returns whether a server was reported.
    pub(crate) fn may_be_server(&self) -> bool {
        // Relaxed: the flag guards no other data.
        self.server_reported.load(Ordering::Relaxed)
    }

    fn report_server(&self, text: &str) {
        // Relaxed: only one of them has to write it.
        if !self.server_reported.swap(true, Ordering::Relaxed) {
            log_line!("{text}");
            self.notes.write_remark(text);
        }
    }
}

fn server_advice(port: u16) -> String {
    format!("set mode: http and upstream_url: http://127.0.0.1:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_server_are_explained_by_memory() {
        let (file, path) = tempfile::NamedTempFile::new().unwrap().into_parts();
        std::fs::write(&path, "oom_kill 1\n").unwrap();
        let reports = ProcessReports::new(StartNotes::default(), OomCounter::new(Some(file)));
        let explained = |reason| {
            let error = reports.explain_lost_server(watchdog_error(reason, "x"), Some(0));
            error.message.contains(MEMORY_CAUSE)
        };
        assert!(explained(Reason::ConnectFailed) && explained(Reason::FunctionFailed));
        assert!(!explained(Reason::SlowRequest) && !explained(Reason::Overload));
    }
}
