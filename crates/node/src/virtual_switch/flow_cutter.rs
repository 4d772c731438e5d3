//! Cuts the flows of removed edges, and UDP sockets whose peer has ended. A thread does it, so that
//! the agent does not wait.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use nearpath_types::Eip;

use super::cut_schedule::CutSchedule;
use crate::machine::InstanceProcess;

/// A live instance that has been admitted.
#[derive(Clone)]
pub(super) struct TrackedInstance {
    pub(super) eip: Eip,
    /// Virtual address of its function.
    pub(super) function: Ipv4Addr,
    /// Weak: its end does not wait for a check.
    pub(super) process: Weak<dyn InstanceProcess>,
}

/// Number of requests so far. An instance that is admitted notes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestCount(u64);

/// Handle to the thread, which ends when it is dropped.
pub(super) struct FlowCutter {
    instances: Arc<Mutex<TrackedInstances>>,
    requests: mpsc::Sender<BTreeSet<Ipv4Addr>>,
}

#[derive(Default)]
struct TrackedInstances {
    by_eip: BTreeMap<Ipv4Addr, TrackedInstance>,
    requests: u64,
}

impl FlowCutter {
    /// Starts the thread. `cut_flows` ends the flows of an instance that have no declared edge, and
    /// returns their number.
    ///
    /// # Errors
    /// Fails when the machine has no more threads.
    pub(super) fn start(
        cut_flows: impl Fn(&TrackedInstance) -> io::Result<usize> + Send + 'static,
    ) -> io::Result<Self> {
        let (requests, received) = mpsc::channel();
        let instances = Arc::new(Mutex::<TrackedInstances>::default());
        let worker = CutWorker {
            instances: instances.clone(),
            requests: received,
            cut_flows,
        };
        let thread = thread::Builder::new().name("flow-cutter".into());
        thread.spawn(move || worker.run())?;
        Ok(Self {
            instances,
            requests,
        })
    }

    /// Cuts the undeclared flows of functions' instances soon. Called after their edges were removed,
    /// or after the end of an instance that they have exchanged datagrams with.
    pub(super) fn request_cuts(&self, functions: BTreeSet<Ipv4Addr>) {
        if functions.is_empty() {
            return;
        }
        lock(&self.instances).requests += 1;
        let _ = self.requests.send(functions); // the thread ends after this handle only
    }

    /// Returns the number of requests so far.
    pub(super) fn request_count(&self) -> RequestCount {
        RequestCount(lock(&self.instances).requests)
    }

    /// Adds an instance that was admitted after `admitted` requests. Later requests concern it.
    pub(super) fn track(&self, instance: TrackedInstance, admitted: RequestCount) {
        let function = instance.function;
        let missed = {
            let mut instances = lock(&self.instances);
            instances.by_eip.insert(instance.eip.0, instance);
            RequestCount(instances.requests) != admitted
        };
        // While it was launched, it may have connected by an edge that was removed since.
        if missed {
            self.request_cuts([function].into());
        }
    }

    /// Removes an instance.
    pub(super) fn forget(&self, eip: Eip) {
        lock(&self.instances).by_eip.remove(&eip.0);
    }
}

impl fmt::Debug for FlowCutter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowCutter").finish_non_exhaustive()
    }
}

struct CutWorker<C> {
    instances: Arc<Mutex<TrackedInstances>>,
    requests: mpsc::Receiver<BTreeSet<Ipv4Addr>>,
    cut_flows: C,
}

impl<C: Fn(&TrackedInstance) -> io::Result<usize>> CutWorker<C> {
    fn run(&self) {
        let mut schedule = CutSchedule::default();
        while self.receive(&mut schedule).is_some() {
            for function in schedule.take_due(Instant::now()) {
                self.check_function(function);
            }
        }
    }

    /// Waits for requests, or for the next check. Returns `None` at the end.
    fn receive(&self, schedule: &mut CutSchedule) -> Option<()> {
        let received = match schedule.next_time() {
            None => self
                .requests
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(time) => self
                .requests
                .recv_timeout(time.saturating_duration_since(Instant::now())),
        };
        let first = match received {
            Ok(functions) => Some(functions),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        // One check of a function covers all waiting requests.
        for functions in first.into_iter().chain(self.requests.try_iter()) {
            schedule.request_checks(functions, Instant::now());
        }
        Some(())
    }

    fn check_function(&self, function: Ipv4Addr) {
        let instances: Vec<_> = {
            let tracked = lock(&self.instances);
            let own = tracked
                .by_eip
                .values()
                .filter(|one| one.function == function);
            own.cloned().collect()
        };
        for instance in instances {
            let eip = instance.eip;
            match (self.cut_flows)(&instance) {
                Ok(0) => {}
                Ok(cut) => {
                    tracing::info!(%function, %eip, cut, "connections of removed edges, or UDP sockets of ended instances, were cut")
                }
                // It has just ended, and its connections with it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(%function, %eip, %error, "connections of removed edges could not be cut; they go on until they end");
                }
            }
        }
    }
}

fn lock(instances: &Mutex<TrackedInstances>) -> MutexGuard<'_, TrackedInstances> {
    instances.lock().unwrap_or_else(PoisonError::into_inner) // each change is complete
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{ProcessExit, ProcessUsage};
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use std::time::Duration;

    const CART: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 2);
    const STORE: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 3);
    const LIMIT: Duration = Duration::from_secs(30);

    struct EndedProcess;

    impl InstanceProcess for EndedProcess {
        fn terminate(&self) {}
        fn kill(&self) {}
        fn wait_exit(&self) -> BoxFuture<'_, ProcessExit> {
            std::future::pending().boxed()
        }
        fn read_usage(&self) -> Option<ProcessUsage> {
            None
        }
        fn release_resources(&self) {}
    }

    fn instance(function: Ipv4Addr, number: u8) -> TrackedInstance {
        TrackedInstance {
            eip: Eip([10, 62, 0, number].into()),
            function,
            process: Weak::<EndedProcess>::new(),
        }
    }

    /// Starts a cutter that reports each instance, and then waits for a permission to go on.
    fn start_stepwise() -> (FlowCutter, mpsc::Receiver<Eip>, mpsc::Sender<()>) {
        let (report, reports) = mpsc::channel();
        let (go, permissions) = mpsc::channel();
        let cutter = FlowCutter::start(move |one| {
            let _ = report.send(one.eip);
            let _ = permissions.recv();
            Ok(1)
        });
        (cutter.unwrap(), reports, go)
    }

    #[test]
    fn requests_during_a_check_are_coalesced() {
        let (cutter, reports, go) = start_stepwise();
        let admitted = cutter.request_count();
        cutter.track(instance(CART, 2), admitted);
        cutter.track(instance(STORE, 3), admitted);
        cutter.request_cuts([CART].into());
        let next = || reports.recv_timeout(LIMIT).unwrap().0.octets()[3];
        assert_eq!(next(), 2);
        for _ in 0..100 {
            cutter.request_cuts([STORE, CART].into());
        }
        // One check of each, in any number of repetitions: never CART twice without STORE between.
        let mut seen = Vec::new();
        for _ in 0..4 {
            go.send(()).unwrap();
            seen.push(next());
        }
        assert_eq!(seen, [2, 3, 2, 3]);
    }

    #[test]
    fn an_instance_that_was_launched_during_a_removal_is_checked() {
        let (cutter, reports, _go) = start_stepwise();
        let admitted = cutter.request_count();
        cutter.request_cuts([CART].into());
        cutter.track(instance(CART, 2), admitted);
        let checked = reports.recv_timeout(LIMIT).unwrap();
        assert_eq!(checked, Eip([10, 62, 0, 2].into()));
    }

    #[test]
    fn an_ended_instance_is_not_checked() {
        let (cutter, reports, _go) = start_stepwise();
        let admitted = cutter.request_count();
        cutter.track(instance(CART, 2), admitted);
        cutter.track(instance(CART, 3), admitted);
        cutter.forget(Eip([10, 62, 0, 2].into()));
        cutter.request_cuts([CART].into());
        let checked = reports.recv_timeout(LIMIT).unwrap();
        assert_eq!(checked, Eip([10, 62, 0, 3].into()));
    }
}
