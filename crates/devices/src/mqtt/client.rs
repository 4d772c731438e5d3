//! One connection: reads packets, lets [`Session`] decide, calls functions, and sends results.
//!
//! The task outlives its connection until its calls have ended: an accepted message runs also when its client has disconnected.

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
use super::{ConnectionSlot, MqttServer};

/// Serves a connection to its end.
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
    let opened = timeout(
        server.limits.io_timeout,
        accept_connect(&mut stream, has_room),
    )
    .await;
    let Ok(Ok((connect, session))) = opened else {
        return;
    };
    server.metrics.clients.increment();
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
    drop(slot);
}

/// Reads the first packet and answers it.
async fn accept_connect(
    stream: &mut PacketStream,
    has_room: bool,
) -> Result<(Connect, Session), ()> {
    let server = stream.server.clone();
    let refused = match stream.next_packet().await {
        Ok(ClientPacket::Connect(mut connect)) => {
            stream.version = Some(connect.version);
            let generated_id = format!("nearpath-{}", Uuid::new_v4().simple());
            match check_connect(&server, &connect, has_room, &generated_id) {
                Ok((session, welcome)) => {
                    if connect.client_id.is_empty() {
                        connect.client_id = generated_id.into();
                    }
                    stream
                        .send(&ServerPacket::ConnackParams(welcome))
                        .await
                        .map_err(drop)?;
                    return Ok((*connect, session));
                }
                Err(end) => end,
            }
        }
        Ok(_) => DisconnectReason::Protocol,
        Err(ReadError::Closed) => return Err(()),
        Err(ReadError::Invalid(end)) => end,
    };
    server.metrics.count_disconnect(refused.name());
    stream.version.get_or_insert(Version::V311);
    let _ = stream.send(&ServerPacket::Reject(refused)).await; // the connection ends either way
    Err(())
}

fn check_connect(
    server: &MqttServer,
    connect: &Connect,
    has_room: bool,
    generated_id: &str,
) -> Result<(Session, ConnackParams), DisconnectReason> {
    if server.drain.is_draining() {
        return Err(DisconnectReason::Draining);
    }
    if !has_room {
        return Err(DisconnectReason::Busy);
    }
    let (user, password) = (
        connect.user.as_deref().unwrap_or(""),
        connect.password.as_deref().unwrap_or(b""),
    );
    let password_ok = server
        .password_check
        .as_ref()
        .is_none_or(|check| check(user, password));
    Session::accept_connect(connect, &server.limits, password_ok, generated_id)
}

/// The way in which a connection ended.
enum ConnectionEnd {
    /// The client disconnected.
    Orderly,
    /// The client is gone, or asked for its last will to be published.
    Lost,
    /// The gateway ended it.
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
            let event = match self.send_queued().await {
                Ok(()) => self.next_event(&drain, last_read).await,
                Err(end) => return end,
            };
            let action = match event {
                ClientEvent::Packet(packet) => {
                    last_read = Instant::now();
                    let server = self.server.clone();
                    self.session
                        .handle_packet(packet, |name| server.routes.borrow().has_function(name))
                }
                ClientEvent::CallsFinished(outcome) => {
                    // While it had all its calls out, its keep-alive packets were not read.
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

    /// Waits for the first event. A client with as many calls as it may have is not read from: TCP slows it down.
    async fn next_event(
        &mut self,
        drain: &nearpath_daemon::drain::DrainWatch,
        last_read: Instant,
    ) -> ClientEvent {
        let may_read = self.calls.len() < self.server.limits.max_in_flight;
        let (stream, calls, queue) = (&mut self.stream, &mut self.calls, &self.queue);
        let deadline = last_read + self.session.keep_alive_timeout();
        tokio::select! {
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
                Err(ReadError::Invalid(end)) => ClientEvent::Ended(ConnectionEnd::Ended(end)),
            },
            () = async { if may_read { sleep_until(deadline).await } else { pending().await } } => {
                ClientEvent::Ended(ConnectionEnd::Ended(DisconnectReason::KeepAlive))
            }
        }
    }

    async fn apply(&mut self, action: SessionAction) -> Result<(), ConnectionEnd> {
        match action {
            SessionAction::Nothing => Ok(()),
            SessionAction::Send(out) => self.send(&out).await,
            SessionAction::Call(publish) => {
                self.invoke(publish);
                Ok(())
            }
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
            SessionAction::Disconnect(end) => Err(ConnectionEnd::Ended(end)),
        }
    }

    fn invoke(&mut self, publish: Publish) {
        self.server.metrics.messages.increment();
        let targets = self.server.routes.borrow_mut().targets(&publish.topic);
        if targets.is_empty() {
            self.server.metrics.unmatched.increment();
            self.server.invoker.count_refused(Reason::NoFunction);
        }
        let (server, remote, version) = (
            self.server.clone(),
            self.remote.clone(),
            self.session.version(),
        );
        self.calls.push(Box::pin(invoke_targets(
            server, remote, version, publish, targets,
        )));
    }

    /// Publishes a message's results, and acknowledges it.
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

    async fn send(&mut self, out: &ServerPacket) -> Result<(), ConnectionEnd> {
        self.stream.send(out).await.map_err(ConnectionEnd::from)
    }

    /// Closes the connection, with a reason if there is one. The last will is published unless the client disconnected; calls go on.
    async fn close(mut self, end: ConnectionEnd, will: Option<Publish>) {
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
        if let Some(will) = will.filter(|_| {
            !matches!(end, ConnectionEnd::Orderly) && reason != Some(DisconnectReason::Draining)
        }) {
            self.invoke(Publish {
                qos: 0,
                packet_id: None,
                ..will
            });
        }
        if reason == Some(DisconnectReason::Draining) {
            self.finish_calls(true).await;
        }
        if let Some(reason) = reason {
            let _ = self.stream.send(&ServerPacket::Disconnect(reason)).await; // the connection ends either way
        }
        let _ = self.stream.socket.shutdown().await;
        self.finish_calls(false).await;
    }

    /// Waits for the remaining calls. `notify_client`: acknowledges them to the client.
    async fn finish_calls(&mut self, mut notify_client: bool) {
        while let Some(outcome) = self.calls.next().await {
            let action = self.publish_results(outcome);
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
    fn from(mute: WriteError) -> Self {
        match mute {
            WriteError::Closed => Self::Lost,
            WriteError::TimedOut => Self::Ended(DisconnectReason::Stuck),
        }
    }
}
