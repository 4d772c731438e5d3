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
    /// The node knows already that the function is a server: each call would find it again.
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
    /// killed it. `before` is the counter at the server's start.
    pub(crate) fn explain_lost_server(
        &self,
        mut error: PlatformError,
        before: Option<u64>,
    ) -> PlatformError {
        if self.oom_counter.has_grown(before) {
            error.message = format!("{}: {MEMORY_CAUSE}", error.message).into();
            error = error.governed_by("limits.memory");
        }
        error
    }

    /// Returns the error for a process that is a server: it would not answer before the call's time
    /// limit. Its port is for the administrator alone.
    pub(crate) fn server_error(&self, port: u16) -> PlatformError {
        let text = format!(
            "the tenant's process listens on port {port} instead of answering on its stdout: set mode: http and \
             upstream_url: http://127.0.0.1:{port}"
        );
        log_line!("{text}");
        // Relaxed: only one of them has to write it.
        if !self.server_reported.swap(true, Ordering::Relaxed) {
            self.notes.write_remark(&text);
        }
        let text = "the process is a server, and the function's mode is not http";
        watchdog_error(Reason::FunctionFailed, text).governed_by("mode")
    }
}
