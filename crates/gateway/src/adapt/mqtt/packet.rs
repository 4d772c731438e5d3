//! What clients and the gateway say to each other, the same for both versions of MQTT. [`super::codec`] turns it into bytes.

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
    /// As completion records name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V311 => "MQTT/3.1.1",
            Self::V5 => "MQTT/5",
        }
    }
}

/// From a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum In {
    Connect(Box<Connect>),
    Publish(Publish),
    Puback(u16),
    /// Filters, each with whether it wants QoS 1. `identified`: with a subscription identifier, which is not offered.
    Subscribe {
        pid: u16,
        filters: Vec<(Arc<str>, bool)>,
        identified: bool,
    },
    Unsubscribe {
        pid: u16,
        filters: Vec<Arc<str>>,
    },
    Ping,
    /// `will`: the last will is to be published although the end is orderly.
    Disconnect {
        will: bool,
    },
    /// What no client may send here: a server's packet, QoS 2's handshake, or `AUTH`.
    Unexpected,
}

/// The first packet of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Connect {
    pub version: Version,
    pub id: Arc<str>,
    pub clean: bool,
    /// Seconds; 0: none.
    pub keep_alive: u16,
    pub user: Option<Arc<str>>,
    pub password: Option<Bytes>,
    pub will: Option<Publish>,
    /// QoS 1 messages that the client takes before it has acknowledged one.
    pub receive_max: u16,
    /// Largest packet that the client takes.
    pub max_packet: u32,
    /// Enhanced authentication is asked for.
    pub enhanced: bool,
}

/// A message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Publish {
    pub topic: Arc<str>,
    pub payload: Bytes,
    pub qos: u8,
    /// Its packet identifier, with QoS 1 and 2.
    pub pid: Option<u16>,
    pub retain: bool,
    pub content_type: Option<Arc<str>>,
    pub response_topic: Option<Arc<str>>,
    pub correlation: Option<Bytes>,
    /// A topic alias, which is not offered.
    pub alias: bool,
    /// User properties that are passed on as headers, or that tell a subscriber of a result's status.
    pub properties: Vec<(Arc<str>, Arc<str>)>,
}

/// How a message was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ack {
    /// A function answered.
    Done,
    /// Nobody is called by this topic.
    Nobody,
    /// The topic belongs to the platform, or is too long.
    Reserved,
    /// The function refused it; once more would be no better.
    Refused(String),
    /// The function or the platform failed; once more may be better.
    Failed(String),
}

impl Ack {
    /// Whether a client of MQTT 3.1.1 is told so. That version has no negative acknowledgement: what may be better next time
    /// stays unacknowledged, and the client sends it again.
    pub(crate) fn is_told(&self, version: Version) -> bool {
        version == Version::V5 || !matches!(self, Self::Failed(_))
    }
}

/// How a subscription was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Granted {
    Qos0,
    Qos1,
    /// No such function, or a topic that is not for clients.
    NotAuthorized,
    /// Not a filter, or too long.
    Invalid,
    /// The client has as many as it may.
    Quota,
    /// `$share/…` is not offered.
    Shared,
    /// Subscription identifiers are not offered.
    Identified,
}

/// Why a connection ends, or does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Malformed,
    Protocol,
    /// Neither 3.1.1 nor 5.
    UnknownVersion,
    BadClientId,
    BadCredentials,
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
    /// The client takes nothing.
    Stuck,
}

impl End {
    /// For metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Protocol => "protocol_error",
            Self::UnknownVersion => "unknown_version",
            Self::BadClientId => "bad_client_id",
            Self::BadCredentials => "bad_credentials",
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

/// To a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Out {
    Welcome(Welcome),
    /// The connection does not begin.
    Reject(End),
    Puback(u16, Ack),
    Suback(u16, Vec<Granted>),
    /// For each filter whether there was a subscription.
    Unsuback(u16, Vec<bool>),
    Publish(Publish),
    Pong,
    Disconnect(End),
}

/// What a client may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// Set when the client brought none.
    pub assigned_id: Option<Arc<str>>,
    /// Seconds, when it is not what the client asked for.
    pub keep_alive: Option<u16>,
    pub receive_max: u16,
    pub max_packet: u32,
}
