//! Session that the rendezvous granted, from one side.

use std::sync::Arc;
use std::time::Instant;

use crate::punch::agent::PunchMessage;
use crate::punch::session::{PunchSession, SameIdentity};
use nearpath_types::SpiffeId;
use nearpath_wire::p2p_tls::PeerTlsConfig;
use tokio::sync::mpsc;

use super::ControlCommand;
use super::resumable_relay::{ControlChannel, SessionItem};
use super::sequence::SequenceMessage;
use crate::driver::{self, ObserverSet, PeerIntroduction};
use crate::handshake::{ClientHello, HandshakeRole};
use crate::message::{SessionGrant, SessionMessage, WorkerMessage};
use crate::migrate::StreamFrame;

/// Granted session. Dropping it tells the rendezvous that this side needs it no longer.
#[derive(Debug)]
pub struct PeerSession {
    /// Grant of the rendezvous.
    pub grant: SessionGrant,
    /// Expiry by this machine's clock.
    pub expires_at: Instant,
    /// Hello that travelled with this side's call.
    pub(super) hello: Option<Box<ClientHello>>,
    pub(super) items: mpsc::UnboundedReceiver<SessionItem>,
    pub(super) commands: mpsc::UnboundedSender<ControlCommand>,
}

impl PeerSession {
    /// Returns the session for the punching state machine.
    ///
    /// # Errors
    /// Fails when the rendezvous introduced a worker to itself.
    pub fn session(&self, own: &SpiffeId) -> Result<PunchSession, SameIdentity> {
        let (grant, _) = self.grant.punch_grant(Instant::now());
        PunchSession::new(&grant, own, &self.grant.peer, self.expires_at)
    }

    /// Sends a message to the other side.
    pub fn send_message(&self, message: PunchMessage) {
        let outgoing = WorkerMessage::SessionMessage {
            session: self.grant.session,
            message: SessionMessage::from(message),
        };
        // An ended connection shows as the agent's search timeout.
        let _ = self.commands.send(ControlCommand::Send(outgoing));
    }

    /// Awaits the next message of the other side. `None`: there will be none.
    pub async fn next_message(&mut self) -> Option<PunchMessage> {
        loop {
            if let SessionItem::Message(message) = self.items.recv().await?
                && let Ok(message) = PunchMessage::try_from(message)
            {
                return Some(message);
            }
        }
    }

    /// Returns what a driver needs.
    ///
    /// Messages are forwarded until the driver ends; then the rendezvous is told.
    ///
    /// # Errors
    /// See [`Self::session`].
    pub fn into_introduction(
        self,
        own: &SpiffeId,
        observers: ObserverSet,
        pair: Arc<PeerTlsConfig>,
    ) -> Result<PeerIntroduction, SameIdentity> {
        self.split_for_link(own, observers, pair)
            .map(|(introduction, ..)| introduction)
    }

    /// Splits the session for a link: introduction, role in TLS, and channel for the stream's first
    /// frames.
    ///
    /// The session lasts until the channel is dropped, too.
    pub(super) fn split_for_link(
        mut self,
        own: &SpiffeId,
        observers: ObserverSet,
        pair: Arc<PeerTlsConfig>,
    ) -> Result<(PeerIntroduction, HandshakeRole, ControlChannel), SameIdentity> {
        let session = self.session(own)?;
        let role = self.handshake_role();
        let (outgoing_sender, outgoing) = mpsc::unbounded_channel();
        let (incoming_sender, incoming) = mpsc::unbounded_channel();
        let (early_sender, early_items) = mpsc::unbounded_channel();
        let channel = ControlChannel {
            send: self.item_sender(),
            hello: role.hello_bytes(),
            incoming: early_items,
        };
        if let Some(hello) = self.grant.hello.take() {
            // The caller's hello is its frame 0 (contract/migration.md, "Pieces"): the reader sees no
            // difference.
            let first = SequenceMessage::Frame {
                number: 0,
                acknowledged: 0,
                frame: StreamFrame::Bytes(hello.0),
            };
            let _ = early_sender.send(first); // `early_items` is alive
        }
        // The task holds the session until the link needs it no longer.
        tokio::spawn(self.forward_messages(outgoing, incoming_sender, early_sender));
        Ok((
            PeerIntroduction {
                session,
                signaling: driver::SignalingChannel {
                    outgoing: outgoing_sender,
                    incoming,
                },
                observers,
                pair,
            },
            role,
            channel,
        ))
    }

    fn handshake_role(&mut self) -> HandshakeRole {
        match self.grant.call {
            Some(_) => HandshakeRole::Caller(self.hello.take()),
            None => HandshakeRole::Callee,
        }
    }

    /// Returns a sender that does not keep the control connection open.
    fn item_sender(&self) -> Box<dyn Fn(SequenceMessage) + Send> {
        let (session, commands) = (self.grant.session, self.commands.downgrade());
        Box::new(move |item| {
            if let Some(commands) = commands.upgrade() {
                let command = match SessionItem::from_sequence(item, session) {
                    SessionItem::Message(message) => {
                        ControlCommand::Send(WorkerMessage::SessionMessage { session, message })
                    }
                    SessionItem::Frame(frame) => ControlCommand::Relay(frame),
                };
                // Frames without an acknowledgement go over the relay.
                let _ = commands.send(command);
            }
        })
    }

    async fn forward_messages(
        mut self,
        outgoing: mpsc::UnboundedReceiver<PunchMessage>,
        incoming: mpsc::UnboundedSender<PunchMessage>,
        early_sender: mpsc::UnboundedSender<SequenceMessage>,
    ) {
        let (mut outgoing, mut early_sender) = (Some(outgoing), Some(early_sender));
        let mut receiving = true;
        while outgoing.is_some() || early_sender.is_some() {
            tokio::select! {
                message = next_outgoing(&mut outgoing), if outgoing.is_some() => match message {
                    Some(message) => self.send_message(message),
                    None => outgoing = None,
                },
                // The relay has opened or the link is gone: frames no longer come this way.
                () = until_closed(&early_sender), if early_sender.is_some() => early_sender = None,
                item = self.items.recv(), if receiving => match item.map(SequenceMessage::try_from) {
                    Some(Ok(item)) => drop(early_sender.as_ref().map(|sender| sender.send(item))),
                    // Messages of the punching state machine; without a driver they are dropped.
                    Some(Err(item)) => drop(PunchMessage::try_from(item).map(|message| incoming.send(message))),
                    None => (receiving, early_sender) = (false, None),
                },
            }
        }
    }
}

async fn next_outgoing(
    outgoing: &mut Option<mpsc::UnboundedReceiver<PunchMessage>>,
) -> Option<PunchMessage> {
    outgoing.as_mut()?.recv().await
}

async fn until_closed(early_sender: &Option<mpsc::UnboundedSender<SequenceMessage>>) {
    if let Some(early_sender) = early_sender {
        early_sender.closed().await;
    }
}

impl Drop for PeerSession {
    fn drop(&mut self) {
        let _ = self
            .commands
            .send(ControlCommand::Send(WorkerMessage::CloseSession {
                session: self.grant.session,
            })); // an ended connection needs no hang-up
    }
}
