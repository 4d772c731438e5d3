//! Issues the declared reads of a called function before its code starts.

use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;

use super::EgressProxy;
use crate::EgressInstance;
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::pool::ConnectionSource;
use nearpath_connpool::upstream::UpstreamHandle;
use nearpath_dbproxy::{ClientContext, adapter_of};

/// Maximum functions without an instance that are remembered.
const MAX_CALLED_FUNCTIONS: usize = 256;
/// Maximum time for an instance to start after a call.
const INSTANCE_START_TIMEOUT: Duration = Duration::from_secs(60);

impl EgressProxy {
    /// Issues a function's declared reads, or remembers the call until its first instance is
    /// admitted.
    pub(super) fn prefetch_reads(&self, function: &FunctionId) {
        let found = self.policy.borrow().any_instance_of(function);
        let Some((instance, source)) = found else {
            let (mut called_functions, now) = (self.called_functions.borrow_mut(), Instant::now());
            // Old calls go first, so that the bound counts recent ones only.
            called_functions
                .retain(|_, since| now.saturating_duration_since(*since) < INSTANCE_START_TIMEOUT);
            if called_functions.len() < MAX_CALLED_FUNCTIONS {
                called_functions.insert(function.clone(), now);
            }
            return;
        };
        let declared = instance.destinations.iter();
        for to in declared.filter(|to| !to.egress.prefetch.is_empty()) {
            if let Some(adapter) = adapter_of(to.egress.protocol) {
                adapter.prefetch_reads(&self.prefetch_context(&instance, to, &source));
            }
        }
    }

    /// Issues the reads of a new instance whose function was called before.
    pub(super) fn prefetch_missed(&self, function: &FunctionId) {
        let called_at = self.called_functions.borrow_mut().remove(function);
        if called_at.is_some_and(|since| since.elapsed() < INSTANCE_START_TIMEOUT) {
            self.prefetch_reads(function);
        }
    }

    fn prefetch_context(
        &self,
        instance: &Rc<EgressInstance>,
        to: &Rc<EgressDestination>,
        source: &Rc<dyn ConnectionSource>,
    ) -> ClientContext {
        ClientContext {
            caller: Rc::clone(&instance.caller),
            upstream: UpstreamHandle {
                destination: Rc::clone(to),
                source: Rc::clone(source),
                adapters: Rc::clone(&self.pool.adapters),
                counters: self.pool.counters_for(to),
            },
            logger: Rc::clone(&self.logger),
            failed_writes: Rc::clone(&self.failed_writes),
            tls_acceptors: Rc::clone(&self.tls_acceptors),
            instance_alive: None,
        }
    }
}
