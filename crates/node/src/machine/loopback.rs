//! Redirection of bytes to functions' own servers, attached when the first function asks for it.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nearpath_kernel::bpf::{LoopbackCounters, LoopbackRedirect};
use nearpath_kernel::cgroup::NodeCgroups;

/// Redirection that is attached at most once.
#[derive(Default)]
pub(super) struct LazyRedirect {
    attached: OnceLock<Arc<LoopbackRedirect>>,
    /// Held while attaching.
    attaching: Mutex<()>,
}

impl LazyRedirect {
    /// Returns the redirection, and attaches it if it is not. A failure is tried again at each call: the
    /// administrator may have mended its cause.
    ///
    /// # Errors
    /// As [`LoopbackRedirect::attach`].
    pub(super) fn attach(&self, cgroups: &NodeCgroups) -> io::Result<Arc<LoopbackRedirect>> {
        let _attaching = self
            .attaching
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(attached) = self.attached.get() {
            return Ok(attached.clone());
        }
        let redirect = Arc::new(LoopbackRedirect::attach(cgroups)?);
        Ok(self.attached.get_or_init(|| redirect).clone())
    }

    /// Returns the outcomes so far. Does not wait for an attachment.
    pub(super) fn read_counters(&self) -> LoopbackCounters {
        let counters = self.attached.get().map(|redirect| redirect.read_counters());
        counters.unwrap_or_default()
    }
}
