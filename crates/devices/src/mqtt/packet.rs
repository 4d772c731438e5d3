//! Packets, the same for both versions of MQTT; [`super::codec`] turns them into bytes.

use std::sync::Arc;

use bytes::Bytes;

/// A version of MQTT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// MQTT 3.1.1.
    V311,
    /// MQTT 5.
    V5,
}

impl Version {
    /// The version's name in completion records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V311 => "MQTT/3.1.1",
            Self::V5 => "MQTT/5",
        }
    }
}

/// A packet from a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientPacket {
    Connect(Box<Connect>),
    Publish(Publish),
    Puback(u16),
    /// Filters, each with whether it asks for QoS 1. `has_identifier`: has a subscription
    /// identifier, which is not supported.
    Subscribe {
        packet_id: u16,
        filters: Vec<(Arc<str>, bool)>,
        has_identifier: bool,
    },
    Unsubscribe {
        packet_id: u16,
        filters: Vec<Arc<str>>,
    },
    Ping,
    /// `will`: publish the last will although the client disconnects in order.
    Disconnect {
        will: bool,
    },
    /// A packet that no client may send here: a server's, QoS 2's handshake, or `AUTH`.
    Unexpected,
}

/// The first packet of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Connect {
    pub version: Version,
    pub client_id: Arc<str>,
    pub clean_session: bool,
    /// Seconds; 0: none.
    pub keep_alive: u16,
    pub user: Option<Arc<str>>,
    pub password: Option<Bytes>,
    pub will: Option<Publish>,
    /// QoS 1 messages that the client accepts before it has acknowledged one.
    pub receive_max: u16,
    /// Largest packet that the client accepts.
    pub max_packet: u32,
    /// Asks for enhanced authentication, which is not supported.
    pub enhanced_auth: bool,
}

/// A message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Publish {
    pub topic: Arc<str>,
    pub payload: Bytes,
    pub qos: u8,
    /// Its packet identifier, with QoS 1 and 2.
    pub packet_id: Option<u16>,
    pub retain: bool,
    pub content_type: Option<Arc<str>>,
    pub response_topic: Option<Arc<str>>,
    pub correlation_data: Option<Bytes>,
    /// Uses a topic alias, which is not supported.
    pub has_topic_alias: bool,
    /// User properties: headers of the call, or a result's status.
    pub properties: Vec<(Arc<str>, Arc<str>)>,
}

/// The outcome of a message's calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PublishOutcome {
    /// A function answered.
    Done,
    /// No function matches the topic.
    NoMatch,
    /// Only the platform may publish to this topic.
    Reserved,
    /// The function refused it; sending it again would not help.
    Refused(String),
    /// The function or the platform failed; sending it again may help.
    Failed(String),
}

impl PublishOutcome {
    /// Returns whether this version can acknowledge the outcome.
    ///
    /// MQTT 3.1.1 has no negative acknowledgement. A failed message stays unacknowledged there, so
    /// that the client sends it again.
    pub(crate) fn is_acknowledged(&self, version: Version) -> bool {
        version == Version::V5 || !matches!(self, Self::Failed(_))
    }
}

/// The response to a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubscribeResult {
    Qos0,
    Qos1,
    /// No such function, or a topic that is not for clients.
    NotAuthorized,
    /// Not a filter, or too long.
    Invalid,
    /// The client has as many subscriptions as it may.
    Quota,
    /// `$share/…` is not supported.
    Shared,
    /// Subscription identifiers are not supported.
    Identified,
}

/// The reason for which a connection ends or is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    Malformed,
    Protocol,
    /// Neither 3.1.1 nor 5.
    UnknownVersion,
    BadClientId,
    BadCredentials,
    /// Too many wrong passwords came from the client's address.
    LoginLocked,
    BadAuthMethod,
    Busy,
    Draining,
    KeepAlive,
    TakenOver,
    TooLarge,
    TopicInvalid,
    AliasInvalid,
    Quota,
    RetainUnsupported,
    QosUnsupported,
    /// The client reads nothing.
    Stuck,
}

impl DisconnectReason {
    /// The reason's name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Protocol => "protocol_error",
            Self::UnknownVersion => "unknown_version",
            Self::BadClientId => "bad_client_id",
            Self::BadCredentials => "bad_credentials",
            Self::LoginLocked => "login_locked",
            Self::BadAuthMethod => "bad_auth_method",
            Self::Busy => "too_many_clients",
            Self::Draining => "draining",
            Self::KeepAlive => "keep_alive",
            Self::TakenOver => "taken_over",
            Self::TooLarge => "packet_too_large",
            Self::TopicInvalid => "topic_invalid",
            Self::AliasInvalid => "alias_invalid",
            Self::Quota => "quota",
            Self::RetainUnsupported => "retain_unsupported",
            Self::QosUnsupported => "qos_unsupported",
            Self::Stuck => "stuck",
        }
    }
}

/// A packet to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerPacket {
    Connack(ConnackParams),
    /// Refuses the connection.
    Reject(DisconnectReason),
    Puback(u16, PublishOutcome),
    Suback(u16, Vec<SubscribeResult>),
    /// Per filter, whether a subscription existed.
    Unsuback(u16, Vec<bool>),
    Publish(Publish),
    Pong,
    Disconnect(DisconnectReason),
}

/// Parameters of an accepted connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnackParams {
    /// Set if the client sent no identifier.
    pub assigned_id: Option<Arc<str>>,
    /// Seconds, if not what the client asked for.
    pub keep_alive: Option<u16>,
    pub receive_max: u16,
    pub max_packet: u32,
}
