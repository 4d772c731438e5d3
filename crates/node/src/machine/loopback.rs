//! Redirection of bytes to functions' own servers, attached when the first function asks for it.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nearpath_kernel::bpf::{LoopbackCounters, LoopbackRedirect};
use nearpath_kernel::cgroup::NodeCgroups;

/// Time for which a failure counts for later functions. A try takes up to 2 s.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Redirection that is attached at most once.
#[derive(Default)]
pub(super) struct LazyRedirect {
    attached: OnceLock<Arc<LoopbackRedirect>>,
    /// The last failure; locked while attaching.
    failure: Mutex<Option<AttachFailure>>,
}

struct AttachFailure {
    at: Instant,
    kind: io::ErrorKind,
    text: String,
}

impl LazyRedirect {
    /// Returns the redirection. Attaches it at the first call. A failure is tried again after
    /// [`RETRY_INTERVAL`]: the administrator may have fixed the cause.
    ///
    /// # Errors
    /// As [`LoopbackRedirect::attach`].
    pub(super) fn attach(&self, cgroups: &NodeCgroups) -> io::Result<Arc<LoopbackRedirect>> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(attached) = self.attached.get() {
            return Ok(attached.clone());
        }
        if let Some(last) = failure.as_ref()
            && last.at.elapsed() < RETRY_INTERVAL
        {
            return Err(io::Error::new(last.kind, last.text.clone()));
        }
        let attached = LoopbackRedirect::attach(cgroups).inspect_err(|error| {
            *failure = Some(AttachFailure {
                at: Instant::now(),
                kind: error.kind(),
                text: error.to_string(),
            });
        })?;
        Ok(self.attached.get_or_init(|| Arc::new(attached)).clone())
    }

    /// Returns the outcomes so far. Does not wait for an attachment.
    pub(super) fn read_counters(&self) -> LoopbackCounters {
        let counters = self.attached.get().map(|redirect| redirect.read_counters());
        counters.unwrap_or_default()
    }
}
