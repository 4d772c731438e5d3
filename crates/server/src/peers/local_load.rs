//! The report of this node's functions: which may run here, and how many requests they have.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_gateway::invoke::FunctionTable;
use nearpath_internode::LocalState;
use nearpath_types::{
    FunctionId, FunctionLoad, FunctionMap, FunctionRoute, InstanceState, RoutingSnapshot,
};
use tokio::sync::watch;
use tokio::time::sleep;

/// Interval at which requests are counted. Other nodes choose by it, so it is short against the time in
/// which load shifts, and long against a look at all functions.
const LOAD_INTERVAL: Duration = Duration::from_millis(100);
/// Interval while no function has requests: an idle node need not wake up as often.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);

/// Returns the time in seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Follows the snapshots of this node and the requests of its gateway.
pub(super) async fn report(
    state: watch::Sender<Arc<LocalState>>,
    mut snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    functions: FunctionTable,
) {
    let (mut report, mut interval) = (Report::default(), LOAD_INTERVAL);
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        report.apply_snapshot(&snapshot, &functions);
        report.publish(&state);
        loop {
            tokio::select! {
                biased;
                changed = snapshots.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = sleep(interval) => {
                    interval = match report.count_requests(&functions) {
                        true => LOAD_INTERVAL,
                        false => IDLE_INTERVAL,
                    };
                    report.publish(&state);
                }
            }
        }
    }
}

/// Loads of the functions that may run here.
#[derive(Default)]
struct Report {
    /// Functions that the loads reflect.
    applied: FunctionMap<FunctionRoute>,
    loads: FunctionMap<FunctionLoad>,
    /// Requests of each function that had started at the last count, if any had.
    started: HashMap<FunctionId, u64>,
}

impl Report {
    fn apply_snapshot(&mut self, snapshot: &RoutingSnapshot, functions: &FunctionTable) {
        let before = std::mem::replace(&mut self.applied, snapshot.functions.clone());
        for change in snapshot.functions.changes_since(&before) {
            match change.after.filter(|route| route.runs_here) {
                Some(route) => {
                    let function = functions.get(change.id);
                    let load = FunctionLoad {
                        ready: ready_instances(route),
                        requests: function.map_or(0, |function| function.local_requests()),
                    };
                    self.loads.insert(change.id.clone(), load);
                }
                None => {
                    self.loads.remove(change.id);
                    self.started.remove(change.id);
                }
            }
        }
    }

    /// Counts the requests of functions of which one has started since the last count, or was open then.
    /// Returns whether there are any.
    fn count_requests(&mut self, functions: &FunctionTable) -> bool {
        let mut is_busy = false;
        for function in functions.list_functions() {
            let (id, started) = (function.id(), function.started_requests());
            let Some(load) = self.loads.get(id) else {
                continue;
            };
            let is_idle = self.started.get(id).copied().unwrap_or_default() == started;
            if is_idle && load.requests == 0 {
                continue;
            }
            is_busy = true;
            let (ready, requests) = (load.ready, function.local_requests());
            self.started.insert(id.clone(), started);
            if load.requests != requests {
                self.loads
                    .insert(id.clone(), FunctionLoad { ready, requests });
            }
        }
        is_busy
    }

    fn publish(&self, state: &watch::Sender<Arc<LocalState>>) {
        state.send_if_modified(|state| {
            let next = state.with_functions(self.loads.clone());
            let is_other = next.version() != state.version();
            if is_other {
                *state = Arc::new(next);
            }
            is_other
        });
    }
}

fn ready_instances(route: &FunctionRoute) -> u32 {
    let is_ready = |state| state == InstanceState::Ready;
    let ready = route.instances.iter().filter(|one| is_ready(one.state));
    u32::try_from(ready.count()).unwrap_or(u32::MAX)
}
