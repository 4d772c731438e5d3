//! Any order of events at any times, and what must hold after each.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{LinkCommand, LinkEvent, LinkState, LinkTimings, PeerLink};

/// An event, and milliseconds since the one before.
type Step = (u64, u8);

const EVENTS: [LinkEvent; 5] = [
    LinkEvent::Tick,
    LinkEvent::Subscribed,
    LinkEvent::LineReceived,
    LinkEvent::StateCompleted,
    LinkEvent::PingAnswered,
];

fn event_of(number: u8) -> LinkEvent {
    match number {
        5 => LinkEvent::StreamFault("fault".into()),
        6 => LinkEvent::ConnectionLost("lost".into()),
        7 => LinkEvent::Replaced,
        number => EVENTS[usize::from(number)].clone(),
    }
}

/// Signs of life of the connection, kept beside the state machine.
#[derive(Default)]
struct SeenSigns {
    line: Option<Instant>,
    ping: Option<Instant>,
    state: bool,
    downs: Vec<Instant>,
    ready_since: Option<Instant>,
}

impl SeenSigns {
    fn note(&mut self, event: &LinkEvent, now: Instant) {
        match event {
            LinkEvent::PingAnswered => self.ping = Some(now),
            LinkEvent::StateCompleted => (self.state, self.line) = (true, Some(now)),
            LinkEvent::Subscribed | LinkEvent::LineReceived => self.line = Some(now),
            _ => {}
        }
    }

    /// Notes that the process was replaced: both signs are awaited from now on.
    fn note_replaced(&mut self, now: Instant) {
        (self.line, self.ping) = (Some(now), self.ping.map(|_| now));
    }

    /// Notes a disconnect, of which the link's state before it tells whether the node was ready.
    fn reset(&mut self, was_ready: bool, now: Instant) {
        if was_ready {
            self.downs.push(now);
        }
        (self.line, self.ping, self.state, self.ready_since) = (None, None, false, None);
    }
}

fn is_ready(state: &LinkState) -> bool {
    matches!(state, LinkState::Up | LinkState::HeldDown { .. })
}

/// Runs the steps, with ticks at all deadlines between them, and checks each state.
fn run_steps(steps: &[Step], jitter: f64) -> Result<(), TestCaseError> {
    let timings = LinkTimings::default();
    let start = Instant::now();
    let mut now = start;
    let mut link = PeerLink::new(timings, now);
    let mut signs = SeenSigns::default();
    for (wait, number) in steps {
        let until = now + Duration::from_millis(*wait);
        while link.next_deadline() <= until {
            let deadline = link.next_deadline().max(now);
            check_step(&mut link, &mut signs, LinkEvent::Tick, deadline, jitter)?;
            prop_assert!(
                link.next_deadline() > deadline,
                "a tick settles its deadline"
            );
            now = deadline;
        }
        now = until;
        check_step(&mut link, &mut signs, event_of(*number), now, jitter)?;
    }
    Ok(())
}

fn check_step(
    link: &mut PeerLink,
    signs: &mut SeenSigns,
    event: LinkEvent,
    now: Instant,
    jitter: f64,
) -> Result<(), TestCaseError> {
    let timings = LinkTimings::default();
    let was_ready = is_ready(&link.state());
    let command = link.handle(event.clone(), now, jitter);
    signs.note(&event, now);
    match command {
        Some(LinkCommand::Disconnect) => {
            signs.reset(was_ready, now);
            let wait = link.next_deadline() - now;
            prop_assert!(wait >= timings.min_backoff / 2 && wait <= timings.max_backoff);
        }
        Some(LinkCommand::Connect) => signs.reset(false, now),
        Some(LinkCommand::Resubscribe) if event == LinkEvent::Replaced => signs.note_replaced(now),
        Some(LinkCommand::Resubscribe) => prop_assert!(was_ready),
        None => {}
    }
    let state = link.state();
    if !is_ready(&state) {
        signs.ready_since = None;
        return Ok(());
    }
    let ready_since = *signs.ready_since.get_or_insert(now);
    let is_fresh = |at: Option<Instant>, age| at.is_some_and(|at| now - at < age);
    prop_assert!(signs.state, "the whole state came");
    prop_assert!(is_fresh(signs.line, timings.line_timeout), "lines come");
    prop_assert!(
        is_fresh(signs.ping, timings.ping_timeout),
        "pings are answered"
    );
    let flaps = |at: Instant| {
        let recent = signs
            .downs
            .iter()
            .filter(|down| at - **down < timings.flap_window);
        recent.count() >= 3
    };
    if state == LinkState::Up && flaps(ready_since) {
        prop_assert!(
            now - ready_since >= timings.min_hold_down,
            "a flapping node is held down"
        );
    }
    Ok(())
}

fn some_steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![6 => 0u64..300, 2 => 300u64..3_000, 1 => 3_000u64..40_000];
    // Signs of life are frequent, so that links come up.
    let event = prop_oneof![1 => 0u8..1, 8 => 1u8..5, 1 => 5u8..8];
    prop::collection::vec((wait, event), 0..200)
}

proptest! {
    #[test]
    fn any_events_keep_the_rules(steps in some_steps(), jitter in 0.0f64..=1.0) {
        run_steps(&steps, jitter)?;
    }

    /// Whatever happened before, a node that reports and answers is used within the longest times.
    #[test]
    fn a_node_that_comes_back_is_used(steps in some_steps(), jitter in 0.0f64..=1.0) {
        let mut now = Instant::now();
        let mut link = PeerLink::new(LinkTimings::default(), now);
        for (wait, number) in steps {
            now += Duration::from_millis(wait);
            link.handle(event_of(number), now, jitter);
        }
        let end = now + Duration::from_secs(40);
        while link.state() != LinkState::Up {
            now += Duration::from_millis(100);
            prop_assert!(now < end, "{:?}", link);
            if link.handle(LinkEvent::Tick, now, jitter) == Some(LinkCommand::Connect) {
                link.handle(LinkEvent::Subscribed, now, jitter);
            }
            link.handle(LinkEvent::StateCompleted, now, jitter);
            link.handle(LinkEvent::PingAnswered, now, jitter);
        }
    }
}

fn ready_link(now: Instant) -> PeerLink {
    let mut link = PeerLink::new(LinkTimings::default(), now);
    assert_eq!(link.state(), LinkState::Connecting);
    assert_eq!(
        link.handle(LinkEvent::Tick, now, 1.0),
        Some(LinkCommand::Connect)
    );
    make_ready(&mut link, now);
    assert_eq!(link.state(), LinkState::Up);
    link
}

fn make_ready(link: &mut PeerLink, now: Instant) {
    for event in [
        LinkEvent::Subscribed,
        LinkEvent::StateCompleted,
        LinkEvent::PingAnswered,
    ] {
        assert_eq!(link.handle(event, now, 1.0), None);
    }
}

#[test]
fn attempts_back_off_from_100_ms_to_2_s() {
    let mut now = Instant::now();
    let mut link = PeerLink::new(LinkTimings::default(), now);
    let mut waits = Vec::new();
    for _ in 0..7 {
        assert_eq!(
            link.handle(LinkEvent::Tick, now, 1.0),
            Some(LinkCommand::Connect)
        );
        let lost = LinkEvent::ConnectionLost("refused".into());
        assert_eq!(link.handle(lost, now, 1.0), Some(LinkCommand::Disconnect));
        waits.push((link.next_deadline() - now).as_millis());
        now = link.next_deadline();
    }
    assert_eq!(waits, [100, 200, 400, 800, 1_600, 2_000, 2_000]);
    assert_eq!(
        link.state(),
        LinkState::Down {
            cause: "refused".into()
        }
    );
}

#[test]
fn a_fault_starts_the_subscription_again_once_and_then_ends_it() {
    let now = Instant::now();
    let mut link = ready_link(now);
    let fault = || LinkEvent::StreamFault("gap".into());
    assert_eq!(
        link.handle(fault(), now, 1.0),
        Some(LinkCommand::Resubscribe)
    );
    assert_eq!(link.state(), LinkState::Up, "with the state before");
    make_ready(&mut link, now);
    assert_eq!(
        link.handle(fault(), now, 1.0),
        Some(LinkCommand::Disconnect)
    );
    assert_eq!(
        link.state(),
        LinkState::Down {
            cause: "gap".into()
        }
    );
}

#[test]
fn a_replaced_process_is_followed_and_the_node_stays_up() {
    let (mut now, min_backoff) = (Instant::now(), LinkTimings::default().min_backoff);
    let mut link = ready_link(now);
    for _ in 0..5 {
        now += min_backoff;
        let command = link.handle(LinkEvent::Replaced, now, 1.0);
        assert_eq!(command, Some(LinkCommand::Resubscribe));
        assert_eq!(link.state(), LinkState::Up);
        make_ready(&mut link, now);
    }
    // Faster than attempts to connect, it would be a busy loop.
    let command = link.handle(LinkEvent::Replaced, now + min_backoff / 2, 1.0);
    assert_eq!(command, Some(LinkCommand::Disconnect));
}

#[test]
fn a_state_that_never_ends_is_no_sign_of_life() {
    let mut now = Instant::now();
    let mut link = PeerLink::new(LinkTimings::default(), now);
    link.handle(LinkEvent::Tick, now, 1.0);
    link.handle(LinkEvent::Subscribed, now, 1.0);
    let end = now + LinkTimings::default().state_timeout;
    while now < end {
        assert_eq!(link.state(), LinkState::Connecting);
        now += Duration::from_millis(500);
        link.handle(LinkEvent::LineReceived, now, 1.0);
        link.handle(LinkEvent::PingAnswered, now, 1.0);
    }
    assert_eq!(
        link.handle(LinkEvent::Tick, now, 1.0),
        Some(LinkCommand::Disconnect)
    );
}
