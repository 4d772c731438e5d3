//! Requests that hold a place at a function while their bodies arrive. A sweep ends those whose
//! callers are too slow while others wait (ADR 73).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::SourceNetwork;

use crate::call::GatewayCall;
use crate::context::{LatePlace, OpenTransfer, TransferGuard};
use crate::function::FunctionEntry;
use crate::request::UploadProgress;

struct UploadHolder {
    function: Arc<FunctionEntry>,
    source: SourceNetwork,
    progress: Rc<UploadProgress>,
}

/// Adds an admitted request to the sweep if its body is still arriving and the function's places
/// are limited.
pub(crate) fn hold_place_while_uploading(call: &GatewayCall) -> Option<TransferGuard> {
    let progress = call.upload_progress.as_ref()?;
    if progress.has_ended() || call.route.policy.max_inflight.is_none() {
        return None;
    }
    progress.hold_place(call.worker.min_body_rate, Instant::now());
    Some(call.worker.sweep_transfer(Rc::new(UploadHolder {
        function: call.function.clone(),
        source: call.source,
        progress: progress.clone(),
    })))
}

impl OpenTransfer for UploadHolder {
    /// Cuts nothing: the request has timers of its own.
    fn cut_if_overdue(&self, now: Instant, _: u32, _: u32) {
        if !self.function.gate.has_waiting() {
            self.progress.note_uncontended(now);
        }
    }

    fn late_place(&self, now: Instant) -> Option<LatePlace> {
        Some(LatePlace {
            gate: self.function.gate.clone(),
            source: self.source,
            lateness: self.progress.lateness(now)?,
        })
    }

    fn lose_place(&self) {
        self.progress.lose_place();
    }
}
