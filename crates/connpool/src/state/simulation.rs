//! Clients, servers and redeployments in any order, with a virtual clock. Every step checks the
//! promises.

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

    fn request_socket(&mut self, function: usize, wait: Duration) {
        let (key, deadline) = (self.current_keys[function], self.now + wait);
        match self
            .state
            .request_socket(self.now, key, RequesterId(function as u32), deadline)
        {
            RequestOutcome::Take(socket) => {
                let waits = self.clients.values().any(|client| client.key == key);
                assert!(!waits, "a new client does not pass a waiting one");
                self.hand_out(key, Some(socket));
            }
            RequestOutcome::Wait(ticket) => {
                let last = self.clients.insert(
                    ticket,
                    SimulatedClient {
                        key,
                        function,
                        deadline,
                    },
                );
                assert!(last.is_none(), "a ticket is never used again");
            }
            RequestOutcome::Refused(RefusalReason::TimedOut { .. }) => {
                assert!(
                    deadline <= self.now,
                    "a waiting client is not refused at once"
                )
            }
            RequestOutcome::Refused(why) => assert!(
                why == RefusalReason::KeyForgotten && self.keys[&key].forgotten,
                "{why:?}"
            ),
        }
    }

    fn confirm_taken(&mut self, index: usize, fate: SocketFate) {
        let Some(socket) = self
            .pick_socket(index, fate)
            .filter(|socket| self.sockets[socket].was_open)
        else {
            return;
        };
        self.state.confirm_taken(self.now, socket);
        let socket_record = self.sockets.get_mut(&socket).expect("it was picked");
        (socket_record.fate, socket_record.handed_out) = (SocketFate::InUse, true);
    }

    fn hand_out(&mut self, key: KeyId, socket: Option<SocketId>) {
        let Some(socket) = socket else { return };
        let socket_record = self
            .sockets
            .get_mut(&socket)
            .expect("only an open connection is handed out");
        assert_eq!(socket_record.key, key, "a connection serves its own key");
        assert_eq!(
            (socket_record.fate, socket_record.handed_out),
            (SocketFate::Warm, false),
            "only an unused connection is handed out"
        );
        assert!(
            self.now.duration_since(socket_record.opened_at) < IDLE_TIMEOUT,
            "only a connection that has not expired is handed out"
        );
        let retired = self.keys[&key].retired;
        assert!(
            retired.is_none_or(|retired| socket_record.opened_at >= retired),
            "no connection from before the change"
        );
        (socket_record.fate, socket_record.handed_out) = (SocketFate::InUse, true);
    }

    fn cancel_wait(&mut self, index: usize) {
        let Some(ticket) = self
            .clients
            .keys()
            .nth(index % self.clients.len().max(1))
            .copied()
        else {
            return;
        };
        self.clients.remove(&ticket);
        assert!(self.state.cancel_wait(self.now, ticket));
    }

    fn connect_socket(&mut self, index: usize) {
        let Some(socket) = self.pick_socket(index, SocketFate::Connecting) else {
            return;
        };
        let socket_record = self.sockets.get_mut(&socket).expect("it was picked");
        (
            socket_record.fate,
            socket_record.opened_at,
            socket_record.was_open,
        ) = (SocketFate::Warm, self.now, true);
        self.state.socket_connected(self.now, socket);
    }

    fn end_socket(&mut self, index: usize, fate: SocketFate) {
        let Some(socket) = self.pick_socket(index, fate) else {
            return;
        };
        self.sockets.remove(&socket);
        self.state.socket_closed(self.now, socket);
    }

    /// An adapter keeps a used connection, unless another key needs the slot.
    fn idle_socket(&mut self, index: usize) {
        let Some(socket) = self.pick_socket(index, SocketFate::InUse) else {
            return;
        };
        let key = self.sockets[&socket].key;
        match self.state.next_waiter(key) {
            NextWaiter::None | NextWaiter::SameKey => {
                self.sockets.get_mut(&socket).expect("it was picked").fate =
                    SocketFate::IdleAtAdapter
            }
            NextWaiter::OtherKey => {
                self.sockets.remove(&socket);
                self.state.socket_closed(self.now, socket);
            }
        }
        self.apply_actions();
        self.serve_from_idle();
    }

    /// Adapters give their idle connections to their own clients.
    fn serve_from_idle(&mut self) {
        let idle = self
            .sockets
            .iter()
            .filter(|(_, socket_record)| socket_record.fate == SocketFate::IdleAtAdapter);
        let idle: Vec<_> = idle
            .map(|(socket, socket_record)| (*socket, socket_record.key))
            .collect();
        for (socket, key) in idle {
            let own = self
                .clients
                .iter()
                .find(|(_, client)| client.key == key)
                .map(|(ticket, _)| *ticket);
            if let Some(ticket) = own {
                self.clients.remove(&ticket);
                self.state.cancel_wait(self.now, ticket);
                self.sockets.get_mut(&socket).expect("it is there").fate = SocketFate::InUse;
            }
        }
    }

    fn redeploy_function(&mut self, function: usize, max: u32, warm: u32) {
        let old = self.current_keys[function];
        self.current_keys[function] = self.declare(self.keys[&old].group, max, warm);
        self.state.retire_key(self.now, old);
        self.keys.get_mut(&old).expect("it was declared").retired = Some(self.now);
    }

    /// The last instance of an old key is gone.
    fn forget_key(&mut self, index: usize) {
        let old: Vec<_> = self
            .keys
            .iter()
            .filter(|(_, key)| key.retired.is_some() && !key.forgotten)
            .map(|(id, _)| *id)
            .collect();
        let Some(key) = old.get(index % old.len().max(1)).copied() else {
            return;
        };
        self.keys.get_mut(&key).expect("it was declared").forgotten = true;
        self.state.forget_key(self.now, key);
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

    /// Carries out all actions, except closes, which take time.
    fn apply_actions(&mut self) {
        while let Some(action) = self.state.poll() {
            match action {
                StateAction::Connect(key, socket) => self.open_socket(key, socket),
                StateAction::Give(ticket, socket) => self.give_socket(ticket, socket),
                StateAction::Refuse(ticket, why) => self.refuse_waiter(ticket, why),
                StateAction::Close(socket) => self.close_socket(socket),
                StateAction::Reclaim(key) => self.reclaim_idle(key),
            }
        }
    }

    fn open_socket(&mut self, key: KeyId, socket: SocketId) {
        let group = self.keys[&key].group;
        assert!(
            self.open_in_group(group) < self.keys[&key].max,
            "nothing is opened above the limit"
        );
        let old = self.sockets.insert(
            socket,
            SimulatedSocket {
                key,
                fate: SocketFate::Connecting,
                opened_at: self.now,
                was_open: false,
                handed_out: false,
            },
        );
        assert!(old.is_none(), "a connection's id is never used again");
    }

    fn give_socket(&mut self, ticket: WaitTicket, socket: SocketId) {
        let client = self
            .clients
            .remove(&ticket)
            .expect("only a waiting client is given one");
        let own = self
            .clients
            .iter()
            .filter(|(_, other)| (other.function, other.key) == (client.function, client.key));
        assert!(
            own.into_iter().all(|(other, _)| *other > ticket),
            "first come, first served"
        );
        self.hand_out(client.key, Some(socket));
    }

    fn refuse_waiter(&mut self, ticket: WaitTicket, why: RefusalReason) {
        let client = self
            .clients
            .remove(&ticket)
            .expect("only a waiting client is refused");
        match why {
            RefusalReason::TimedOut { .. } => {
                assert!(
                    client.deadline <= self.now,
                    "no client is refused too early"
                )
            }
            RefusalReason::KeyForgotten => assert!(self.keys[&client.key].forgotten),
            RefusalReason::Failed | RefusalReason::QueueFull => {}
        }
    }

    fn close_socket(&mut self, socket: SocketId) {
        let socket_record = self
            .sockets
            .get_mut(&socket)
            .expect("only a known connection is closed");
        assert!(
            matches!(
                socket_record.fate,
                SocketFate::Connecting | SocketFate::Warm
            ) && !socket_record.handed_out,
            "a connection in use is not closed: {socket_record:?}"
        );
        socket_record.fate = SocketFate::Closing;
    }

    fn reclaim_idle(&mut self, key: KeyId) {
        let group = self.keys[&key].group;
        let idle = self.sockets.iter().find(|(_, socket_record)| {
            socket_record.fate == SocketFate::IdleAtAdapter
                && self.keys[&socket_record.key].group == group
        });
        if let Some(socket) = idle.map(|(socket, _)| *socket) {
            self.sockets.remove(&socket);
            self.state.socket_closed(self.now, socket);
        }
    }

    /// Returns the connections of a group in any phase.
    fn open_in_group(&self, group: usize) -> u32 {
        self.sockets
            .values()
            .filter(|socket_record| self.keys[&socket_record.key].group == group)
            .count() as u32
    }

    fn count_sockets(&self, key: KeyId, fate: SocketFate) -> u32 {
        self.sockets
            .values()
            .filter(|socket_record| socket_record.key == key && socket_record.fate == fate)
            .count() as u32
    }

    fn check_promises(&self) {
        for (key, declared) in &self.keys {
            let Some(figures) = self.state.key_figures(*key) else {
                assert!(
                    declared.forgotten
                        && self
                            .sockets
                            .values()
                            .all(|socket_record| socket_record.key != *key),
                    "every open connection is known"
                );
                continue;
            };
            let open = self
                .sockets
                .values()
                .filter(|socket_record| socket_record.key == *key)
                .count() as u32;
            assert_eq!(figures.open, open, "the count matches the open connections");
            assert_eq!(figures.open_in_group, self.open_in_group(declared.group));
            assert_eq!(
                figures.warm,
                self.count_sockets(*key, SocketFate::Warm),
                "every open connection is in use or warm"
            );
            assert_eq!(
                figures.connecting,
                self.count_sockets(*key, SocketFate::Connecting)
            );
            assert!(
                figures.warm
                    <= if declared.retired.is_some() {
                        0
                    } else {
                        declared.warm
                    },
                "no more than the maximum is kept warm"
            );
            let waiting = self
                .clients
                .values()
                .filter(|client| client.key == *key)
                .count() as u32;
            assert_eq!(figures.waiting, waiting, "every waiting client is known");
        }
        (0..GROUPS.len()).for_each(|group| self.check_group(group));
    }

    /// Checks that no client waits without a reason.
    fn check_group(&self, group: usize) {
        let here = |key: &KeyId| self.keys[key].group == group;
        let mut queued = 0;
        for key in self.keys.keys().filter(|key| here(key)) {
            let waiting = self
                .clients
                .values()
                .filter(|client| client.key == *key)
                .count() as u32;
            let opening = self.count_sockets(*key, SocketFate::Connecting);
            if waiting > opening {
                queued += waiting - opening;
                assert!(
                    self.open_in_group(group) >= self.keys[key].max,
                    "a queued client has no free slot: {key:?}"
                );
                assert_eq!(
                    self.count_sockets(*key, SocketFate::Warm),
                    0,
                    "a queued client has no warm connection"
                );
            }
        }
        let closing = self
            .sockets
            .values()
            .filter(|socket_record| {
                here(&socket_record.key) && socket_record.fate == SocketFate::Closing
            })
            .count() as u32;
        let warm_count = self
            .sockets
            .values()
            .filter(|socket_record| {
                here(&socket_record.key) && socket_record.fate == SocketFate::Warm
            })
            .count();
        assert!(
            queued <= closing || warm_count == 0,
            "warm connections make room for queued clients"
        );
        let due = self.state.wake_at();
        let overdue = self
            .clients
            .values()
            .filter(|client| client.deadline < self.now && here(&client.key))
            .count() as u32;
        let opening = self
            .sockets
            .values()
            .filter(|socket_record| {
                here(&socket_record.key) && socket_record.fate == SocketFate::Connecting
            })
            .count() as u32;
        assert!(
            overdue <= opening || due.is_some_and(|due| due <= self.now),
            "no client is queued past its deadline"
        );
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
