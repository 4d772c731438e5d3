//! Connection to another node: when to connect, when the node is down, when its functions are used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::LinkTimings;
use super::flap_guard::FlapGuard;

/// Event of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// A deadline may be over.
    Tick,
    /// The node answered the subscription; its lines follow.
    Subscribed,
    /// Lines arrived.
    LineReceived,
    /// The whole state is complete.
    StateCompleted,
    /// The node answered a ping.
    PingAnswered,
    /// Frames of the node are invalid or do not follow each other; the text is the cause.
    StreamFault(Arc<str>),
    /// The connection failed or ended; the text is the cause.
    ConnectionLost(Arc<str>),
    /// Another process of the node accepts connections: the subscription must start again.
    Replaced,
    /// The own certificate is another one: connections must be opened again.
    Renewed,
}

/// Command to the owner of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkCommand {
    /// Open the connections, subscribe and ping.
    Connect,
    /// Subscribe again, and go on with pings.
    Resubscribe,
    /// Close the connections, and forget the state.
    Disconnect,
}

/// State of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// First attempt, without a result yet.
    Connecting,
    /// The node reports and answers: its functions are used.
    Up,
    /// The node reports and answers, but flapped before: its functions are not used yet.
    HeldDown {
        /// Time from which they are used.
        until: Instant,
    },
    /// The node does not report or does not answer.
    Down {
        /// Cause of the last failure.
        cause: Arc<str>,
    },
}

/// State machine of the connection to one node.
///
/// A node is used when its whole state is complete and it answers pings. It is down when its stream
/// ends, or when lines or answers to pings do not come in time.
#[derive(Debug)]
pub struct PeerLink {
    timings: LinkTimings,
    phase: LinkPhase,
    backoff: Duration,
    flaps: FlapGuard,
    last_restart: Option<Instant>,
    last_replaced: Option<Instant>,
    /// Cause of the failure since which the node is down.
    failure: Option<Arc<str>>,
}

#[derive(Debug)]
enum LinkPhase {
    Waiting { until: Instant },
    Connecting { since: Instant },
    Streaming(StreamStatus),
}

/// Signs of life of a connection.
#[derive(Debug)]
struct StreamStatus {
    last_line: Instant,
    /// Last answer, or the time from which answers are awaited.
    last_ping: Instant,
    has_ping: bool,
    /// Time from which the end of a whole state is awaited.
    awaits_state: Option<Instant>,
    ready: Option<ReadyStatus>,
}

/// Use of a node that reports and answers.
#[derive(Debug, Clone, Copy)]
struct ReadyStatus {
    since: Instant,
    held_until: Option<Instant>,
    used_since: Option<Instant>,
}

impl PeerLink {
    /// Creates the link of a node. Its first tick connects.
    pub fn new(timings: LinkTimings, now: Instant) -> Self {
        Self {
            timings,
            phase: LinkPhase::Waiting { until: now },
            backoff: timings.min_backoff,
            flaps: FlapGuard::new(&timings),
            last_restart: None,
            last_replaced: None,
            failure: None,
        }
    }

    /// Handles an event at `now`. `jitter` is random, from 0 to 1: it spreads attempts.
    pub fn handle(&mut self, event: LinkEvent, now: Instant, jitter: f64) -> Option<LinkCommand> {
        let command = match event {
            LinkEvent::Tick => self.check_deadlines(now, jitter),
            LinkEvent::StreamFault(cause) => self.restart_stream(cause, now, jitter),
            LinkEvent::ConnectionLost(cause) => self.go_down(cause, now, jitter),
            LinkEvent::Replaced => self.follow_successor(now, jitter),
            LinkEvent::Renewed => self.renew_stream(now),
            LinkEvent::Subscribed => self.note_subscribed(now),
            sign => self.note_sign(&sign, now),
        };
        self.update_use(now);
        command
    }

    /// Returns the state of the connection.
    pub fn state(&self) -> LinkState {
        match (self.ready(), &self.failure) {
            (
                Some(ReadyStatus {
                    held_until: Some(until),
                    ..
                }),
                _,
            ) => LinkState::HeldDown { until },
            (Some(_), _) => LinkState::Up,
            (None, Some(cause)) => LinkState::Down {
                cause: cause.clone(),
            },
            (None, None) => LinkState::Connecting,
        }
    }

    /// Returns the time of the next tick.
    pub fn next_deadline(&self) -> Instant {
        match &self.phase {
            LinkPhase::Waiting { until } => *until,
            LinkPhase::Connecting { since } => *since + self.timings.connect_timeout,
            LinkPhase::Streaming(stream) => {
                let held_until = stream.ready.and_then(|ready| ready.held_until);
                let (silent_at, _) = stream.silence(&self.timings);
                held_until.map_or(silent_at, |until| until.min(silent_at))
            }
        }
    }

    fn ready(&self) -> Option<ReadyStatus> {
        match &self.phase {
            LinkPhase::Streaming(stream) => stream.ready,
            _ => None,
        }
    }

    fn check_deadlines(&mut self, now: Instant, jitter: f64) -> Option<LinkCommand> {
        let (at, cause) = match &self.phase {
            LinkPhase::Waiting { until } if *until <= now => {
                self.phase = LinkPhase::Connecting { since: now };
                return Some(LinkCommand::Connect);
            }
            LinkPhase::Waiting { .. } => return None,
            LinkPhase::Connecting { since } => (
                *since + self.timings.connect_timeout,
                "it does not answer: no connection in time",
            ),
            LinkPhase::Streaming(stream) => stream.silence(&self.timings),
        };
        (at <= now)
            .then(|| self.go_down(cause.into(), now, jitter))
            .flatten()
    }

    fn note_subscribed(&mut self, now: Instant) -> Option<LinkCommand> {
        match &mut self.phase {
            LinkPhase::Connecting { .. } => {
                self.phase = LinkPhase::Streaming(StreamStatus {
                    last_line: now,
                    last_ping: now,
                    has_ping: false,
                    awaits_state: Some(now),
                    ready: None,
                });
            }
            LinkPhase::Streaming(stream) => stream.last_line = now,
            LinkPhase::Waiting { .. } => {}
        }
        None
    }

    fn note_sign(&mut self, sign: &LinkEvent, now: Instant) -> Option<LinkCommand> {
        if let LinkPhase::Streaming(stream) = &mut self.phase {
            match sign {
                LinkEvent::PingAnswered => (stream.last_ping, stream.has_ping) = (now, true),
                LinkEvent::StateCompleted => (stream.last_line, stream.awaits_state) = (now, None),
                _ => stream.last_line = now,
            }
        }
        None
    }

    /// Begins or ends the use of the node's functions.
    fn update_use(&mut self, now: Instant) {
        let LinkPhase::Streaming(stream) = &mut self.phase else {
            return;
        };
        if stream.ready.is_none() && stream.has_ping && stream.awaits_state.is_none() {
            let hold_down = self.flaps.take_hold_down(now, &self.timings);
            stream.ready = Some(ReadyStatus {
                since: now,
                held_until: hold_down.map(|hold_down| now + hold_down),
                used_since: None,
            });
        }
        let Some(ready) = &mut stream.ready else {
            return;
        };
        if ready.held_until.is_none_or(|until| until <= now) {
            ready.held_until = None;
            ready.used_since.get_or_insert(now);
            self.failure = None;
        }
    }

    /// Starts a subscription again. A node whose frames are wrong again soon is down, because the
    /// next whole state would be wrong, too.
    fn restart_stream(
        &mut self,
        cause: Arc<str>,
        now: Instant,
        jitter: f64,
    ) -> Option<LinkCommand> {
        let interval = self.timings.restart_interval;
        let is_recent = |at: Instant| now.saturating_duration_since(at) < interval;
        match &mut self.phase {
            LinkPhase::Streaming(stream)
                if stream.ready.is_some() && !self.last_restart.is_some_and(is_recent) =>
            {
                self.last_restart = Some(now);
                stream.awaits_state = Some(now);
                Some(LinkCommand::Resubscribe)
            }
            _ => self.go_down(cause, now, jitter),
        }
    }

    /// Subscribes to the process that has replaced that of the subscription. A node whose processes follow
    /// each other faster than attempts to connect is down, so that it cannot cause a busy loop.
    fn follow_successor(&mut self, now: Instant, jitter: f64) -> Option<LinkCommand> {
        let interval = self.timings.min_backoff;
        let is_recent = |at: Instant| now.saturating_duration_since(at) < interval;
        match &mut self.phase {
            LinkPhase::Streaming(stream) if !self.last_replaced.is_some_and(is_recent) => {
                self.last_replaced = Some(now);
                (stream.awaits_state, stream.last_line, stream.last_ping) = (Some(now), now, now);
                Some(LinkCommand::Resubscribe)
            }
            _ => self.go_down(
                "its process is replaced again and again".into(),
                now,
                jitter,
            ),
        }
    }

    /// Starts the subscription of a node that is used again. Others are dialed with the new certificate
    /// when they fail.
    fn renew_stream(&mut self, now: Instant) -> Option<LinkCommand> {
        let LinkPhase::Streaming(stream) = &mut self.phase else {
            return None;
        };
        stream.ready?;
        (stream.awaits_state, stream.last_ping) = (Some(now), now);
        Some(LinkCommand::Resubscribe)
    }

    fn go_down(&mut self, cause: Arc<str>, now: Instant, jitter: f64) -> Option<LinkCommand> {
        if matches!(self.phase, LinkPhase::Waiting { .. }) {
            return None;
        }
        if let Some(ready) = self.ready() {
            self.flaps.note_down(ready.used_since, now, &self.timings);
            // A node that ended at once must not be dialed ten times a second.
            if now.saturating_duration_since(ready.since) >= self.timings.max_backoff {
                self.backoff = self.timings.min_backoff;
            }
        }
        self.failure = Some(cause);
        // Half of the wait at least, so that chance never makes a busy loop.
        let wait = self.backoff.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        self.phase = LinkPhase::Waiting { until: now + wait };
        self.backoff = (self.backoff * 2).min(self.timings.max_backoff);
        Some(LinkCommand::Disconnect)
    }
}

impl StreamStatus {
    /// Returns when the node counts as down unless it gives a sign of life, and the cause.
    fn silence(&self, timings: &LinkTimings) -> (Instant, &'static str) {
        let line = (
            self.last_line + timings.line_timeout,
            "no line of its state came in time",
        );
        let ping = (
            self.last_ping + timings.ping_timeout,
            "no ping was answered in time",
        );
        let first = if ping.0 < line.0 { ping } else { line };
        match self.awaits_state {
            Some(since) if since + timings.state_timeout < first.0 => (
                since + timings.state_timeout,
                "its whole state did not come in time",
            ),
            _ => first,
        }
    }
}
