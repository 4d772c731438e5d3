//! Task of a control connection.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::Message;

use super::backoff::DialBackoff;
use super::dial::{ReachedServer, dial};
use super::duplex_socket::{DuplexEvent, DuplexSocket};
use super::resumable_relay::SessionItem;
use super::{
    ConnectedState, ControlCommand, ControlEnd, ControlEvent, ControlSettings, PeerCallError,
    PeerSession, UnansweredCall,
};
use crate::message::{
    self, ControlWelcome, RelayedFrame, RendezvousMessage, SessionGrant, SessionIdHex,
    SessionMessage, WorkerMessage,
};
use crate::websocket::{self, WebSocket};

/// Silence after which a connection is dead; the rendezvous pings three times as often.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(75);
/// Age at which a connection counts as stable.
const STABLE_AGE: Duration = Duration::from_secs(10);
/// Time beyond a call's own for the rendezvous' response, and for single messages.
const RESPONSE_GRACE: Duration = Duration::from_secs(10);
/// Maximum of buffered bytes per session, by [`SessionItem::buffer_cost`] (`contract/migration.md`).
const MAX_SESSION_BYTES: usize = 1 << 20;

/// Keeps a connection until it ends for good, or no handle is left.
pub(super) async fn run_control_task(
    settings: Arc<ControlSettings>,
    commands: mpsc::UnboundedReceiver<ControlCommand>,
    weak_commands: mpsc::WeakUnboundedSender<ControlCommand>,
    events: mpsc::Sender<ControlEvent>,
    connected: watch::Sender<Option<Arc<ConnectedState>>>,
) {
    let (calls, sessions, queued_commands) = (HashMap::new(), HashMap::new(), VecDeque::new());
    let mut task = ControlTask {
        settings,
        commands,
        weak_commands,
        events,
        connected,
        has_connected: false,
        calls,
        sessions,
        queued_commands,
        last_call: 0,
    };
    let end = task.run().await;
    task.close_with_reason(end).await;
}

struct ControlTask {
    settings: Arc<ControlSettings>,
    commands: mpsc::UnboundedReceiver<ControlCommand>,
    /// Sender for new sessions; does not keep the connection open.
    weak_commands: mpsc::WeakUnboundedSender<ControlCommand>,
    events: mpsc::Sender<ControlEvent>,
    connected: watch::Sender<Option<Arc<ConnectedState>>>,
    /// A connection has been welcomed.
    has_connected: bool,
    calls: HashMap<u32, UnansweredCall>,
    sessions: HashMap<SessionIdHex, SessionInbox>,
    /// Commands that came without a connection.
    queued_commands: VecDeque<ControlCommand>,
    last_call: u32,
}

/// Inbox of a session, and the cost of what it received.
struct SessionInbox {
    items: mpsc::UnboundedSender<SessionItem>,
    received_cost: usize,
}

/// Outcome of a connection.
enum ConnectionOutcome {
    /// To be reopened.
    Broken(String),
    Final(ControlEnd),
    /// No handle is left.
    NoHandles,
}

impl ControlTask {
    /// Reopens the connection until it ends for good. `None`: no handle is left.
    async fn run(&mut self) -> Option<ControlEnd> {
        let mut backoff = DialBackoff::default();
        loop {
            let started = Instant::now();
            let why = match self.run_connection().await {
                ConnectionOutcome::Broken(why) => why,
                // A renewal that goes wrong is perhaps mended soon.
                ConnectionOutcome::Final(ControlEnd::Untrusted(why)) if self.has_connected => why,
                ConnectionOutcome::Final(reason) => return Some(reason),
                ConnectionOutcome::NoHandles => return None,
            };
            self.connected.send_replace(None);
            // A connection that breaks at once must not reset the delay, or a broken server would
            // be dialled in a loop.
            if started.elapsed() >= STABLE_AGE {
                backoff.reset();
            }
            let pause = tokio::time::sleep(backoff.next_delay(fastrand::f64()));
            if self
                .events
                .send(ControlEvent::Disconnected { why })
                .await
                .is_err()
                || self.run_disconnected(pause).await.is_none()
            {
                return None;
            }
        }
    }

    /// Takes commands and expires calls while there is no connection. `None`: no handle is left.
    async fn run_disconnected<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            let deadline = self
                .calls
                .values()
                .map(|call| call.deadline + RESPONSE_GRACE)
                .min();
            let deadline = deadline.unwrap_or_else(|| Instant::now() + SILENCE_TIMEOUT);
            tokio::select! {
                done = &mut work => return Some(done),
                // Calls are registered even now: they expire on time although there is no
                // connection.
                order = self.commands.recv() => match order? {
                    ControlCommand::Call(call) => drop(self.register_call(call)),
                    command => self.queued_commands.push_back(command),
                },
                () = tokio::time::sleep_until(deadline.into()) => self.give_up_late_calls(),
            }
        }
    }

    async fn run_connection(&mut self) -> ConnectionOutcome {
        let settings = self.settings.clone();
        let (mut socket, rendezvous) = match self.run_disconnected(open_socket(&settings)).await {
            None => return ConnectionOutcome::NoHandles,
            Some(Ok(opened)) => opened,
            Some(Err(end)) => return end,
        };
        let welcome = match self.run_disconnected(receive_welcome(&mut socket)).await {
            None => return ConnectionOutcome::NoHandles,
            Some(Ok(welcome)) => welcome,
            Some(Err(end)) => return end,
        };
        self.has_connected = true;
        self.connected.send_replace(Some(Arc::new(ConnectedState {
            welcome: welcome.clone(),
            server: rendezvous,
        })));
        if self
            .events
            .send(ControlEvent::Connected(welcome))
            .await
            .is_err()
        {
            return ConnectionOutcome::NoHandles;
        }
        let mut socket = DuplexSocket::new(socket);
        self.resume_state(&mut socket);
        self.exchange_messages(&mut socket).await
    }

    async fn exchange_messages(&mut self, socket: &mut DuplexSocket) -> ConnectionOutcome {
        let mut last_received = Instant::now();
        loop {
            let blocked_since = socket.blocked_since();
            let silence_deadline = blocked_since
                .map_or(last_received, |since| since.min(last_received))
                + SILENCE_TIMEOUT;
            let done = tokio::select! {
                // Nothing is taken while a message is unsent: see `next_command`.
                order = next_command(&mut self.queued_commands, &mut self.commands), if blocked_since.is_none() => match order {
                    Some(command) => {
                        self.handle_command(command, socket);
                        Ok(())
                    }
                    None => {
                        // The connection ends either way.
                        let _ = tokio::time::timeout(RESPONSE_GRACE, socket.close()).await;
                        return ConnectionOutcome::NoHandles;
                    }
                },
                event = socket.next_event() => match event {
                    Ok(DuplexEvent::Sent) => Ok(()),
                    Ok(DuplexEvent::Received(message)) => {
                        // Any message counts, pings included: tungstenite answers those itself.
                        last_received = Instant::now();
                        self.handle_frame(message).await
                    }
                    Err(error) => Err(ConnectionOutcome::Broken(error.to_string())),
                },
                () = tokio::time::sleep_until(silence_deadline.into()) => Err(ConnectionOutcome::Broken(match blocked_since {
                    Some(_) => "the rendezvous does not read".into(),
                    None => "the rendezvous is silent".into(),
                })),
            };
            self.give_up_late_calls();
            if let Err(end) = done {
                return end;
            }
        }
    }

    fn handle_command(&mut self, command: ControlCommand, socket: &mut DuplexSocket) {
        match command {
            ControlCommand::Send(message) => {
                // Items that still arrive for it have no reader.
                if let WorkerMessage::CloseSession { session } = &message {
                    self.sessions.remove(session);
                }
                socket.send(encode_message(&message));
            }
            ControlCommand::Call(call) => {
                let message = self.register_call(call);
                socket.send(encode_message(&message));
            }
            ControlCommand::Relay(frame) => socket.send(Message::Binary(frame.encode())),
        }
    }

    /// Registers a call, and returns its message.
    fn register_call(&mut self, call: UnansweredCall) -> WorkerMessage {
        // Numbers repeat after 2^32 calls; no call waits that long.
        self.last_call = self.last_call.wrapping_add(1);
        let message = call.to_message(self.last_call);
        self.calls.insert(self.last_call, call);
        message
    }

    /// Repeats waiting calls; queued commands follow.
    ///
    /// A call may have been granted while the connection broke. Then there are two sessions, and
    /// the older one expires unused.
    fn resume_state(&mut self, socket: &mut DuplexSocket) {
        self.give_up_late_calls();
        self.calls
            .iter()
            .for_each(|(number, call)| socket.send(encode_message(&call.to_message(*number))));
        // Sessions whose receiver is gone need no query.
        self.sessions.retain(|_, inbox| !inbox.items.is_closed());
        for session in self.sessions.keys().copied() {
            // No news for the peer, but a restarted rendezvous answers that it does not know the
            // session (decision 50).
            socket.send(encode_message(&WorkerMessage::SessionMessage {
                session,
                message: SessionMessage::Ack { acknowledged: 0 },
            }));
        }
    }

    fn give_up_late_calls(&mut self) {
        let now = Instant::now();
        // A caller that has stopped waiting needs no response either.
        let late = |call: &UnansweredCall| {
            call.deadline + RESPONSE_GRACE <= now || call.result_sender.is_closed()
        };
        for (_, call) in self.calls.extract_if(|_, call| late(call)) {
            // The caller may have stopped waiting.
            let _ = call.result_sender.send(Err(PeerCallError::Unreachable));
        }
    }

    async fn handle_frame(&mut self, message: Option<Message>) -> Result<(), ConnectionOutcome> {
        let broken = |why: &str| Err(ConnectionOutcome::Broken(why.to_owned()));
        match message {
            Some(Message::Text(text)) => match serde_json::from_str(&text) {
                Ok(message) => self.handle_message(message).await,
                Err(_) => Ok(()), // a newer rendezvous may have more messages
            },
            Some(Message::Binary(frame)) => {
                if let Some(frame) = RelayedFrame::decode(&message::detach_small_frame(frame)) {
                    self.deliver_item(frame.session, SessionItem::Frame(frame));
                }
                Ok(())
            }
            // A clean close without `bye` is a proxy's or a restart's: worth another try.
            Some(Message::Close(_)) | None => broken("the rendezvous closed the connection"),
            Some(_) => Ok(()),
        }
    }

    async fn handle_message(
        &mut self,
        message: RendezvousMessage,
    ) -> Result<(), ConnectionOutcome> {
        match message {
            RendezvousMessage::Granted(granted) => self.handle_grant(granted).await,
            RendezvousMessage::Refused { call, reason } => {
                if let Some(call) = self.calls.remove(&call) {
                    // The caller may have stopped waiting.
                    let _ = call.result_sender.send(Err(PeerCallError::Refused(reason)));
                }
                Ok(())
            }
            RendezvousMessage::SessionMessage { session, message } => {
                self.deliver_item(session, SessionItem::Message(message));
                Ok(())
            }
            RendezvousMessage::SessionClosed { session, .. } => {
                self.sessions.remove(&session);
                Ok(())
            }
            RendezvousMessage::Report { from, report } => {
                self.send_event(ControlEvent::Report { from, report }).await
            }
            RendezvousMessage::Undelivered { to } => {
                self.send_event(ControlEvent::Undelivered { to }).await
            }
            RendezvousMessage::Close { reason } if reason.is_final() => Err(
                ConnectionOutcome::Final(ControlEnd::ClosedByRendezvous(reason)),
            ),
            RendezvousMessage::Close { reason } => {
                Err(ConnectionOutcome::Broken(reason.to_string()))
            }
            RendezvousMessage::Welcome(_) => Ok(()),
        }
    }

    async fn handle_grant(&mut self, granted: SessionGrant) -> Result<(), ConnectionOutcome> {
        let Some(commands) = self.weak_commands.upgrade() else {
            return Err(ConnectionOutcome::NoHandles);
        };
        let (items, received_items) = mpsc::unbounded_channel();
        let (_, until) = granted.punch_grant(Instant::now());
        // Registered before the caller learns of it: messages may follow at once.
        self.sessions.insert(
            granted.session,
            SessionInbox {
                items,
                received_cost: 0,
            },
        );
        let number = granted.call;
        let session = PeerSession {
            grant: granted,
            expires_at: until,
            hello: None,
            items: received_items,
            commands,
        };
        match number {
            Some(number) => {
                if let Some(call) = self.calls.remove(&number) {
                    // Without a caller the session is dropped, which hangs it up.
                    let _ = call.result_sender.send(Ok(session));
                }
                Ok(())
            }
            None => self.send_event(ControlEvent::IncomingCall(session)).await,
        }
    }

    fn deliver_item(&mut self, session: SessionIdHex, spoken: SessionItem) {
        if let Some(inbox) = self.sessions.get_mut(&session) {
            inbox.received_cost += spoken.buffer_cost();
            // A session above the limit loses the control connection only; its relay continues.
            if inbox.items.send(spoken).is_err() || inbox.received_cost >= MAX_SESSION_BYTES {
                self.sessions.remove(&session);
            }
        }
    }

    async fn send_event(&self, event: ControlEvent) -> Result<(), ConnectionOutcome> {
        self.events
            .send(event)
            .await
            .map_err(|_| ConnectionOutcome::NoHandles)
    }

    /// Fails all waiting calls with the reason.
    async fn close_with_reason(mut self, reason: Option<ControlEnd>) {
        // Handles must see the end before their calls fail.
        self.connected.send_replace(None);
        let error = reason
            .clone()
            .map_or(PeerCallError::Closed, PeerCallError::Ended);
        // Commands that raced with the end are drained, so that no caller waits forever.
        self.commands.close();
        let pending = self
            .calls
            .drain()
            .map(|(_, call)| call.result_sender)
            .collect::<Vec<_>>();
        let mut result_senders = pending;
        while let Ok(command) = self.commands.try_recv() {
            if let ControlCommand::Call(call) = command {
                result_senders.push(call.result_sender);
            }
        }
        for result_sender in result_senders {
            let _ = result_sender.send(Err(error.clone())); // the caller may have stopped waiting
        }
        if let Some(reason) = reason {
            let _ = self.events.send(ControlEvent::Ended(reason)).await; // the reader may be gone
        }
    }
}

/// Takes the next command, queued ones first.
///
/// A command is taken when the connection can send it: a break loses no more than that.
async fn next_command(
    queued_commands: &mut VecDeque<ControlCommand>,
    commands: &mut mpsc::UnboundedReceiver<ControlCommand>,
) -> Option<ControlCommand> {
    match queued_commands.pop_front() {
        Some(command) => Some(command),
        None => commands.recv().await,
    }
}

impl UnansweredCall {
    fn to_message(&self, call: u32) -> WorkerMessage {
        let left = self
            .deadline
            .saturating_duration_since(Instant::now())
            .as_millis();
        let within = u32::try_from(left).unwrap_or(u32::MAX);
        let (peer, about, hello) = (self.peer.clone(), self.about.clone(), self.hello.clone());
        WorkerMessage::Call {
            call,
            peer,
            about,
            within,
            hello,
        }
    }
}

async fn open_socket(
    settings: &ControlSettings,
) -> Result<(WebSocket, ReachedServer), ConnectionOutcome> {
    let dialled = dial(
        settings,
        websocket::CONTROL_PATH,
        &settings.ticket.0,
        websocket::control_client_config(),
    )
    .await;
    dialled.map_err(|error| {
        let text = error.to_string();
        if error.is_final() {
            ConnectionOutcome::Final(ControlEnd::TicketRefused(text))
        } else if error.is_untrusted() {
            ConnectionOutcome::Final(ControlEnd::Untrusted(text))
        } else {
            ConnectionOutcome::Broken(text)
        }
    })
}

async fn receive_welcome(socket: &mut WebSocket) -> Result<ControlWelcome, ConnectionOutcome> {
    let first = tokio::time::timeout(RESPONSE_GRACE, socket.next()).await;
    let Ok(Some(Ok(Message::Text(text)))) = first else {
        return Err(ConnectionOutcome::Broken(
            "the rendezvous sent no welcome".into(),
        ));
    };
    match serde_json::from_str(&text) {
        Ok(RendezvousMessage::Welcome(welcome)) => Ok(welcome),
        Ok(RendezvousMessage::Close { reason }) if reason.is_final() => Err(
            ConnectionOutcome::Final(ControlEnd::ClosedByRendezvous(reason)),
        ),
        _ => Err(ConnectionOutcome::Broken(
            "the rendezvous sent another message than welcome".into(),
        )),
    }
}

fn encode_message(message: &WorkerMessage) -> Message {
    Message::text(serde_json::to_string(message).expect("messages have text keys only"))
}
