//! A function was called: what it declared as reads is asked for now, before its code has begun.

use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;
use nearpath_types::egress::EgressProtocol;

use super::EgressProxy;
use crate::EgressInstance;
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::pool::ConnectionSource;
use nearpath_connpool::upstream::UpstreamHandle;
use nearpath_dbproxy::{ClientContext, http, redis};

/// Functions without an instance that are remembered.
const MAX_CALLED_FUNCTIONS: usize = 256;
/// How long an instance may take to be there.
const INSTANCE_START_TIMEOUT: Duration = Duration::from_secs(60);

impl EgressProxy {
    /// Issues a function's reads; when its first instance is there, if it has none.
    pub(super) fn prefetch_reads(&self, function: &FunctionId) {
        let found = self.policy.borrow().any_instance_of(function);
        let Some((caller, backends)) = found else {
            let (mut called, now) = (self.called_functions.borrow_mut(), Instant::now());
            called
                .retain(|_, since| now.saturating_duration_since(*since) < INSTANCE_START_TIMEOUT);
            if called.len() < MAX_CALLED_FUNCTIONS {
                called.insert(function.clone(), now);
            }
            return;
        };
        for to in caller
            .destinations
            .iter()
            .filter(|to| !to.egress.prefetch.is_empty())
        {
            let visit = self.prefetch_context(&caller, to, &backends);
            match to.egress.protocol {
                EgressProtocol::Http => http::prefetch_reads(&visit),
                EgressProtocol::Redis => redis::prefetch_reads(&visit),
                _ => {}
            }
        }
    }

    /// An instance is there: was its function called while there was none?
    pub(super) fn prefetch_missed(&self, function: &FunctionId) {
        let called = self.called_functions.borrow_mut().remove(function);
        if called.is_some_and(|since| since.elapsed() < INSTANCE_START_TIMEOUT) {
            self.prefetch_reads(function);
        }
    }

    fn prefetch_context(
        &self,
        caller: &Rc<EgressInstance>,
        to: &Rc<EgressDestination>,
        backends: &Rc<dyn ConnectionSource>,
    ) -> ClientContext {
        ClientContext {
            caller: Rc::clone(&caller.caller),
            upstream: UpstreamHandle {
                destination: Rc::clone(to),
                source: Rc::clone(backends),
                adapters: Rc::clone(&self.pool.adapters),
                counters: self.pool.counters_for(to),
            },
            failed_writes: Rc::clone(&self.failed_writes),
            instance_alive: None,
        }
    }
}
