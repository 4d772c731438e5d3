//! Sessions: grants, messages, end.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::types::{GrantedSession, StateTimer, WaitingCall, WorkerName};
use super::{ClockReading, ControlConnectionId, RendezvousAction, RendezvousState, SecretRng};
use nearpath_p2p::message::{
    CallRefusal, HexBytes, RendezvousMessage, SessionCloseReason, SessionGrant, SessionIdHex,
    SessionMessage,
};
use nearpath_p2p::ticket::RelayToken;

impl GrantedSession {
    /// Returns the index of this side.
    pub(super) fn side_of(&self, name: &WorkerName) -> Option<usize> {
        self.sides.iter().position(|side| **side == *name)
    }
}

impl<C: SecretRng> RendezvousState<C> {
    /// Grants a session.
    ///
    /// Both sides get the same grant. The call is refused if either side is at its limit.
    pub(super) fn grant_session(&mut self, call: WaitingCall, now: ClockReading) {
        // Checked here, too: a waiting call may be granted long after its arrival.
        let has_no_capacity = |name| {
            self.workers
                .get(name)
                .is_none_or(|worker| worker.sessions.len() >= self.limits.max_sessions)
        };
        if has_no_capacity(&call.caller) || has_no_capacity(&call.peer) {
            self.counts.refused += 1;
            self.send_to_worker(
                &call.caller,
                RendezvousMessage::Refused {
                    call: call.call,
                    reason: CallRefusal::TooMany,
                },
            );
            return;
        }
        self.counts.granted += 1;
        let (mut id, mut secret) = ([0; 16], [0; 32]);
        // Independent random values: the id is in clear text in every frame, the secret in none.
        self.rng.fill(&mut id);
        self.rng.fill(&mut secret);
        let ticket_end = self.earliest_ticket_end(&call);
        let expires = ticket_end.min(now.unix.saturating_add(self.limits.session_life.as_secs()));
        self.add_session(id, [call.caller.clone(), call.peer.clone()], now, expires);
        let granted = SessionGrant {
            call: None,
            peer: call.caller.id.clone(),
            about: call.about,
            session: HexBytes(id),
            secret: HexBytes(secret),
            expires,
            lifetime_ms: u64::try_from(now.time_left(expires).as_millis()).unwrap_or(u64::MAX),
            relay_token: self.mint_relay_token(id, &call.peer, &call.caller, ticket_end),
            hello: call.hello,
        };
        // The relay token of each side names it as `you`: neither can take the other's end.
        let token = self.mint_relay_token(id, &call.caller, &call.peer, ticket_end);
        let own = SessionGrant {
            call: Some(call.call),
            peer: call.peer.id.clone(),
            relay_token: token,
            hello: None,
            ..granted.clone()
        };
        self.send_to_worker(&call.caller, RendezvousMessage::Granted(own));
        self.send_to_worker(&call.peer, RendezvousMessage::Granted(granted));
    }

    /// Returns the earliest expiry of both tickets.
    ///
    /// Neither a session nor a relay token outlives a ticket. A relay token may outlive its
    /// session: with it, a relay that breaks after hours is reopened (decision 48).
    fn earliest_ticket_end(&self, call: &WaitingCall) -> u64 {
        let ends = [&call.caller, &call.peer]
            .map(|name| self.workers.get(name).and_then(|worker| worker.connection));
        ends.iter()
            .flatten()
            .map(|present| present.until_unix)
            .min()
            .unwrap_or_default()
    }

    fn add_session(
        &mut self,
        id: [u8; 16],
        sides: [Arc<WorkerName>; 2],
        now: ClockReading,
        expires: u64,
    ) {
        let until = now.at + now.time_left(expires);
        self.timers.insert((until, StateTimer::Session(id)));
        for side in &sides {
            self.workers
                .entry(side.clone())
                .or_default()
                .sessions
                .insert(id);
        }
        self.sessions.insert(
            id,
            GrantedSession {
                sides,
                expires_at: until,
                kept: VecDeque::new(),
            },
        );
    }

    fn mint_relay_token(
        &self,
        id: [u8; 16],
        who: &WorkerName,
        peer: &WorkerName,
        until: u64,
    ) -> nearpath_p2p::message::SignedToken {
        let (worker, peer, job) = (who.id.clone(), peer.id.clone(), who.job.clone());
        RelayToken {
            session: HexBytes(id),
            job,
            worker,
            peer,
            until,
        }
        .mint(&self.key)
    }

    /// Forwards a message, or keeps it for a side without a connection.
    pub(super) fn forward_message(
        &mut self,
        connection: ControlConnectionId,
        name: &WorkerName,
        session: SessionIdHex,
        message: SessionMessage,
    ) {
        let found = self
            .sessions
            .get_mut(&session.0)
            .and_then(|session_state| Some((session_state.side_of(name)?, session_state)));
        let Some((side, session_state)) = found else {
            self.actions.push(RendezvousAction::Send(
                connection,
                RendezvousMessage::SessionClosed {
                    session,
                    reason: SessionCloseReason::NoSuch,
                },
            ));
            return;
        };
        let other = session_state.sides[1 - side].clone();
        if let Some(active) = self
            .workers
            .get(&other)
            .and_then(|worker| worker.connection)
        {
            self.counts.messages += 1;
            self.actions.push(RendezvousAction::Send(
                active.id,
                RendezvousMessage::SessionMessage { session, message },
            ));
        } else if session_state.kept.len() < self.limits.max_kept_messages {
            self.counts.messages += 1;
            session_state.kept.push_back((1 - side, message));
        } else {
            // A full queue means that the peer was away too long: it will learn of the end, and
            // call again.
            self.end_session(session.0, SessionCloseReason::Absent, None);
        }
    }

    /// Relays a frame. None is kept for a side without a connection: an unacknowledged frame goes
    /// over the relay.
    pub(super) fn forward_frame(
        &mut self,
        connection: ControlConnectionId,
        name: &WorkerName,
        session: SessionIdHex,
        frame: Bytes,
    ) {
        let found = self
            .sessions
            .get(&session.0)
            .and_then(|session_state| Some(&session_state.sides[1 - session_state.side_of(name)?]));
        let Some(other) = found else {
            self.actions.push(RendezvousAction::Send(
                connection,
                RendezvousMessage::SessionClosed {
                    session,
                    reason: SessionCloseReason::NoSuch,
                },
            ));
            return;
        };
        if let Some(active) = self.connection_of(other) {
            self.counts.frames += 1;
            self.actions.push(RendezvousAction::Relay(active, frame));
        }
    }

    /// Ends a session for a side, and notifies the other side.
    pub(super) fn hang_up(&mut self, name: &WorkerName, session: SessionIdHex) {
        if self
            .sessions
            .get(&session.0)
            .is_some_and(|session_state| session_state.side_of(name).is_some())
        {
            self.end_session(session.0, SessionCloseReason::Peer, Some(name));
        }
    }

    pub(super) fn expire_session(&mut self, id: [u8; 16]) {
        self.end_session(id, SessionCloseReason::Expired, None);
    }

    /// Ends a session, and notifies its sides of the reason, except the informed one.
    fn end_session(
        &mut self,
        id: [u8; 16],
        reason: SessionCloseReason,
        informed: Option<&WorkerName>,
    ) {
        let Some(session_state) = self.sessions.remove(&id) else {
            return;
        };
        self.timers
            .remove(&(session_state.expires_at, StateTimer::Session(id)));
        for side in session_state.sides {
            if let Some(worker) = self.workers.get_mut(&side) {
                worker.sessions.remove(&id);
            }
            if informed != Some(&*side) {
                self.send_to_worker(
                    &side,
                    RendezvousMessage::SessionClosed {
                        session: HexBytes(id),
                        reason,
                    },
                );
            }
            self.remove_if_unused(&side);
        }
    }
}
