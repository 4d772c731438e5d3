//! Task that keeps the connections to one node and publishes its state.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use nearpath_types::{NodeName, PeerNode};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::applied_states::AppliedState;
use super::dialer::NodeDialer;
use super::http_connection::PeerTarget;
use super::log_lines::PeerLog;
use super::pinger::Pinger;
use super::subscription::{PeerAddress, Subscription, SubscriptionEvent};
use crate::link::{
    ClockSamples, LinkCommand, LinkEvent, LinkState, LinkTimings, PeerLink, PingSample,
};
use crate::peer_states::{PeerAvailability, PeerStates, PeerStatus};
use crate::peer_view::{PeerView, ViewEvent};
use crate::protocol::StateFrame;

/// Longest time that open calls have at a node that has ended its reports while it drained; the default of
/// its own `--drain-timeout`. A node that was killed meanwhile is found by the calls' connections.
const LEAVING_GRACE: Duration = Duration::from_secs(30);

/// Sender of the states of all nodes, shared by their tasks.
pub(super) type StatesSender = Arc<watch::Sender<Arc<PeerStates>>>;

/// Connections to one node and what is known of it.
pub(super) struct PeerTask {
    name: NodeName,
    address: String,
    dialer: Arc<dyn NodeDialer>,
    states: StatesSender,
    applied: AppliedState,
    link: PeerLink,
    view: PeerView,
    clocks: ClockSamples,
    status: PeerStatus,
    /// Time at which the node ended its reports while it drained.
    left_at: Option<std::time::Instant>,
    log: PeerLog,
    attempts: usize,
    subscriptions: u64,
    subscription: Option<Subscription>,
    pinger: Option<Pinger>,
    /// Resolves when connections must be opened again.
    renewal: BoxFuture<'static, ()>,
}

/// Event of the task.
enum TaskEvent {
    Subscription(SubscriptionEvent),
    Ping(PingSample),
    /// The own certificate is another one.
    Renewed,
    Deadline,
}

impl PeerTask {
    pub(super) fn new(
        name: NodeName,
        address: String,
        dialer: Arc<dyn NodeDialer>,
        states: StatesSender,
        applied: AppliedState,
    ) -> Self {
        let now = Instant::now().into_std();
        Self {
            view: PeerView::new(name.clone()),
            link: PeerLink::new(LinkTimings::default(), now),
            status: PeerStatus::new(now),
            clocks: ClockSamples::default(),
            left_at: None,
            log: PeerLog::default(),
            renewal: dialer.renewed(),
            attempts: 0,
            subscriptions: 0,
            subscription: None,
            pinger: None,
            name,
            address,
            dialer,
            states,
            applied,
        }
    }

    /// Runs until it is aborted.
    pub(super) async fn run(mut self) {
        self.publish();
        loop {
            match self.next_event().await {
                TaskEvent::Subscription(event) => self.handle_subscription(event),
                TaskEvent::Ping(sample) => self.handle_ping(sample),
                TaskEvent::Renewed => self.renew_connections(),
                TaskEvent::Deadline => self.handle(LinkEvent::Tick),
            }
            self.publish();
        }
    }

    async fn next_event(&mut self) -> TaskEvent {
        let deadline = self.link.next_deadline();
        let subscription = self.subscription.as_mut();
        let (pinger, renewal) = (self.pinger.as_mut(), &mut self.renewal);
        // In this order: after a pause of this process, waiting signs of life come before the
        // deadline that they prove wrong. Pings are rare, so they do not delay lines.
        tokio::select! {
            biased;
            Some(sample) = poll_source(pinger, Pinger::next_sample) => TaskEvent::Ping(sample),
            Some(event) = poll_source(subscription, Subscription::next_event) => {
                TaskEvent::Subscription(event)
            }
            () = renewal => TaskEvent::Renewed,
            () = sleep_until(deadline.into()) => TaskEvent::Deadline,
        }
    }

    fn handle_subscription(&mut self, event: SubscriptionEvent) {
        match event {
            SubscriptionEvent::Subscribed(target) => self.note_subscribed(target),
            SubscriptionEvent::Frames(frames) => self.apply_frames(frames),
            SubscriptionEvent::Fault(cause) => self.handle(LinkEvent::StreamFault(cause)),
            SubscriptionEvent::Lost(cause) => self.handle(LinkEvent::ConnectionLost(cause)),
        }
    }

    fn note_subscribed(&mut self, target: PeerTarget) {
        self.subscriptions += 1;
        self.status.reconnects = self.subscriptions - 1;
        self.note_address(target.addr);
        // A subscription that starts again keeps the pings of the one before.
        self.pinger
            .get_or_insert_with(|| Pinger::start(target, self.applied.clone()));
        self.handle(LinkEvent::Subscribed);
    }

    fn note_address(&mut self, addr: SocketAddr) {
        if self
            .status
            .node
            .as_ref()
            .is_none_or(|node| node.addr != addr)
        {
            let name = self.name.clone();
            self.status.node = Some(Arc::new(PeerNode {
                name,
                addr,
                incarnation: 0,
            }));
        }
    }

    fn apply_frames(&mut self, frames: Vec<StateFrame>) {
        self.handle(LinkEvent::LineReceived);
        for frame in frames {
            match self.view.apply(frame) {
                Ok(ViewEvent::Unchanged) => {}
                // Further frames are for older releases.
                Ok(ViewEvent::Replaced) => return self.handle(LinkEvent::Replaced),
                Ok(event) => self.note_view(event),
                Err(fault) => {
                    let cause = fault.to_string().into();
                    // Further frames belong to a stream that has ended.
                    return self.handle(LinkEvent::StreamFault(cause));
                }
            }
        }
    }

    fn note_view(&mut self, event: ViewEvent) {
        self.status.changed_at = Some(now());
        if event == ViewEvent::Completed {
            self.handle(LinkEvent::StateCompleted);
        }
    }

    fn handle_ping(&mut self, sample: PingSample) {
        let estimate = self.clocks.add(sample, now());
        self.status.round_trip = Some(estimate.round_trip);
        self.status.clock_offset_micros = Some(estimate.offset_micros);
        self.handle(LinkEvent::PingAnswered);
    }

    fn handle(&mut self, event: LinkEvent) {
        match self.link.handle(event, now(), fastrand::f64()) {
            Some(LinkCommand::Connect) => {
                let address = self.address.clone();
                self.subscribe(address);
                self.attempts += 1;
            }
            Some(LinkCommand::Resubscribe) => {
                let used = self.status.node.as_ref().map(|node| node.addr.to_string());
                self.subscribe(used.unwrap_or_else(|| self.address.clone()));
            }
            Some(LinkCommand::Disconnect) => {
                (self.subscription, self.pinger) = (None, None);
                if self.view.is_draining() {
                    self.left_at = Some(now());
                }
                self.view.clear();
            }
            None => {}
        }
    }

    /// Subscribes again with the new certificate, before the node ends connections of the old one. The
    /// last state stays meanwhile.
    fn renew_connections(&mut self) {
        self.renewal = self.dialer.renewed();
        self.handle(LinkEvent::Renewed);
    }

    fn subscribe(&mut self, address: String) {
        self.view.begin_subscription();
        self.subscription = Some(Subscription::start(PeerAddress {
            node: self.name.clone(),
            text: address,
            attempts: self.attempts,
            dialer: self.dialer.clone(),
        }));
    }

    /// Publishes the state if it is another one.
    fn publish(&mut self) {
        self.note_state();
        self.status.functions = self.view.functions();
        self.status.is_draining = self.view.is_draining();
        self.status.is_leaving = self.is_leaving();
        self.note_hello();
        self.states.send_if_modified(|states| {
            // Maps that share their content are compared without a look at it.
            if states.peers.get(&self.name).map(Arc::as_ref) == Some(&self.status) {
                return false;
            }
            let status = Arc::new(self.status.clone());
            Arc::make_mut(states)
                .peers
                .insert(self.name.clone(), status);
            true
        });
    }

    fn note_hello(&mut self) {
        let Some(hello) = self.view.hello() else {
            return;
        };
        if self.status.incarnation != Some(hello.incarnation) {
            self.status.incarnation = Some(hello.incarnation);
            self.status.version = Some(hello.version.as_str().into());
        }
        let incarnation = hello.incarnation.0;
        let other = |node: &&mut Arc<PeerNode>| node.incarnation != incarnation;
        if let Some(node) = self.status.node.as_mut().filter(other) {
            Arc::make_mut(node).incarnation = incarnation;
        }
    }

    fn is_leaving(&mut self) -> bool {
        let is_down = matches!(self.status.availability, PeerAvailability::Down { .. });
        let since = self
            .left_at
            .filter(|since| is_down && now() < *since + LEAVING_GRACE);
        self.left_at = since;
        since.is_some()
    }

    fn note_state(&mut self) {
        let state = match self.link.state() {
            LinkState::Connecting => PeerAvailability::Connecting,
            LinkState::Up => PeerAvailability::Up,
            LinkState::HeldDown { until } => PeerAvailability::HeldDown { until },
            LinkState::Down { cause } => PeerAvailability::Down { cause },
        };
        if state == self.status.availability {
            return;
        }
        let now = now();
        self.log.note_state(&self.name, &state, now);
        // Another failure of a node that is down does not make it younger.
        let is_still_down = matches!(
            (&state, &self.status.availability),
            (PeerAvailability::Down { .. }, PeerAvailability::Down { .. })
        );
        if !is_still_down {
            self.status.since = now;
        }
        self.status.availability = state;
    }
}

impl Drop for PeerTask {
    /// Ends the use of the node: without this task, no sign of life would be missed.
    fn drop(&mut self) {
        self.handle(LinkEvent::ConnectionLost(
            "the connection was ended here".into(),
        ));
        self.publish();
    }
}

/// Returns the time, which tests can stop.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Polls a source of events; without one it never ends.
async fn poll_source<S, T>(
    source: Option<&mut S>,
    next: impl AsyncFnOnce(&mut S) -> Option<T>,
) -> Option<T> {
    match source {
        Some(source) => next(source).await,
        None => std::future::pending().await,
    }
}
