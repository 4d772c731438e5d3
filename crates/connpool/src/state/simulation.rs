//! Clients, servers and redeployments in any order, with a virtual clock: after every step the promises are held against what was done.

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
    /// A clerk takes one, and its word comes at once.
    Taken(usize),
    /// The stock has one closed that a clerk takes at that moment.
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
    /// Open for nobody, as far as is known here.
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
    /// The key of each function.
    current_keys: Vec<KeyId>,
    sockets: BTreeMap<SocketId, SimulatedSocket>,
    clients: BTreeMap<WaitTicket, SimulatedClient>,
}

impl Simulation {
    fn new() -> Self {
        let (now, stock) = (Instant::now(), PoolState::new());
        let mut world = Self {
            now,
            state: stock,
            keys: BTreeMap::new(),
            current_keys: Vec::new(),
            sockets: BTreeMap::new(),
            clients: BTreeMap::new(),
        };
        for function in 0..FUNCTION_COUNT {
            let key = world.declare(function % GROUPS.len(), 3, 2);
            world.current_keys.push(key);
        }
        world
    }

    fn declare(&mut self, place: usize, max: u32, warm: u32) -> KeyId {
        let terms = KeyTerms {
            max,
            warm,
            idle: IDLE_TIMEOUT,
            age: IDLE_TIMEOUT * 3,
        };
        let key = self.state.declare_key(self.now, GROUPS[place], terms);
        let old = self.keys.insert(
            key,
            SimulatedKey {
                group: place,
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
            SimulationStep::Taken(n) => self.confirm_taken(n, SocketFate::Warm),
            SimulationStep::TakenWhileClosing(n) => self.confirm_taken(n, SocketFate::Closing),
            SimulationStep::Cancel(n) => self.cancel_wait(n),
            SimulationStep::Connected(n) => self.connect_socket(n),
            SimulationStep::Failed(n) => {
                let Some(socket) = self.pick_socket(n, SocketFate::Connecting) else {
                    return;
                };
                self.sockets.remove(&socket);
                self.state.socket_failed(self.now, socket);
            }
            SimulationStep::ClientCloses(n) => self.end_socket(n, SocketFate::InUse),
            SimulationStep::AdapterIdles(n) => self.idle_socket(n),
            SimulationStep::WarmDies(n) => self.end_socket(n, SocketFate::Warm),
            SimulationStep::Closed(n) => self.end_socket(n, SocketFate::Closing),
            SimulationStep::ExpectClients { function, clients } => {
                self.state
                    .expect_clients(self.now, self.current_keys[function], clients)
            }
            SimulationStep::Redeploy {
                function,
                max,
                warm,
            } => self.redeploy_function(function, max, warm),
            SimulationStep::Forget(n) => self.forget_key(n),
            SimulationStep::PassTime(ms) => self.pass_time(Duration::from_millis(ms)),
        }
        self.apply_actions();
        self.check_promises();
    }

    fn pick_socket(&self, n: usize, fate: SocketFate) -> Option<SocketId> {
        let all: Vec<_> = self
            .sockets
            .iter()
            .filter(|(_, line)| line.fate == fate)
            .map(|(socket, _)| *socket)
            .collect();
        (!all.is_empty()).then(|| all[n % all.len()])
    }

    fn request_socket(&mut self, function: usize, wait: Duration) {
        let (key, deadline) = (self.current_keys[function], self.now + wait);
        match self
            .state
            .request_socket(self.now, key, RequesterId(function as u32), deadline)
        {
            RequestOutcome::Take(socket) => {
                let waits = self.clients.values().any(|client| client.key == key);
                assert!(!waits, "a newcomer does not pass who waits");
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
                assert!(deadline <= self.now, "who waits is not refused at once")
            }
            RequestOutcome::Refused(why) => assert!(
                why == RefusalReason::KeyForgotten && self.keys[&key].forgotten,
                "{why:?}"
            ),
        }
    }

    fn confirm_taken(&mut self, n: usize, fate: SocketFate) {
        let Some(socket) = self
            .pick_socket(n, fate)
            .filter(|socket| self.sockets[socket].was_open)
        else {
            return;
        };
        self.state.confirm_taken(self.now, socket);
        let line = self.sockets.get_mut(&socket).expect("it was picked");
        (line.fate, line.handed_out) = (SocketFate::InUse, true);
    }

    fn hand_out(&mut self, key: KeyId, socket: Option<SocketId>) {
        let Some(socket) = socket else { return };
        let line = self
            .sockets
            .get_mut(&socket)
            .expect("only what is open is handed out");
        assert_eq!(line.key, key, "a connection serves its own key");
        assert_eq!(
            (line.fate, line.handed_out),
            (SocketFate::Warm, false),
            "only what nobody used is handed out"
        );
        assert!(
            self.now.duration_since(line.opened_at) < IDLE_TIMEOUT,
            "only what is young enough is handed out"
        );
        let retired = self.keys[&key].retired;
        assert!(
            retired.is_none_or(|retired| line.opened_at >= retired),
            "not what was opened before the change"
        );
        (line.fate, line.handed_out) = (SocketFate::InUse, true);
    }

    fn cancel_wait(&mut self, n: usize) {
        let Some(ticket) = self
            .clients
            .keys()
            .nth(n % self.clients.len().max(1))
            .copied()
        else {
            return;
        };
        self.clients.remove(&ticket);
        assert!(self.state.cancel_wait(self.now, ticket));
    }

    fn connect_socket(&mut self, n: usize) {
        let Some(socket) = self.pick_socket(n, SocketFate::Connecting) else {
            return;
        };
        let line = self.sockets.get_mut(&socket).expect("it was picked");
        (line.fate, line.opened_at, line.was_open) = (SocketFate::Warm, self.now, true);
        self.state.socket_connected(self.now, socket);
    }

    fn end_socket(&mut self, n: usize, fate: SocketFate) {
        let Some(socket) = self.pick_socket(n, fate) else {
            return;
        };
        self.sockets.remove(&socket);
        self.state.socket_closed(self.now, socket);
    }

    /// An adapter has proved a connection quiet, and keeps it unless somebody else needs the room.
    fn idle_socket(&mut self, n: usize) {
        let Some(socket) = self.pick_socket(n, SocketFate::InUse) else {
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

    /// Adapters give what they keep to their own clients.
    fn serve_from_idle(&mut self) {
        let benched = self
            .sockets
            .iter()
            .filter(|(_, line)| line.fate == SocketFate::IdleAtAdapter);
        let benched: Vec<_> = benched.map(|(socket, line)| (*socket, line.key)).collect();
        for (socket, key) in benched {
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

    /// The last instance with an old key is gone.
    fn forget_key(&mut self, n: usize) {
        let old: Vec<_> = self
            .keys
            .iter()
            .filter(|(_, key)| key.retired.is_some() && !key.forgotten)
            .map(|(id, _)| *id)
            .collect();
        let Some(key) = old.get(n % old.len().max(1)).copied() else {
            return;
        };
        self.keys.get_mut(&key).expect("it was declared").forgotten = true;
        self.state.forget_key(self.now, key);
    }

    /// The clock is never moved past what is due: the driver wakes up for it.
    fn pass_time(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.state.wake_at().filter(|at| *at <= until) {
            assert!(at >= self.now, "what is due was looked at");
            self.now = at;
            self.state.tick(self.now);
            assert!(
                self.state.wake_at().is_none_or(|at| at > self.now),
                "what was looked at is not due again"
            );
            self.apply_actions();
            self.check_promises();
        }
        self.now = until;
    }

    /// Carries out what the stock wants, but for the ends of connections, which take time.
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
        let place = self.keys[&key].group;
        assert!(
            self.open_in_group(place) < self.keys[&key].max,
            "nothing is opened above the ceiling"
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
            .expect("only who waits is given one");
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
            .expect("only who waits is refused");
        match why {
            RefusalReason::TimedOut { .. } => {
                assert!(client.deadline <= self.now, "nobody is refused too early")
            }
            RefusalReason::KeyForgotten => assert!(self.keys[&client.key].forgotten),
            RefusalReason::Failed | RefusalReason::QueueFull => {}
        }
    }

    fn close_socket(&mut self, socket: SocketId) {
        let line = self
            .sockets
            .get_mut(&socket)
            .expect("only what is there is closed");
        assert!(
            matches!(line.fate, SocketFate::Connecting | SocketFate::Warm) && !line.handed_out,
            "what is used is not closed: {line:?}"
        );
        line.fate = SocketFate::Closing;
    }

    fn reclaim_idle(&mut self, key: KeyId) {
        let place = self.keys[&key].group;
        let benched = self.sockets.iter().find(|(_, line)| {
            line.fate == SocketFate::IdleAtAdapter && self.keys[&line.key].group == place
        });
        if let Some(socket) = benched.map(|(socket, _)| *socket) {
            self.sockets.remove(&socket);
            self.state.socket_closed(self.now, socket);
        }
    }

    /// Connections at a place, in whatever state.
    fn open_in_group(&self, place: usize) -> u32 {
        self.sockets
            .values()
            .filter(|line| self.keys[&line.key].group == place)
            .count() as u32
    }

    fn count_sockets(&self, key: KeyId, fate: SocketFate) -> u32 {
        self.sockets
            .values()
            .filter(|line| line.key == key && line.fate == fate)
            .count() as u32
    }

    fn check_promises(&self) {
        for (key, declared) in &self.keys {
            let Some(figures) = self.state.key_figures(*key) else {
                assert!(
                    declared.forgotten && self.sockets.values().all(|line| line.key != *key),
                    "what is open is known"
                );
                continue;
            };
            let open = self
                .sockets
                .values()
                .filter(|line| line.key == *key)
                .count() as u32;
            assert_eq!(figures.open, open, "what is counted is what is open");
            assert_eq!(figures.open_in_group, self.open_in_group(declared.group));
            assert_eq!(
                figures.warm,
                self.count_sockets(*key, SocketFate::Warm),
                "what is open is used or kept"
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
                "no more is kept than may be"
            );
            let waiting = self
                .clients
                .values()
                .filter(|client| client.key == *key)
                .count() as u32;
            assert_eq!(figures.waiting, waiting, "who waits is known");
        }
        (0..GROUPS.len()).for_each(|place| self.check_group(place));
    }

    /// Nobody waits without a reason.
    fn check_group(&self, place: usize) {
        let here = |key: &KeyId| self.keys[key].group == place;
        let mut in_line = 0;
        for key in self.keys.keys().filter(|key| here(key)) {
            let waiting = self
                .clients
                .values()
                .filter(|client| client.key == *key)
                .count() as u32;
            let opening = self.count_sockets(*key, SocketFate::Connecting);
            if waiting > opening {
                in_line += waiting - opening;
                assert!(
                    self.open_in_group(place) >= self.keys[key].max,
                    "who waits with no connection being opened finds no room: {key:?}"
                );
                assert_eq!(
                    self.count_sockets(*key, SocketFate::Warm),
                    0,
                    "nor one that is warm"
                );
            }
        }
        let ends = self
            .sockets
            .values()
            .filter(|line| here(&line.key) && line.fate == SocketFate::Closing)
            .count() as u32;
        let kept = self
            .sockets
            .values()
            .filter(|line| here(&line.key) && line.fate == SocketFate::Warm)
            .count();
        assert!(
            in_line <= ends || kept == 0,
            "what is kept for nobody makes room for who waits"
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
            .filter(|line| here(&line.key) && line.fate == SocketFate::Connecting)
            .count() as u32;
        assert!(
            overdue <= opening || due.is_some_and(|due| due <= self.now),
            "nobody waits for room past its deadline"
        );
    }

    /// From now on everything goes well: each connection opens, each client leaves, and nobody new comes. In the end nothing is kept, and nothing is due.
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
        let mut world = Simulation::new();
        steps.into_iter().for_each(|step| world.apply_step(step));
        world.drain_all();
    }
}
