//! Packets of MQTT 5.

use std::sync::Arc;

use mqtt_proto::{Pid, QoS, TopicName, v5};

use super::super::packet::{
    ClientPacket, ConnackParams, Connect, DisconnectReason, Publish, PublishOutcome, ServerPacket,
    SubscribeResult, Version,
};
use super::{packet_id, qos_to_send, shared_str, split_qos};

/// Converts a client's packet.
pub(super) fn from_v5(packet: v5::Packet) -> ClientPacket {
    match packet {
        v5::Packet::Connect(connect) => ClientPacket::Connect(Box::new(connect_v5(connect))),
        v5::Packet::Publish(publish) => ClientPacket::Publish(publish_v5(publish)),
        v5::Packet::Puback(puback) => ClientPacket::Puback(puback.pid.value()),
        v5::Packet::Subscribe(subscribe) => ClientPacket::Subscribe {
            packet_id: subscribe.pid.value(),
            has_identifier: subscribe.properties.subscription_id.is_some(),
            filters: subscribe
                .topics
                .iter()
                .map(|(filter, o)| (shared_str(filter), o.max_qos != QoS::Level0))
                .collect(),
        },
        v5::Packet::Unsubscribe(unsubscribe) => ClientPacket::Unsubscribe {
            packet_id: unsubscribe.pid.value(),
            filters: unsubscribe
                .topics
                .iter()
                .map(|filter| shared_str(filter))
                .collect(),
        },
        v5::Packet::Pingreq => ClientPacket::Ping,
        // Any reason but 0 publishes the will (section 3.14.4).
        v5::Packet::Disconnect(disconnect) => ClientPacket::Disconnect {
            will: disconnect.reason_code != v5::DisconnectReasonCode::NormalDisconnect,
        },
        _ => ClientPacket::Unexpected,
    }
}

fn publish_v5(publish: v5::Publish) -> Publish {
    let (qos, packet_id) = split_qos(publish.qos_pid);
    let properties = publish.properties;
    Publish {
        topic: shared_str(&publish.topic_name),
        payload: publish.payload,
        qos,
        packet_id,
        retain: publish.retain,
        content_type: properties.content_type,
        response_topic: properties.response_topic.map(|topic| shared_str(&topic)),
        correlation_data: properties.correlation_data,
        has_topic_alias: properties.topic_alias.is_some(),
        properties: user_pairs(properties.user_properties),
    }
}

fn user_pairs(properties: Vec<v5::UserProperty>) -> Vec<(Arc<str>, Arc<str>)> {
    properties
        .into_iter()
        .map(|property| (property.name, property.value))
        .collect()
}

fn connect_v5(connect: v5::Connect) -> Connect {
    let will = connect.last_will.map(|will| Publish {
        topic: shared_str(&will.topic_name),
        payload: will.payload,
        qos: will.qos as u8,
        retain: will.retain,
        content_type: will.properties.content_type,
        response_topic: will
            .properties
            .response_topic
            .map(|topic| shared_str(&topic)),
        correlation_data: will.properties.correlation_data,
        properties: user_pairs(will.properties.user_properties),
        ..Publish::default()
    });
    Connect {
        version: Version::V5,
        client_id: shared_str(&connect.client_id),
        clean_session: connect.clean_start,
        keep_alive: connect.keep_alive,
        user: connect.username.map(|name| shared_str(&name)),
        password: connect.password,
        will,
        receive_max: connect.properties.receive_max.unwrap_or(u16::MAX),
        max_packet: connect.properties.max_packet_size.unwrap_or(u32::MAX),
        enhanced_auth: connect.properties.auth_method.is_some(),
    }
}

/// Converts a packet to a client.
pub(super) fn to_v5(out: &ServerPacket) -> Option<v5::Packet> {
    Some(match out {
        ServerPacket::Connack(welcome) => v5::Packet::Connack(connack_v5(welcome)),
        ServerPacket::Reject(end) => v5::Packet::Connack(v5::Connack {
            session_present: false,
            reason_code: reject_v5(*end),
            properties: v5::ConnackProperties::default(),
        }),
        ServerPacket::Puback(number, ack) => {
            v5::Packet::Puback(puback_v5(packet_id(*number)?, ack))
        }
        ServerPacket::Suback(number, granted) => v5::Packet::Suback(v5::Suback {
            pid: packet_id(*number)?,
            properties: v5::SubackProperties::default(),
            topics: granted.iter().map(|granted| suback_v5(*granted)).collect(),
        }),
        ServerPacket::Unsuback(number, had) => {
            use v5::UnsubscribeReasonCode as Code;
            let code = |had: &bool| {
                if *had {
                    Code::Success
                } else {
                    Code::NoSubscriptionExisted
                }
            };
            let (pid, topics) = (packet_id(*number)?, had.iter().map(code).collect());
            v5::Packet::Unsuback(v5::Unsuback {
                pid,
                properties: v5::UnsubackProperties::default(),
                topics,
            })
        }
        ServerPacket::Publish(publish) => v5::Packet::Publish(publish_to_v5(publish)?),
        ServerPacket::Pong => v5::Packet::Pingresp,
        ServerPacket::Disconnect(end) => v5::Packet::Disconnect(v5::Disconnect {
            reason_code: disconnect_v5(*end),
            properties: v5::DisconnectProperties::default(),
        }),
    })
}

fn connack_v5(welcome: &ConnackParams) -> v5::Connack {
    v5::Connack {
        session_present: false,
        reason_code: v5::ConnectReasonCode::Success,
        properties: v5::ConnackProperties {
            // The session ends with its connection, whatever the client asked for.
            session_expiry_interval: Some(0),
            receive_max: Some(welcome.receive_max),
            max_qos: Some(QoS::Level1),
            retain_available: Some(false),
            max_packet_size: Some(welcome.max_packet),
            assigned_client_id: welcome.assigned_id.clone(),
            topic_alias_max: Some(0),
            subscription_id_available: Some(false),
            shared_subscription_available: Some(false),
            server_keep_alive: welcome.keep_alive,
            ..v5::ConnackProperties::default()
        },
    }
}

fn puback_v5(pid: Pid, ack: &PublishOutcome) -> v5::Puback {
    use v5::PubackReasonCode as Code;
    let (reason_code, why) = match ack {
        PublishOutcome::Done => (Code::Success, None),
        PublishOutcome::NoMatch => (Code::NoMatchingSubscribers, None),
        PublishOutcome::Reserved => (Code::NotAuthorized, None),
        PublishOutcome::Refused(why) => (Code::ImplementationSpecificError, Some(why)),
        PublishOutcome::Failed(why) => (Code::UnspecifiedError, Some(why)),
    };
    let reason_string = why.map(|why| shared_str(why));
    v5::Puback {
        pid,
        reason_code,
        properties: v5::PubackProperties {
            reason_string,
            user_properties: Vec::new(),
        },
    }
}

fn suback_v5(granted: SubscribeResult) -> v5::SubscribeReasonCode {
    use v5::SubscribeReasonCode as Code;
    match granted {
        SubscribeResult::Qos0 => Code::GrantedQoS0,
        SubscribeResult::Qos1 => Code::GrantedQoS1,
        SubscribeResult::NotAuthorized => Code::NotAuthorized,
        SubscribeResult::Invalid => Code::TopicFilterInvalid,
        SubscribeResult::Quota => Code::QuotaExceeded,
        SubscribeResult::Shared => Code::SharedSubscriptionNotSupported,
        SubscribeResult::Identified => Code::SubscriptionIdentifiersNotSupported,
    }
}

fn publish_to_v5(publish: &Publish) -> Option<v5::Publish> {
    let property = |(name, value): &(Arc<str>, Arc<str>)| v5::UserProperty {
        name: name.clone(),
        value: value.clone(),
    };
    Some(v5::Publish {
        dup: false,
        retain: false,
        qos_pid: qos_to_send(publish)?,
        topic_name: TopicName::try_from(&*publish.topic).ok()?,
        payload: publish.payload.clone(),
        properties: v5::PublishProperties {
            content_type: publish.content_type.clone(),
            correlation_data: publish.correlation_data.clone(),
            user_properties: publish.properties.iter().map(property).collect(),
            ..v5::PublishProperties::default()
        },
    })
}

fn reject_v5(end: DisconnectReason) -> v5::ConnectReasonCode {
    use v5::ConnectReasonCode as Code;
    match end {
        DisconnectReason::Malformed => Code::MalformedPacket,
        DisconnectReason::UnknownVersion => Code::UnsupportedProtocolVersion,
        DisconnectReason::BadClientId => Code::ClientIdentifierNotValid,
        DisconnectReason::BadCredentials => Code::BadUserNameOrPassword,
        // Not `Banned`: a later try can succeed.
        DisconnectReason::LoginLocked => Code::ConnectionRateExceeded,
        DisconnectReason::BadAuthMethod => Code::BadAuthMethod,
        DisconnectReason::Busy => Code::ServerBusy,
        DisconnectReason::Draining => Code::ServerUnavailable,
        DisconnectReason::TooLarge => Code::PacketTooLarge,
        DisconnectReason::TopicInvalid => Code::TopicNameInvalid,
        DisconnectReason::Quota => Code::QuotaExceeded,
        DisconnectReason::RetainUnsupported => Code::RetainNotSupported,
        DisconnectReason::QosUnsupported => Code::QoSNotSupported,
        _ => Code::ProtocolError,
    }
}

fn disconnect_v5(end: DisconnectReason) -> v5::DisconnectReasonCode {
    use v5::DisconnectReasonCode as Code;
    match end {
        DisconnectReason::Malformed => Code::MalformedPacket,
        DisconnectReason::Busy => Code::ServerBusy,
        DisconnectReason::Draining => Code::ServerShuttingDown,
        DisconnectReason::KeepAlive => Code::KeepAliveTimeout,
        DisconnectReason::TakenOver => Code::SessionTakenOver,
        DisconnectReason::TooLarge => Code::PacketTooLarge,
        DisconnectReason::TopicInvalid => Code::TopicNameInvalid,
        DisconnectReason::AliasInvalid => Code::TopicAliasInvalid,
        DisconnectReason::Quota | DisconnectReason::Stuck => Code::QuotaExceeded,
        DisconnectReason::RetainUnsupported => Code::RetainNotSupported,
        DisconnectReason::QosUnsupported => Code::QoSNotSupported,
        _ => Code::ProtocolError,
    }
}
