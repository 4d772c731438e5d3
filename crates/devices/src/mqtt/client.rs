//! Task of one client's connection: reads packets, lets [`Session`] decide, calls functions, and
//! sends their results.
//!
//! The task ends after its last call, not with the connection. The functions for an accepted
//! message run to their end, even if the client has disconnected.

use std::future::pending;
use std::net::IpAddr;
use std::rc::Rc;

use bytes::BytesMut;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use nearpath_gateway::invoke::RemoteClient;
use nearpath_types::Reason;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use super::codec;
use super::invocation::{MessageOutcome, invoke_targets};
use super::packet::{
    ClientPacket, ConnackParams, Connect, DisconnectReason, Publish, ServerPacket, SubscribeResult,
    Version,
};
use super::packet_stream::{PacketStream, ReadError, WriteError};
use super::session::{Session, SessionAction};
use super::subscriptions::OutboundQueue;
use super::{ConnectionSlot, MqttServer, PasswordVerdict};

/// Serves a connection to its end. `has_room`: this connection is within
/// [`max_clients`](crate::limits::MqttLimits::max_clients).
pub(super) async fn serve(
    server: Rc<MqttServer>,
    stream: TcpStream,
    addr: IpAddr,
    has_room: bool,
    slot: ConnectionSlot,
) {
    let remote = Rc::new(RemoteClient::new(addr, "mqtt"));
    let mut stream = PacketStream {
        socket: stream,
        buffer: BytesMut::new(),
        version: None,
        server: server.clone(),
    };
    // Covers reading CONNECT and writing CONNACK: an unauthenticated peer gets no more time.
    let opened = timeout(
        server.limits.io_timeout,
        accept_connect(&mut stream, addr, has_room),
    )
    .await;
    let Ok(Ok((connect, session))) = opened else {
        return;
    };
    server.metrics.clients.increment();
    // Only after CONNACK: a refused client must not take over a connected one's identifier.
    let queue = server.subscriptions.register(connect.client_id.clone());
    let mut client = ClientTask {
        server,
        remote,
        session,
        queue,
        calls: FuturesUnordered::new(),
        stream,
    };
    let end = client.run().await;
    client.close(end, connect.will).await;
    // Held across `close`: calls that outlive the socket count against the connection limit.
    drop(slot);
}

/// Reads the first packet and answers with CONNACK. Fails when the client is refused or gone.
async fn accept_connect(
    stream: &mut PacketStream,
    addr: IpAddr,
    has_room: bool,
) -> Result<(Connect, Session), ()> {
    let server = stream.server.clone();
    let refusal = match stream.next_packet().await {
        Ok(ClientPacket::Connect(mut connect)) => {
            // Before the check: a refusal has to be encoded in the client's version.
            stream.version = Some(connect.version);
            let generated_id = format!("nearpath-{}", Uuid::new_v4().simple());
            match check_connect(&server, &connect, (addr, has_room), &generated_id) {
                Ok((session, welcome)) => {
                    if connect.client_id.is_empty() {
                        connect.client_id = generated_id.into();
                    }
                    stream
                        .send(&ServerPacket::Connack(welcome))
                        .await
                        .map_err(drop)?;
                    return Ok((*connect, session));
                }
                Err(reason) => reason,
            }
        }
        Ok(_) => DisconnectReason::Protocol,
        Err(ReadError::Closed) => return Err(()),
        Err(ReadError::Invalid(reason)) => reason,
    };
    server.metrics.count_disconnect(refusal.name());
    // An unreadable first packet has no version: every client knows the refusal codes of 3.1.1.
    stream.version.get_or_insert(Version::V311);
    let _ = stream.send(&ServerPacket::Reject(refusal)).await; // the connection ends either way
    Err(())
}

fn check_connect(
    server: &MqttServer,
    connect: &Connect,
    (addr, has_room): (IpAddr, bool),
    generated_id: &str,
) -> Result<(Session, ConnackParams), DisconnectReason> {
    // Cheap checks first: the password check comes from the embedding process and may be slow.
    if server.drain.is_draining() {
        return Err(DisconnectReason::Draining);
    }
    if !has_room {
        return Err(DisconnectReason::Busy);
    }
    let password_ok = match check_password(server, connect, addr) {
        PasswordVerdict::Right => true,
        PasswordVerdict::Wrong => false,
        PasswordVerdict::LockedOut => return Err(DisconnectReason::LoginLocked),
    };
    Session::accept_connect(connect, &server.limits, password_ok, generated_id)
}

fn check_password(server: &MqttServer, connect: &Connect, addr: IpAddr) -> PasswordVerdict {
    let user = connect.user.as_deref().unwrap_or("");
    match (&server.password_check, &connect.password) {
        (None, _) => PasswordVerdict::Right,
        (Some(check), Some(password)) => check(addr, user, password),
        // No login, and no guess: a client without a password locks no address out.
        (Some(_), None) => PasswordVerdict::Wrong,
    }
}

/// The way in which a connection ended.
enum ConnectionEnd {
    /// The client disconnected.
    Orderly,
    /// The client is gone, or disconnected with the wish that its last will be published.
    Lost,
    /// This server ended the connection.
    Ended(DisconnectReason),
}

struct ClientTask {
    server: Rc<MqttServer>,
    remote: Rc<RemoteClient>,
    session: Session,
    queue: Rc<OutboundQueue>,
    calls: FuturesUnordered<LocalBoxFuture<'static, MessageOutcome>>,
    stream: PacketStream,
}

impl ClientTask {
    async fn run(&mut self) -> ConnectionEnd {
        let drain = self.server.drain.clone();
        let mut last_read = Instant::now();
        loop {
            // Sends before it waits: the last packet may be a PUBACK that makes room in the window
            // for queued messages.
            let event = match self.send_queued().await {
                Ok(()) => self.next_event(&drain, last_read).await,
                Err(end) => return end,
            };
            let action = match event {
                ClientEvent::Packet(packet) => {
                    last_read = Instant::now();
                    // A copy of the `Rc`, because `self.session` is borrowed mutably by the next
                    // statement.
                    let server = self.server.clone();
                    self.session
                        .handle_packet(packet, |name| server.routes.borrow().has_function(name))
                }
                ClientEvent::CallsFinished(outcome) => {
                    // At `max_in_flight` calls, keep-alive packets were not read: the client gets
                    // at least half of its timeout again.
                    last_read =
                        last_read.max(Instant::now() - self.session.keep_alive_timeout() / 2);
                    self.publish_results(outcome)
                }
                ClientEvent::QueueChanged => SessionAction::Nothing,
                ClientEvent::Ended(end) => return end,
            };
            if let Err(end) = self.apply(action).await {
                return end;
            }
        }
    }

    /// Waits for the next event. At `max_in_flight` calls nothing is read from the client, so TCP's
    /// flow control slows it down.
    async fn next_event(
        &mut self,
        drain: &nearpath_daemon::drain::DrainWatch,
        last_read: Instant,
    ) -> ClientEvent {
        let may_read = self.calls.len() < self.server.limits.max_in_flight;
        let (stream, calls, queue) = (&mut self.stream, &mut self.calls, &self.queue);
        let deadline = last_read + self.session.keep_alive_timeout();
        tokio::select! {
            // In order: a drain and finished calls must not wait behind a client that sends without
            // pause.
            biased;
            () = drain.signaled() => ClientEvent::Ended(ConnectionEnd::Ended(DisconnectReason::Draining)),
            Some(outcome) = calls.next(), if !calls.is_empty() => ClientEvent::CallsFinished(outcome),
            () = queue.wait_changed() => match queue.is_taken_over() {
                true => ClientEvent::Ended(ConnectionEnd::Ended(DisconnectReason::TakenOver)),
                false => ClientEvent::QueueChanged,
            },
            packet = stream.next_packet(), if may_read => match packet {
                Ok(packet) => ClientEvent::Packet(packet),
                Err(ReadError::Closed) => ClientEvent::Ended(ConnectionEnd::Lost),
                Err(ReadError::Invalid(reason)) => {
                    ClientEvent::Ended(ConnectionEnd::Ended(reason))
                }
            },
            // No timeout while nothing is read: silence then says nothing about the client.
            () = async { if may_read { sleep_until(deadline).await } else { pending().await } } => {
                ClientEvent::Ended(ConnectionEnd::Ended(DisconnectReason::KeepAlive))
            }
        }
    }

    async fn apply(&mut self, action: SessionAction) -> Result<(), ConnectionEnd> {
        match action {
            SessionAction::Nothing => Ok(()),
            SessionAction::Send(packet) => self.send(&packet).await,
            SessionAction::Call(publish) => {
                self.invoke(publish);
                Ok(())
            }
            // Subscribed before SUBACK, so that no result in between is lost (MQTT 5.0 section
            // 3.8.4).
            SessionAction::Subscribe(packet_id, results) => {
                for (filter, granted) in &results {
                    if let Some(qos) = [SubscribeResult::Qos0, SubscribeResult::Qos1]
                        .iter()
                        .position(|level| level == granted)
                    {
                        self.server
                            .subscriptions
                            .subscribe(&self.queue, filter, qos as u8);
                    }
                }
                let granted = results.into_iter().map(|(_, granted)| granted).collect();
                self.send(&ServerPacket::Suback(packet_id, granted)).await
            }
            SessionAction::Unsubscribe(packet_id, filters) => {
                filters
                    .iter()
                    .for_each(|filter| self.server.subscriptions.unsubscribe(&self.queue, filter));
                let existed = filters
                    .iter()
                    .map(|filter| self.session.remove_filter(filter))
                    .collect();
                self.send(&ServerPacket::Unsuback(packet_id, existed)).await
            }
            SessionAction::Close { will } => Err(if will {
                ConnectionEnd::Lost
            } else {
                ConnectionEnd::Orderly
            }),
            SessionAction::Disconnect(reason) => Err(ConnectionEnd::Ended(reason)),
        }
    }

    fn invoke(&mut self, publish: Publish) {
        self.server.metrics.messages.increment();
        let targets = self.server.routes.borrow_mut().targets(&publish.topic);
        // No early return: without a target, `invoke_targets` still acknowledges with `NoMatch`.
        if targets.is_empty() {
            self.server.metrics.unmatched.increment();
            self.server.invoker.count_refused(Reason::NoFunction);
        }
        let (server, remote, version) = (
            self.server.clone(),
            self.remote.clone(),
            self.session.version(),
        );
        // Boxed: an async function's future has no type name for the field `calls`.
        self.calls.push(Box::pin(invoke_targets(
            server, remote, version, publish, targets,
        )));
    }

    /// Queues a message's results for their subscribers. Returns the acknowledgement to send.
    fn publish_results(&mut self, outcome: MessageOutcome) -> SessionAction {
        outcome
            .results
            .iter()
            .for_each(|result| self.server.subscriptions.publish(result));
        self.session.finish_call(outcome.packet_id, outcome.ack)
    }

    /// Sends queued messages, as far as the client's window allows.
    async fn send_queued(&mut self) -> Result<(), ConnectionEnd> {
        loop {
            let session = &self.session;
            let Some(mut next) = self.queue.pop(|next| next.qos == 0 || session.has_window())
            else {
                return Ok(());
            };
            // Allocated here, not when queued: so at most a window of identifiers is in use.
            next.packet_id = (next.qos > 0).then(|| self.session.next_packet_id());
            let bytes = codec::encode(&ServerPacket::Publish(next.clone()), self.session.version());
            match bytes.filter(|bytes| bytes.len() <= self.session.max_packet()) {
                Some(bytes) => {
                    self.server.metrics.sent.increment();
                    self.stream
                        .write(&bytes)
                        .await
                        .map_err(ConnectionEnd::from)?;
                }
                None => {
                    self.server.metrics.lost.increment();
                    // Nothing was sent and no PUBACK will come: a PUBACK of our own frees the
                    // identifier.
                    next.packet_id.into_iter().for_each(|packet_id| {
                        drop(
                            self.session
                                .handle_packet(ClientPacket::Puback(packet_id), |_| true),
                        )
                    });
                }
            }
        }
    }

    async fn send(&mut self, packet: &ServerPacket) -> Result<(), ConnectionEnd> {
        self.stream.send(packet).await.map_err(ConnectionEnd::from)
    }

    /// Closes the connection, with a reason if there is one, and waits for open calls. The last
    /// will is published unless the client disconnected in order or the gateway drains.
    async fn close(mut self, end: ConnectionEnd, will: Option<Publish>) {
        // Count and subscriptions first: the steps below must not treat this client as connected.
        self.server.metrics.clients.decrement();
        self.server
            .subscriptions
            .unregister(&self.queue, self.session.filters());
        let reason = match end {
            ConnectionEnd::Ended(reason) => {
                self.server.metrics.count_disconnect(reason.name());
                Some(reason)
            }
            ConnectionEnd::Orderly | ConnectionEnd::Lost => None,
        };
        // After a drain the device reconnects elsewhere: it is not lost, so it has no last will.
        if let Some(will) = will.filter(|_| {
            !matches!(end, ConnectionEnd::Orderly) && reason != Some(DisconnectReason::Draining)
        }) {
            self.invoke(Publish {
                // The client is gone and cannot acknowledge.
                qos: 0,
                packet_id: None,
                ..will
            });
        }
        // A drain waits for the calls, so that the client sees their acknowledgements first.
        if reason == Some(DisconnectReason::Draining) {
            self.finish_calls(true).await;
        }
        if let Some(reason) = reason {
            // The connection ends either way.
            let _ = self.stream.send(&ServerPacket::Disconnect(reason)).await;
        }
        // Sends FIN now: open calls may run for minutes. An error means that the peer has closed.
        let _ = self.stream.socket.shutdown().await;
        self.finish_calls(false).await;
    }

    /// Waits for the remaining calls. `notify_client`: acknowledges them to the client.
    async fn finish_calls(&mut self, mut notify_client: bool) {
        while let Some(outcome) = self.calls.next().await {
            let action = self.publish_results(outcome);
            // After a failed write further ones fail, too. Results still go to other subscribers.
            if notify_client {
                notify_client =
                    self.apply(action).await.is_ok() && self.send_queued().await.is_ok();
            }
        }
    }
}

enum ClientEvent {
    Packet(ClientPacket),
    CallsFinished(MessageOutcome),
    QueueChanged,
    Ended(ConnectionEnd),
}

impl From<WriteError> for ConnectionEnd {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Closed => Self::Lost,
            WriteError::TimedOut => Self::Ended(DisconnectReason::Stuck),
        }
    }
}
