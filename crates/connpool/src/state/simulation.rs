//! Clients, servers and redeployments in any order, with a virtual clock. Every step checks the
//! promises.

mod events;
mod promises;

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const GROUPS: [&str; 2] = ["one:1", "two:2"];
const FUNCTION_COUNT: usize = 4;
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
enum SimulationStep {
    Ask {
        function: usize,
        wait: u64,
    },
    Take {
        function: usize,
    },
    /// A supervisor takes a ready socket, and its report arrives at once.
    Taken(usize),
    /// A supervisor takes a socket that is being closed at that moment.
    TakenWhileClosing(usize),
    Cancel(usize),
    Connected(usize),
    Failed(usize),
    ClientCloses(usize),
    AdapterIdles(usize),
    WarmDies(usize),
    Closed(usize),
    ExpectClients {
        function: usize,
        clients: u32,
    },
    Redeploy {
        function: usize,
        max: u32,
        warm: u32,
    },
    /// Another number of nodes shares the limit.
    SetLimits {
        function: usize,
        max: u32,
        warm: u32,
    },
    Forget(usize),
    PassTime(u64),
}

fn simulation_step() -> impl Strategy<Value = SimulationStep> {
    let (function, any) = (0..FUNCTION_COUNT, any::<usize>());
    prop_oneof![
        8 => (function.clone(), 0u64..5_000).prop_map(|(function, wait)| SimulationStep::Ask { function, wait }),
        2 => function.clone().prop_map(|function| SimulationStep::Take { function }),
        2 => any.prop_map(SimulationStep::Taken),
        2 => any.prop_map(SimulationStep::TakenWhileClosing),
        2 => any.prop_map(SimulationStep::Cancel),
        8 => any.prop_map(SimulationStep::Connected),
        2 => any.prop_map(SimulationStep::Failed),
        6 => any.prop_map(SimulationStep::ClientCloses),
        2 => any.prop_map(SimulationStep::AdapterIdles),
        1 => any.prop_map(SimulationStep::WarmDies),
        4 => any.prop_map(SimulationStep::Closed),
        1 => (function.clone(), 0u32..6).prop_map(|(function, clients)| SimulationStep::ExpectClients { function, clients }),
        1 => (function.clone(), 1u32..6, 0u32..4).prop_map(|(function, max, warm)| SimulationStep::SetLimits { function, max, warm: warm.min(max) }),
        1 => (function, 1u32..6, 0u32..4).prop_map(|(function, max, warm)| SimulationStep::Redeploy { function, max, warm: warm.min(max) }),
        1 => any.prop_map(SimulationStep::Forget),
        3 => (0u64..8_000).prop_map(SimulationStep::PassTime),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketFate {
    Connecting,
    /// Open and unused, as far as is known here.
    Warm,
    InUse,
    /// Used before, and kept idle by an adapter.
    IdleAtAdapter,
    Closing,
}

#[derive(Debug, Clone)]
struct SimulatedSocket {
    key: KeyId,
    fate: SocketFate,
    opened_at: Instant,
    was_open: bool,
    handed_out: bool,
}

#[derive(Debug, Clone)]
struct SimulatedKey {
    group: usize,
    max: u32,
    warm: u32,
    retired: Option<Instant>,
    forgotten: bool,
}

#[derive(Debug)]
struct SimulatedClient {
    key: KeyId,
    function: usize,
    deadline: Instant,
}

struct Simulation {
    now: Instant,
    state: PoolState,
    keys: BTreeMap<KeyId, SimulatedKey>,
    /// Current key of each function.
    current_keys: Vec<KeyId>,
    sockets: BTreeMap<SocketId, SimulatedSocket>,
    clients: BTreeMap<WaitTicket, SimulatedClient>,
}

impl Simulation {
    fn new() -> Self {
        let (now, state) = (Instant::now(), PoolState::new());
        let mut simulation = Self {
            now,
            state,
            keys: BTreeMap::new(),
            current_keys: Vec::new(),
            sockets: BTreeMap::new(),
            clients: BTreeMap::new(),
        };
        for function in 0..FUNCTION_COUNT {
            let key = simulation.declare(function % GROUPS.len(), 3, 2);
            simulation.current_keys.push(key);
        }
        simulation
    }

    fn declare(&mut self, group: usize, max: u32, warm: u32) -> KeyId {
        let terms = KeyTerms {
            max,
            warm,
            idle: IDLE_TIMEOUT,
            age: IDLE_TIMEOUT * 3,
        };
        let key = self.state.declare_key(self.now, GROUPS[group], terms);
        let old = self.keys.insert(
            key,
            SimulatedKey {
                group,
                max,
                warm,
                retired: None,
                forgotten: false,
            },
        );
        assert!(old.is_none(), "a key is never used again");
        key
    }

    fn apply_step(&mut self, step: SimulationStep) {
        match step {
            SimulationStep::Ask { function, wait } => {
                self.request_socket(function, Duration::from_millis(wait))
            }
            SimulationStep::Take { function } => {
                let socket = self.state.take_warm(self.now, self.current_keys[function]);
                self.hand_out(self.current_keys[function], socket);
            }
            SimulationStep::Taken(index) => self.confirm_taken(index, SocketFate::Warm),
            SimulationStep::TakenWhileClosing(index) => {
                self.confirm_taken(index, SocketFate::Closing)
            }
            SimulationStep::Cancel(index) => self.cancel_wait(index),
            SimulationStep::Connected(index) => self.connect_socket(index),
            SimulationStep::Failed(index) => {
                let Some(socket) = self.pick_socket(index, SocketFate::Connecting) else {
                    return;
                };
                self.sockets.remove(&socket);
                self.state.socket_failed(self.now, socket);
            }
            SimulationStep::ClientCloses(index) => self.end_socket(index, SocketFate::InUse),
            SimulationStep::AdapterIdles(index) => self.idle_socket(index),
            SimulationStep::WarmDies(index) => self.end_socket(index, SocketFate::Warm),
            SimulationStep::Closed(index) => self.end_socket(index, SocketFate::Closing),
            SimulationStep::ExpectClients { function, clients } => {
                self.state
                    .expect_clients(self.now, self.current_keys[function], clients)
            }
            SimulationStep::SetLimits {
                function,
                max,
                warm,
            } => self.set_limits(function, max, warm),
            SimulationStep::Redeploy {
                function,
                max,
                warm,
            } => self.redeploy_function(function, max, warm),
            SimulationStep::Forget(index) => self.forget_key(index),
            SimulationStep::PassTime(ms) => self.pass_time(Duration::from_millis(ms)),
        }
        self.apply_actions();
        self.check_promises();
    }

    fn pick_socket(&self, index: usize, fate: SocketFate) -> Option<SocketId> {
        let all: Vec<_> = self
            .sockets
            .iter()
            .filter(|(_, socket_record)| socket_record.fate == fate)
            .map(|(socket, _)| *socket)
            .collect();
        (!all.is_empty()).then(|| all[index % all.len()])
    }

    /// The clock never skips a timer: the driver wakes up for it.
    fn pass_time(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.state.wake_at().filter(|at| *at <= until) {
            assert!(at >= self.now, "no timer was missed");
            self.now = at;
            self.state.tick(self.now);
            assert!(
                self.state.wake_at().is_none_or(|at| at > self.now),
                "a handled timer is not due again"
            );
            self.apply_actions();
            self.check_promises();
        }
        self.now = until;
    }

    /// From now on every connect succeeds, every client leaves, and no new one comes. In the end
    /// nothing is open and no timer is set.
    fn drain_all(&mut self) {
        let mut rounds = 0;
        while !self.clients.is_empty() || !self.sockets.is_empty() || self.state.wake_at().is_some()
        {
            for fate in [
                SocketFate::Connecting,
                SocketFate::InUse,
                SocketFate::IdleAtAdapter,
                SocketFate::Closing,
            ] {
                match self.pick_socket(0, fate) {
                    Some(_) if fate == SocketFate::Connecting => {
                        self.apply_step(SimulationStep::Connected(0))
                    }
                    Some(_) => {
                        self.end_socket(0, fate);
                        self.apply_actions();
                        self.check_promises();
                    }
                    None => {}
                }
            }
            if self.clients.is_empty() {
                let wake = self
                    .state
                    .wake_at()
                    .map_or(Duration::ZERO, |at| at.duration_since(self.now));
                self.apply_step(SimulationStep::PassTime(wake.as_millis() as u64 + 1));
            }
            rounds += 1;
            assert!(
                rounds < 500,
                "{:?} wait, {:?} are open",
                self.clients,
                self.sockets
            );
        }
    }
}

proptest! {
    #[test]
    fn any_order_of_events(steps in prop::collection::vec(simulation_step(), 1..150)) {
        let mut simulation = Simulation::new();
        steps.into_iter().for_each(|step| simulation.apply_step(step));
        simulation.drain_all();
    }
}
