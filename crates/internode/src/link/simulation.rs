//! Simulation of a node whose process and network fail, in steps of 10 ms.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::timings::PING_INTERVAL;
use super::{LinkCommand, LinkEvent, LinkState, LinkTimings, PeerLink};

const STEP: Duration = Duration::from_millis(10);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time for one round trip, for the start of a connection and of its state.
const CONNECT_STEPS: u64 = 3;

/// State of the other node and of the network to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Good,
    /// The process ended; its machine refuses connections.
    Killed,
    /// Its packets do not arrive.
    CutFromPeer,
    /// Packets to it do not arrive.
    CutToPeer,
}

/// Connection as the simulated node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SimulatedConnection {
    Closed,
    Opening { ready_in: u64 },
    Open { since: Duration },
}

struct Simulation {
    link: PeerLink,
    start: Instant,
    now: Duration,
    condition: Condition,
    /// Time since which the condition holds.
    since: Duration,
    connection: SimulatedConnection,
    /// Times at which the node's functions began to be used.
    used_from: Vec<Duration>,
    is_used: bool,
}

impl Simulation {
    fn new(timings: LinkTimings) -> Self {
        let start = Instant::now();
        Self {
            link: PeerLink::new(timings, start),
            start,
            now: Duration::ZERO,
            condition: Condition::Good,
            since: Duration::ZERO,
            connection: SimulatedConnection::Closed,
            used_from: Vec::new(),
            is_used: false,
        }
    }

    fn send(&mut self, event: LinkEvent) {
        let at = self.start + self.now;
        match self.link.handle(event, at, 0.5) {
            Some(LinkCommand::Connect) => {
                let ready_in = CONNECT_STEPS;
                self.connection = SimulatedConnection::Opening { ready_in };
            }
            Some(LinkCommand::Disconnect) => self.connection = SimulatedConnection::Closed,
            Some(LinkCommand::Resubscribe) => unreachable!("frames are valid"),
            None => {}
        }
        let is_used = self.link.state() == LinkState::Up;
        if is_used && !self.is_used {
            self.used_from.push(self.now);
        }
        self.is_used = is_used;
    }

    fn step(&mut self) {
        self.now += STEP;
        match (self.connection, self.condition) {
            (SimulatedConnection::Closed, _) => {}
            // Packets are lost; only deadlines notice.
            (_, Condition::CutFromPeer | Condition::CutToPeer) => {}
            (_, Condition::Killed) => self.send(LinkEvent::ConnectionLost("reset".into())),
            (SimulatedConnection::Opening { ready_in: 0 }, Condition::Good) => self.open(),
            (SimulatedConnection::Opening { ready_in }, Condition::Good) => {
                let ready_in = ready_in - 1;
                self.connection = SimulatedConnection::Opening { ready_in };
            }
            (SimulatedConnection::Open { since }, Condition::Good) => self.send_signs(since),
        }
        self.send(LinkEvent::Tick);
    }

    fn open(&mut self) {
        self.connection = SimulatedConnection::Open { since: self.now };
        self.send(LinkEvent::Subscribed);
        self.send(LinkEvent::StateCompleted);
    }

    fn send_signs(&mut self, since: Duration) {
        let age = self.now - since - STEP; // the first ping follows the connection
        let is_due = |interval: Duration| age.as_millis().is_multiple_of(interval.as_millis());
        let (ping, line) = (is_due(PING_INTERVAL), is_due(HEARTBEAT_INTERVAL));
        if ping {
            self.send(LinkEvent::PingAnswered);
        }
        if line {
            self.send(LinkEvent::LineReceived);
        }
    }

    /// Runs a condition and checks the bounds of each step.
    fn run(&mut self, condition: Condition, steps: u64) -> Result<(), String> {
        if condition != self.condition {
            // TCP recovers from a short cut; a node that was restarted knows no connection.
            (self.condition, self.since) = (condition, self.now);
        }
        for _ in 0..steps {
            self.step();
            self.check_use()?;
        }
        Ok(())
    }

    /// Checks that functions of a node that is away are not used for longer than its signs of life
    /// may take.
    fn check_use(&self) -> Result<(), String> {
        let default = LinkTimings::default();
        let max_use = match self.condition {
            Condition::Good => return Ok(()),
            Condition::Killed => STEP,
            _ => default.ping_timeout.max(default.line_timeout) + STEP,
        };
        let away = self.now - self.since;
        match self.is_used && away > max_use {
            true => Err(format!("used {away:?} after {:?}", self.condition)),
            false => Ok(()),
        }
    }
}

/// Runs a script of conditions with their steps.
fn run_script(timings: LinkTimings, script: &[(Condition, u64)]) -> Result<Simulation, String> {
    let mut simulation = Simulation::new(timings);
    for (condition, steps) in script {
        simulation.run(*condition, *steps)?;
    }
    Ok(simulation)
}

/// Maximum times that a flapping node's functions begin to be used within the flap window: thrice
/// before it counts as flapping, and after the first hold-downs, which it outlives.
const MAX_USES: usize = 6;

/// A node that ends 3 s after each start, for 2 minutes.
fn flapping_script() -> Vec<(Condition, u64)> {
    let cycle = [(Condition::Good, 300), (Condition::Killed, 5)];
    cycle.repeat(12_000 / 305)
}

fn check_flaps(simulation: &Simulation) -> Result<(), String> {
    let window = LinkTimings::default().flap_window;
    let times = &simulation.used_from;
    let uses_from = |from: &Duration| {
        let within = times
            .iter()
            .filter(|at| (*from..=*from + window).contains(*at));
        within.count()
    };
    match times.iter().map(uses_from).max().unwrap_or_default() {
        uses if uses > MAX_USES => Err(format!("used {uses} times within {window:?}")),
        _ => Ok(()),
    }
}

fn any_condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        3 => Just(Condition::Good),
        1 => Just(Condition::Killed),
        1 => Just(Condition::CutFromPeer),
        1 => Just(Condition::CutToPeer),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_node_that_is_away_is_not_used_and_used_again_when_it_is_back(
        script in prop::collection::vec((any_condition(), 1u64..1_500), 1..16),
    ) {
        let timings = LinkTimings::default();
        let mut simulation = run_script(timings, &script).map_err(TestCaseError::fail)?;
        check_flaps(&simulation).map_err(TestCaseError::fail)?;
        // Longest: a lost connect, the wait, the hold-down, a first ping.
        simulation.run(Condition::Good, 3_600).map_err(TestCaseError::fail)?;
        prop_assert!(simulation.is_used, "{:?}", simulation.link);
    }
}

#[test]
fn a_node_that_restarts_is_used_again_within_seconds() {
    let script = [(Condition::Good, 500), (Condition::Killed, 300)];
    let mut simulation = run_script(LinkTimings::default(), &script).unwrap();
    assert!(!simulation.is_used);
    // The wait of at most 2 s, and the first ping.
    simulation.run(Condition::Good, 260).unwrap();
    assert!(simulation.is_used, "{:?}", simulation.link);
}

#[test]
fn a_flapping_node_is_used_rarely() {
    let simulation = run_script(LinkTimings::default(), &flapping_script()).unwrap();
    check_flaps(&simulation).unwrap();
}

/// Control: without a hold-down the same node is used again and again.
#[test]
fn without_a_hold_down_a_flapping_node_is_used_often() {
    let timings = LinkTimings {
        min_hold_down: Duration::ZERO,
        ..LinkTimings::default()
    };
    let simulation = run_script(timings, &flapping_script()).unwrap();
    check_flaps(&simulation).unwrap_err();
}

/// Control: without timeouts a cut in one direction is not noticed.
#[test]
fn without_timeouts_a_node_that_is_cut_off_stays_in_use() {
    let timings = LinkTimings {
        line_timeout: Duration::from_secs(3_600),
        ping_timeout: Duration::from_secs(3_600),
        ..LinkTimings::default()
    };
    for cut in [Condition::CutFromPeer, Condition::CutToPeer] {
        let script = [(Condition::Good, 500), (cut, 500)];
        assert!(run_script(LinkTimings::default(), &script).is_ok());
        assert!(run_script(timings, &script).is_err());
    }
}
