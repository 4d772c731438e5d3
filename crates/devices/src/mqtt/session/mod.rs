//! The state machine of one client's session: no socket and no clock.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use nearpath_types::topic;

use super::packet::{
    ClientPacket, ConnackParams, Connect, DisconnectReason, Publish, PublishOutcome, ServerPacket,
    SubscribeResult, Version,
};
use crate::limits::MqttLimits;
use crate::topic_routes::{TopicKind, parse_topic};

/// Longest topic or filter. The wire would allow 65535 bytes.
const MAX_TOPIC_BYTES: usize = 1024;
/// Most levels of a topic or filter: matching recurses once per level.
const MAX_TOPIC_LEVELS: usize = 32;
/// Longest client identifier. The standard demands at least 23 bytes (MQTT 3.1.1 section 3.1.3.1).
const MAX_CLIENT_ID_BYTES: usize = 256;

/// The action that a packet or a finished call asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionAction {
    Nothing,
    Send(ServerPacket),
    /// Call functions; then [`Session::finish_call`].
    Call(Publish),
    /// Add the granted filters, then acknowledge.
    Subscribe(u16, Vec<(Arc<str>, SubscribeResult)>),
    Unsubscribe(u16, Vec<Arc<str>>),
    /// The client disconnects. `will`: publish its last will.
    Close {
        will: bool,
    },
    Disconnect(DisconnectReason),
}

/// The session of an accepted client.
#[derive(Debug)]
pub(crate) struct Session {
    version: Version,
    limits: MqttLimits,
    keep_alive: Duration,
    /// Identifiers of QoS 1 messages whose functions have not answered.
    pending_packet_ids: HashSet<u16>,
    /// Failed messages of MQTT 3.1.1, which stay unacknowledged.
    unacknowledged: usize,
    filters: HashSet<Arc<str>>,
    /// Identifiers of QoS 1 messages to the client that it has not acknowledged.
    unacked_packet_ids: HashSet<u16>,
    window: usize,
    max_packet: usize,
    last_packet_id: u16,
}

impl Session {
    /// Checks a client's first packet. `password_ok`: its password is right, or none is needed.
    ///
    /// # Errors
    /// The reason for refusing the client.
    pub(crate) fn accept_connect(
        connect: &Connect,
        limits: &MqttLimits,
        password_ok: bool,
        generated_id: &str,
    ) -> Result<(Self, ConnackParams), DisconnectReason> {
        if connect.enhanced_auth {
            return Err(DisconnectReason::BadAuthMethod);
        }
        if !password_ok {
            return Err(DisconnectReason::BadCredentials);
        }
        // 3.1.1: a client that wants its session kept must have a name (section 3.1.3.1).
        if connect.client_id.len() > MAX_CLIENT_ID_BYTES
            || connect.client_id.is_empty()
                && !connect.clean_session
                && connect.version == Version::V311
        {
            return Err(DisconnectReason::BadClientId);
        }
        check_will(connect)?;
        // At least 1: 0 would tell the client that there is no keep-alive.
        let max_seconds = u16::try_from(limits.max_keep_alive.as_secs())
            .unwrap_or(u16::MAX)
            .max(1);
        let requested = connect.keep_alive;
        // 0 switches keep-alive off (section 3.1.2.10): dead clients would then stay for ever.
        let seconds = if requested == 0 {
            max_seconds
        } else {
            requested.min(max_seconds)
        };
        let session = Self {
            version: connect.version,
            limits: limits.clone(),
            keep_alive: Duration::from_millis(u64::from(seconds) * 1_500),
            pending_packet_ids: HashSet::new(),
            unacknowledged: 0,
            filters: HashSet::new(),
            unacked_packet_ids: HashSet::new(),
            // A receive maximum of 0 is a protocol error (MQTT 5.0 section 3.1.2.11.3); 1 is
            // harmless.
            window: usize::from(connect.receive_max.max(1)).min(limits.max_in_flight),
            max_packet: connect.max_packet as usize,
            last_packet_id: 0,
        };
        let params = ConnackParams {
            assigned_id: connect.client_id.is_empty().then(|| generated_id.into()),
            // Sent only if it differs: then the client must use this value (section 3.2.2.3.14).
            keep_alive: (seconds != requested).then_some(seconds),
            receive_max: u16::try_from(limits.max_in_flight)
                .unwrap_or(u16::MAX)
                .max(1),
            max_packet: u32::try_from(limits.max_packet_bytes).unwrap_or(u32::MAX),
        };
        Ok((session, params))
    }

    /// The client's protocol version.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Silence after which the client counts as dead: one and a half times its keep-alive (MQTT 5.0
    /// section 3.1.2.10).
    pub(crate) fn keep_alive_timeout(&self) -> Duration {
        self.keep_alive
    }

    /// Handles a packet.
    pub(crate) fn handle_packet(
        &mut self,
        packet: ClientPacket,
        has_function: impl Fn(&str) -> bool,
    ) -> SessionAction {
        match packet {
            ClientPacket::Publish(publish) => self.publish(publish),
            ClientPacket::Puback(packet_id) => {
                self.unacked_packet_ids.remove(&packet_id); // an unknown identifier does no harm
                SessionAction::Nothing
            }
            ClientPacket::Subscribe {
                packet_id,
                filters,
                has_identifier,
            } => {
                let results = filters.into_iter().map(|(filter, qos1)| {
                    let granted = if has_identifier {
                        SubscribeResult::Identified
                    } else {
                        self.grant(&filter, qos1, &has_function)
                    };
                    (filter, granted)
                });
                SessionAction::Subscribe(packet_id, results.collect())
            }
            ClientPacket::Unsubscribe { packet_id, filters } => {
                SessionAction::Unsubscribe(packet_id, filters)
            }
            ClientPacket::Ping => SessionAction::Send(ServerPacket::Pong),
            ClientPacket::Disconnect { will } => SessionAction::Close { will },
            ClientPacket::Connect(_) | ClientPacket::Unexpected => {
                SessionAction::Disconnect(DisconnectReason::Protocol)
            }
        }
    }

    fn publish(&mut self, publish: Publish) -> SessionAction {
        if publish.qos > 1 {
            return SessionAction::Disconnect(DisconnectReason::QosUnsupported);
        }
        if publish.has_topic_alias {
            return SessionAction::Disconnect(DisconnectReason::AliasInvalid);
        }
        // CONNACK of MQTT 5 announced that retain is unavailable; 3.1.1 cannot, so it is ignored
        // there.
        if publish.retain && self.version == Version::V5 {
            return SessionAction::Disconnect(DisconnectReason::RetainUnsupported);
        }
        if publish
            .response_topic
            .as_deref()
            .is_some_and(|topic| !topic::is_topic(topic))
            || !is_within_limits(&publish.topic)
        {
            return SessionAction::Disconnect(DisconnectReason::TopicInvalid);
        }
        // Acknowledged, not disconnected: 3.1.1 would otherwise send the message again for ever.
        if matches!(parse_topic(&publish.topic), TopicKind::Result(_))
            || publish.topic.starts_with('$')
        {
            return publish
                .packet_id
                .map_or(SessionAction::Nothing, |packet_id| {
                    self.acknowledge(packet_id, PublishOutcome::Reserved)
                });
        }
        match publish.packet_id {
            // A repetition: its function runs already.
            Some(packet_id) if !self.pending_packet_ids.insert(packet_id) => SessionAction::Nothing,
            _ => SessionAction::Call(publish),
        }
    }

    /// Handles the end of a message's calls.
    pub(crate) fn finish_call(
        &mut self,
        packet_id: Option<u16>,
        ack: PublishOutcome,
    ) -> SessionAction {
        let Some(packet_id) = packet_id else {
            return SessionAction::Nothing;
        };
        // Even if it stays unacknowledged: its repetition must run the function again.
        self.pending_packet_ids.remove(&packet_id);
        self.acknowledge(packet_id, ack)
    }

    fn acknowledge(&mut self, packet_id: u16, ack: PublishOutcome) -> SessionAction {
        if ack.is_acknowledged(self.version) {
            return SessionAction::Send(ServerPacket::Puback(packet_id, ack));
        }
        self.unacknowledged += 1;
        // Its window is full of messages that it repeats only on a new connection.
        if self.unacknowledged >= self.limits.max_in_flight {
            SessionAction::Disconnect(DisconnectReason::Quota)
        } else {
            SessionAction::Nothing
        }
    }

    fn grant(
        &mut self,
        filter: &Arc<str>,
        qos1: bool,
        has_function: impl Fn(&str) -> bool,
    ) -> SubscribeResult {
        // Before the general check, which would call it an invalid filter.
        if filter.starts_with("$share/") {
            return SubscribeResult::Shared;
        }
        if topic::check_filter(filter).is_err() || !is_within_limits(filter) {
            return SubscribeResult::Invalid;
        }
        let allowed = match parse_topic(filter) {
            TopicKind::Result(name) | TopicKind::Function(name, _) => {
                matches!(name, "+" | "#") || has_function(name)
            }
            TopicKind::Other => !filter.starts_with('$'),
        };
        if !allowed {
            return SubscribeResult::NotAuthorized;
        }
        // A repeated subscription replaces the old one (section 3.8.4) and needs no quota.
        if !self.filters.contains(filter) {
            if self.filters.len() >= self.limits.max_subscriptions {
                return SubscribeResult::Quota;
            }
            self.filters.insert(filter.clone());
        }
        if qos1 {
            SubscribeResult::Qos1
        } else {
            SubscribeResult::Qos0
        }
    }

    /// Removes a subscription and returns whether it existed.
    pub(crate) fn remove_filter(&mut self, filter: &str) -> bool {
        self.filters.remove(filter)
    }

    /// The client's subscriptions.
    pub(crate) fn filters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.filters.iter()
    }

    /// Returns whether the client's window has room for another QoS 1 message.
    pub(crate) fn has_window(&self) -> bool {
        self.unacked_packet_ids.len() < self.window
    }

    /// Allocates a packet identifier for a QoS 1 message.
    pub(crate) fn next_packet_id(&mut self) -> u16 {
        loop {
            // 0 is no packet identifier (MQTT 5.0 section 2.2.1). `has_window` bounds the loop.
            self.last_packet_id = self.last_packet_id.checked_add(1).unwrap_or(1);
            if self.unacked_packet_ids.insert(self.last_packet_id) {
                return self.last_packet_id;
            }
        }
    }

    /// Largest packet that the client accepts.
    pub(crate) fn max_packet(&self) -> usize {
        self.max_packet
    }
}

fn is_within_limits(topic: &str) -> bool {
    !topic.is_empty()
        && topic.len() <= MAX_TOPIC_BYTES
        && topic.split('/').count() <= MAX_TOPIC_LEVELS
}

fn check_will(connect: &Connect) -> Result<(), DisconnectReason> {
    let Some(will) = &connect.will else {
        return Ok(());
    };
    // MQTT 3.1.1 cannot announce these limits; its wills are published with QoS 0, unretained.
    if connect.version == Version::V5 && will.qos > 1 {
        return Err(DisconnectReason::QosUnsupported);
    }
    if connect.version == Version::V5 && will.retain {
        return Err(DisconnectReason::RetainUnsupported);
    }
    let reserved =
        matches!(parse_topic(&will.topic), TopicKind::Result(_)) || will.topic.starts_with('$');
    if reserved || !is_within_limits(&will.topic) || !topic::is_topic(&will.topic) {
        Err(DisconnectReason::TopicInvalid)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
