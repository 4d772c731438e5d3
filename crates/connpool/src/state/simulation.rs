//! Clients, servers and redeployments in any order, with a virtual clock: after every step the promises are held against what was done.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const PLACES: [&str; 2] = ["one:1", "two:2"];
const FUNCTIONS: usize = 4;
const IDLE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
enum Step {
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
    Snatched(usize),
    Cancel(usize),
    Connected(usize),
    Failed(usize),
    Leaves(usize),
    Idles(usize),
    DropsWarm(usize),
    Closed(usize),
    Expects {
        function: usize,
        clients: u32,
    },
    Redeploy {
        function: usize,
        max: u32,
        warm: u32,
    },
    Forget(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (function, any) = (0..FUNCTIONS, any::<usize>());
    prop_oneof![
        8 => (function.clone(), 0u64..5_000).prop_map(|(function, wait)| Step::Ask { function, wait }),
        2 => function.clone().prop_map(|function| Step::Take { function }),
        2 => any.prop_map(Step::Taken),
        2 => any.prop_map(Step::Snatched),
        2 => any.prop_map(Step::Cancel),
        8 => any.prop_map(Step::Connected),
        2 => any.prop_map(Step::Failed),
        6 => any.prop_map(Step::Leaves),
        2 => any.prop_map(Step::Idles),
        1 => any.prop_map(Step::DropsWarm),
        4 => any.prop_map(Step::Closed),
        1 => (function.clone(), 0u32..6).prop_map(|(function, clients)| Step::Expects { function, clients }),
        1 => (function, 1u32..6, 0u32..4).prop_map(|(function, max, warm)| Step::Redeploy { function, max, warm: warm.min(max) }),
        1 => any.prop_map(Step::Forget),
        3 => (0u64..8_000).prop_map(Step::Pass),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Opening,
    /// Open for nobody, as far as is known here.
    Kept,
    Used,
    /// Used before, and kept idle by an adapter.
    Benched,
    Ending,
}

#[derive(Debug, Clone)]
struct Line {
    key: KeyId,
    fate: Fate,
    open: Instant,
    was_open: bool,
    given: bool,
}

#[derive(Debug, Clone)]
struct Key {
    place: usize,
    max: u32,
    warm: u32,
    retired: Option<Instant>,
    forgotten: bool,
}

#[derive(Debug)]
struct Client {
    key: KeyId,
    function: usize,
    deadline: Instant,
}

struct World {
    now: Instant,
    stock: Stock,
    keys: BTreeMap<KeyId, Key>,
    /// The key of each function.
    current: Vec<KeyId>,
    lines: BTreeMap<SocketId, Line>,
    clients: BTreeMap<Ticket, Client>,
}

impl World {
    fn new() -> Self {
        let (now, stock) = (Instant::now(), Stock::new());
        let mut world = Self {
            now,
            stock,
            keys: BTreeMap::new(),
            current: Vec::new(),
            lines: BTreeMap::new(),
            clients: BTreeMap::new(),
        };
        for function in 0..FUNCTIONS {
            let key = world.declare(function % PLACES.len(), 3, 2);
            world.current.push(key);
        }
        world
    }

    fn declare(&mut self, place: usize, max: u32, warm: u32) -> KeyId {
        let terms = Terms { max, warm, idle: IDLE, age: IDLE * 3 };
        let key = self.stock.declare(self.now, PLACES[place], terms);
        let old = self.keys.insert(key, Key { place, max, warm, retired: None, forgotten: false });
        assert!(old.is_none(), "a key is never used again");
        key
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Ask { function, wait } => self.ask(function, Duration::from_millis(wait)),
            Step::Take { function } => {
                let socket = self.stock.take(self.now, self.current[function]);
                self.hand_out(self.current[function], socket);
            }
            Step::Taken(n) => self.taken(n, Fate::Kept),
            Step::Snatched(n) => self.taken(n, Fate::Ending),
            Step::Cancel(n) => self.cancel(n),
            Step::Connected(n) => self.connected(n),
            Step::Failed(n) => {
                let Some(socket) = self.pick(n, Fate::Opening) else { return };
                self.lines.remove(&socket);
                self.stock.failed(self.now, socket);
            }
            Step::Leaves(n) => self.end(n, Fate::Used),
            Step::Idles(n) => self.idles(n),
            Step::DropsWarm(n) => self.end(n, Fate::Kept),
            Step::Closed(n) => self.end(n, Fate::Ending),
            Step::Expects { function, clients } => self.stock.expects(self.now, self.current[function], clients),
            Step::Redeploy { function, max, warm } => self.redeploy(function, max, warm),
            Step::Forget(n) => self.forget(n),
            Step::Pass(ms) => self.pass(Duration::from_millis(ms)),
        }
        self.obey();
        self.check();
    }

    fn pick(&self, n: usize, fate: Fate) -> Option<SocketId> {
        let all: Vec<_> = self.lines.iter().filter(|(_, line)| line.fate == fate).map(|(socket, _)| *socket).collect();
        (!all.is_empty()).then(|| all[n % all.len()])
    }

    fn ask(&mut self, function: usize, wait: Duration) {
        let (key, deadline) = (self.current[function], self.now + wait);
        match self.stock.ask(self.now, key, Asker(function as u32), deadline) {
            Answer::Take(socket) => {
                let waits = self.clients.values().any(|client| client.key == key);
                assert!(!waits, "a newcomer does not pass who waits");
                self.hand_out(key, Some(socket));
            }
            Answer::Wait(ticket) => {
                let last = self.clients.insert(ticket, Client { key, function, deadline });
                assert!(last.is_none(), "a ticket is never used again");
            }
            Answer::Refused(Why::Late { .. }) => assert!(deadline <= self.now, "who waits is not refused at once"),
            Answer::Refused(why) => assert!(why == Why::Gone && self.keys[&key].forgotten, "{why:?}"),
        }
    }

    fn taken(&mut self, n: usize, fate: Fate) {
        let Some(socket) = self.pick(n, fate).filter(|socket| self.lines[socket].was_open) else { return };
        self.stock.taken(self.now, socket);
        let line = self.lines.get_mut(&socket).expect("it was picked");
        (line.fate, line.given) = (Fate::Used, true);
    }

    fn hand_out(&mut self, key: KeyId, socket: Option<SocketId>) {
        let Some(socket) = socket else { return };
        let line = self.lines.get_mut(&socket).expect("only what is open is handed out");
        assert_eq!(line.key, key, "a connection serves its own key");
        assert_eq!((line.fate, line.given), (Fate::Kept, false), "only what nobody used is handed out");
        assert!(self.now.duration_since(line.open) < IDLE, "only what is young enough is handed out");
        let retired = self.keys[&key].retired;
        assert!(retired.is_none_or(|retired| line.open >= retired), "not what was opened before the change");
        (line.fate, line.given) = (Fate::Used, true);
    }

    fn cancel(&mut self, n: usize) {
        let Some(ticket) = self.clients.keys().nth(n % self.clients.len().max(1)).copied() else { return };
        self.clients.remove(&ticket);
        assert!(self.stock.cancel(self.now, ticket));
    }

    fn connected(&mut self, n: usize) {
        let Some(socket) = self.pick(n, Fate::Opening) else { return };
        let line = self.lines.get_mut(&socket).expect("it was picked");
        (line.fate, line.open, line.was_open) = (Fate::Kept, self.now, true);
        self.stock.connected(self.now, socket);
    }

    fn end(&mut self, n: usize, fate: Fate) {
        let Some(socket) = self.pick(n, fate) else { return };
        self.lines.remove(&socket);
        self.stock.closed(self.now, socket);
    }

    /// An adapter has proved a connection quiet, and keeps it unless somebody else needs the room.
    fn idles(&mut self, n: usize) {
        let Some(socket) = self.pick(n, Fate::Used) else { return };
        let key = self.lines[&socket].key;
        match self.stock.need(key) {
            Need::Nobody | Need::Own => self.lines.get_mut(&socket).expect("it was picked").fate = Fate::Benched,
            Need::Others => {
                self.lines.remove(&socket);
                self.stock.closed(self.now, socket);
            }
        }
        self.obey();
        self.serve_benched();
    }

    /// Adapters give what they keep to their own clients.
    fn serve_benched(&mut self) {
        let benched = self.lines.iter().filter(|(_, line)| line.fate == Fate::Benched);
        let benched: Vec<_> = benched.map(|(socket, line)| (*socket, line.key)).collect();
        for (socket, key) in benched {
            let own = self.clients.iter().find(|(_, client)| client.key == key).map(|(ticket, _)| *ticket);
            if let Some(ticket) = own {
                self.clients.remove(&ticket);
                self.stock.cancel(self.now, ticket);
                self.lines.get_mut(&socket).expect("it is there").fate = Fate::Used;
            }
        }
    }

    fn redeploy(&mut self, function: usize, max: u32, warm: u32) {
        let old = self.current[function];
        self.current[function] = self.declare(self.keys[&old].place, max, warm);
        self.stock.retire(self.now, old);
        self.keys.get_mut(&old).expect("it was declared").retired = Some(self.now);
    }

    /// The last instance with an old key is gone.
    fn forget(&mut self, n: usize) {
        let old: Vec<_> =
            self.keys.iter().filter(|(_, key)| key.retired.is_some() && !key.forgotten).map(|(id, _)| *id).collect();
        let Some(key) = old.get(n % old.len().max(1)).copied() else { return };
        self.keys.get_mut(&key).expect("it was declared").forgotten = true;
        self.stock.forget(self.now, key);
    }

    /// The clock is never moved past what is due: the driver wakes up for it.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.stock.wake_at().filter(|at| *at <= until) {
            assert!(at >= self.now, "what is due was looked at");
            self.now = at;
            self.stock.tick(self.now);
            assert!(self.stock.wake_at().is_none_or(|at| at > self.now), "what was looked at is not due again");
            self.obey();
            self.check();
        }
        self.now = until;
    }

    /// Carries out what the stock wants, but for the ends of connections, which take time.
    fn obey(&mut self) {
        while let Some(action) = self.stock.poll() {
            match action {
                Action::Connect(key, socket) => self.open(key, socket),
                Action::Give(ticket, socket) => self.give(ticket, socket),
                Action::Refuse(ticket, why) => self.refuse(ticket, why),
                Action::Close(socket) => self.close(socket),
                Action::Reclaim(key) => self.reclaim(key),
            }
        }
    }

    fn open(&mut self, key: KeyId, socket: SocketId) {
        let place = self.keys[&key].place;
        assert!(self.at(place) < self.keys[&key].max, "nothing is opened above the ceiling");
        let old =
            self.lines.insert(socket, Line { key, fate: Fate::Opening, open: self.now, was_open: false, given: false });
        assert!(old.is_none(), "a connection's id is never used again");
    }

    fn give(&mut self, ticket: Ticket, socket: SocketId) {
        let client = self.clients.remove(&ticket).expect("only who waits is given one");
        let own = self.clients.iter().filter(|(_, other)| (other.function, other.key) == (client.function, client.key));
        assert!(own.into_iter().all(|(other, _)| *other > ticket), "first come, first served");
        self.hand_out(client.key, Some(socket));
    }

    fn refuse(&mut self, ticket: Ticket, why: Why) {
        let client = self.clients.remove(&ticket).expect("only who waits is refused");
        match why {
            Why::Late { .. } => assert!(client.deadline <= self.now, "nobody is refused too early"),
            Why::Gone => assert!(self.keys[&client.key].forgotten),
            Why::Failed | Why::Crowded => {}
        }
    }

    fn close(&mut self, socket: SocketId) {
        let line = self.lines.get_mut(&socket).expect("only what is there is closed");
        assert!(matches!(line.fate, Fate::Opening | Fate::Kept) && !line.given, "what is used is not closed: {line:?}");
        line.fate = Fate::Ending;
    }

    fn reclaim(&mut self, key: KeyId) {
        let place = self.keys[&key].place;
        let benched =
            self.lines.iter().find(|(_, line)| line.fate == Fate::Benched && self.keys[&line.key].place == place);
        if let Some(socket) = benched.map(|(socket, _)| *socket) {
            self.lines.remove(&socket);
            self.stock.closed(self.now, socket);
        }
    }

    /// Connections at a place, in whatever state.
    fn at(&self, place: usize) -> u32 {
        self.lines.values().filter(|line| self.keys[&line.key].place == place).count() as u32
    }

    fn count(&self, key: KeyId, fate: Fate) -> u32 {
        self.lines.values().filter(|line| line.key == key && line.fate == fate).count() as u32
    }

    fn check(&self) {
        for (key, declared) in &self.keys {
            let Some(figures) = self.stock.figures(*key) else {
                assert!(
                    declared.forgotten && self.lines.values().all(|line| line.key != *key),
                    "what is open is known"
                );
                continue;
            };
            let open = self.lines.values().filter(|line| line.key == *key).count() as u32;
            assert_eq!(figures.open, open, "what is counted is what is open");
            assert_eq!(figures.at_place, self.at(declared.place));
            assert_eq!(figures.warm, self.count(*key, Fate::Kept), "what is open is used or kept");
            assert_eq!(figures.connecting, self.count(*key, Fate::Opening));
            assert!(
                figures.warm <= if declared.retired.is_some() { 0 } else { declared.warm },
                "no more is kept than may be"
            );
            let waiting = self.clients.values().filter(|client| client.key == *key).count() as u32;
            assert_eq!(figures.waiting, waiting, "who waits is known");
        }
        (0..PLACES.len()).for_each(|place| self.check_place(place));
    }

    /// Nobody waits without a reason.
    fn check_place(&self, place: usize) {
        let here = |key: &KeyId| self.keys[key].place == place;
        let mut in_line = 0;
        for key in self.keys.keys().filter(|key| here(key)) {
            let waiting = self.clients.values().filter(|client| client.key == *key).count() as u32;
            let opening = self.count(*key, Fate::Opening);
            if waiting > opening {
                in_line += waiting - opening;
                assert!(
                    self.at(place) >= self.keys[key].max,
                    "who waits with no connection being opened finds no room: {key:?}"
                );
                assert_eq!(self.count(*key, Fate::Kept), 0, "nor one that is warm");
            }
        }
        let ends = self.lines.values().filter(|line| here(&line.key) && line.fate == Fate::Ending).count() as u32;
        let kept = self.lines.values().filter(|line| here(&line.key) && line.fate == Fate::Kept).count();
        assert!(in_line <= ends || kept == 0, "what is kept for nobody makes room for who waits");
        let due = self.stock.wake_at();
        let overdue =
            self.clients.values().filter(|client| client.deadline < self.now && here(&client.key)).count() as u32;
        let opening = self.lines.values().filter(|line| here(&line.key) && line.fate == Fate::Opening).count() as u32;
        assert!(
            overdue <= opening || due.is_some_and(|due| due <= self.now),
            "nobody waits for room past its deadline"
        );
    }

    /// From now on everything goes well: each connection opens, each client leaves, and nobody new comes. In the end nothing is kept, and nothing is due.
    fn calm_down(&mut self) {
        let mut rounds = 0;
        while !self.clients.is_empty() || !self.lines.is_empty() || self.stock.wake_at().is_some() {
            for fate in [Fate::Opening, Fate::Used, Fate::Benched, Fate::Ending] {
                match self.pick(0, fate) {
                    Some(_) if fate == Fate::Opening => self.take(Step::Connected(0)),
                    Some(_) => {
                        self.end(0, fate);
                        self.obey();
                        self.check();
                    }
                    None => {}
                }
            }
            if self.clients.is_empty() {
                let wake = self.stock.wake_at().map_or(Duration::ZERO, |at| at.duration_since(self.now));
                self.take(Step::Pass(wake.as_millis() as u64 + 1));
            }
            rounds += 1;
            assert!(rounds < 500, "{:?} wait, {:?} are open", self.clients, self.lines);
        }
    }
}

proptest! {
    #[test]
    fn any_order_of_events(steps in prop::collection::vec(step(), 1..150)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.take(step));
        world.calm_down();
    }
}
