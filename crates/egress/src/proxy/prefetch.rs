//! A function was called: what it declared as reads is asked for now, before its code has begun.

use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;
use nearpath_types::egress::Protocol;

use super::Exit;
use crate::EgressInstance;
use nearpath_connpool::destination::Destination;
use nearpath_connpool::pool::Backends;
use nearpath_connpool::upstream::Upstream;
use nearpath_dbproxy::{Visit, http, redis};

/// Functions without an instance that are remembered.
const MOST: usize = 256;
/// How long an instance may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);

impl Exit {
    /// Issues a function's reads; when its first instance is there, if it has none.
    pub(super) fn foresee(&self, function: &FunctionId) {
        let found = self.guests.borrow().any_of(function);
        let Some((caller, backends)) = found else {
            let (mut called, now) = (self.called.borrow_mut(), Instant::now());
            called.retain(|_, since| now.saturating_duration_since(*since) < PATIENCE);
            if called.len() < MOST {
                called.insert(function.clone(), now);
            }
            return;
        };
        for to in caller.destinations.iter().filter(|to| !to.egress.prefetch.is_empty()) {
            let visit = self.visit_ahead(&caller, to, &backends);
            match to.egress.protocol {
                Protocol::Http => http::foresee(&visit),
                Protocol::Redis => redis::foresee(&visit),
                _ => {}
            }
        }
    }

    /// An instance is there: was its function called while there was none?
    pub(super) fn foresee_late(&self, function: &FunctionId) {
        let called = self.called.borrow_mut().remove(function);
        if called.is_some_and(|since| since.elapsed() < PATIENCE) {
            self.foresee(function);
        }
    }

    fn visit_ahead(&self, caller: &Rc<EgressInstance>, to: &Rc<Destination>, backends: &Rc<dyn Backends>) -> Visit {
        Visit {
            caller: Rc::clone(&caller.caller),
            upstream: Upstream {
                destination: Rc::clone(to),
                backends: Rc::clone(backends),
                rooms: Rc::clone(&self.keeper.rooms),
                ledger: self.keeper.ledger(to),
            },
            unwritten: Rc::clone(&self.unwritten),
            here: None,
        }
    }
}
