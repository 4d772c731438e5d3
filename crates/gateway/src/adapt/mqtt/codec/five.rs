//! Packets of MQTT 5.

use std::sync::Arc;

use mqtt_proto::{Pid, QoS, TopicName, v5};

use super::super::packet::{Ack, Connect, End, Granted, In, Out, Publish, Version, Welcome};
use super::{out_qos, pid, qos_pid, text};

/// What a client says.
pub(super) fn from_v5(packet: v5::Packet) -> In {
    match packet {
        v5::Packet::Connect(connect) => In::Connect(Box::new(connect_v5(connect))),
        v5::Packet::Publish(publish) => In::Publish(publish_v5(publish)),
        v5::Packet::Puback(puback) => In::Puback(puback.pid.value()),
        v5::Packet::Subscribe(subscribe) => In::Subscribe {
            pid: subscribe.pid.value(),
            identified: subscribe.properties.subscription_id.is_some(),
            filters: subscribe.topics.iter().map(|(filter, o)| (text(filter), o.max_qos != QoS::Level0)).collect(),
        },
        v5::Packet::Unsubscribe(unsubscribe) => In::Unsubscribe {
            pid: unsubscribe.pid.value(),
            filters: unsubscribe.topics.iter().map(|filter| text(filter)).collect(),
        },
        v5::Packet::Pingreq => In::Ping,
        v5::Packet::Disconnect(disconnect) => {
            In::Disconnect { will: disconnect.reason_code != v5::DisconnectReasonCode::NormalDisconnect }
        }
        _ => In::Unexpected,
    }
}

fn publish_v5(publish: v5::Publish) -> Publish {
    let (qos, pid) = qos_pid(publish.qos_pid);
    let properties = publish.properties;
    Publish {
        topic: text(&publish.topic_name),
        payload: publish.payload,
        qos,
        pid,
        retain: publish.retain,
        content_type: properties.content_type,
        response_topic: properties.response_topic.map(|topic| text(&topic)),
        correlation: properties.correlation_data,
        alias: properties.topic_alias.is_some(),
        properties: user(properties.user_properties),
    }
}

fn user(properties: Vec<v5::UserProperty>) -> Vec<(Arc<str>, Arc<str>)> {
    properties.into_iter().map(|property| (property.name, property.value)).collect()
}

fn connect_v5(connect: v5::Connect) -> Connect {
    let will = connect.last_will.map(|will| Publish {
        topic: text(&will.topic_name),
        payload: will.payload,
        qos: will.qos as u8,
        retain: will.retain,
        content_type: will.properties.content_type,
        response_topic: will.properties.response_topic.map(|topic| text(&topic)),
        correlation: will.properties.correlation_data,
        properties: user(will.properties.user_properties),
        ..Publish::default()
    });
    Connect {
        version: Version::V5,
        id: text(&connect.client_id),
        clean: connect.clean_start,
        keep_alive: connect.keep_alive,
        user: connect.username.map(|name| text(&name)),
        password: connect.password,
        will,
        receive_max: connect.properties.receive_max.unwrap_or(u16::MAX),
        max_packet: connect.properties.max_packet_size.unwrap_or(u32::MAX),
        enhanced: connect.properties.auth_method.is_some(),
    }
}

/// What is said to a client.
pub(super) fn to_v5(out: &Out) -> Option<v5::Packet> {
    Some(match out {
        Out::Welcome(welcome) => v5::Packet::Connack(connack_v5(welcome)),
        Out::Reject(end) => v5::Packet::Connack(v5::Connack {
            session_present: false,
            reason_code: reject_v5(*end),
            properties: v5::ConnackProperties::default(),
        }),
        Out::Puback(number, ack) => v5::Packet::Puback(puback_v5(pid(*number)?, ack)),
        Out::Suback(number, granted) => v5::Packet::Suback(v5::Suback {
            pid: pid(*number)?,
            properties: v5::SubackProperties::default(),
            topics: granted.iter().map(|granted| suback_v5(*granted)).collect(),
        }),
        Out::Unsuback(number, had) => {
            use v5::UnsubscribeReasonCode as Code;
            let code = |had: &bool| if *had { Code::Success } else { Code::NoSubscriptionExisted };
            let (pid, topics) = (pid(*number)?, had.iter().map(code).collect());
            v5::Packet::Unsuback(v5::Unsuback { pid, properties: v5::UnsubackProperties::default(), topics })
        }
        Out::Publish(publish) => v5::Packet::Publish(publish_to_v5(publish)?),
        Out::Pong => v5::Packet::Pingresp,
        Out::Disconnect(end) => v5::Packet::Disconnect(v5::Disconnect {
            reason_code: disconnect_v5(*end),
            properties: v5::DisconnectProperties::default(),
        }),
    })
}

fn connack_v5(welcome: &Welcome) -> v5::Connack {
    v5::Connack {
        session_present: false,
        reason_code: v5::ConnectReasonCode::Success,
        properties: v5::ConnackProperties {
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

fn puback_v5(pid: Pid, ack: &Ack) -> v5::Puback {
    use v5::PubackReasonCode as Code;
    let (reason_code, why) = match ack {
        Ack::Done => (Code::Success, None),
        Ack::Nobody => (Code::NoMatchingSubscribers, None),
        Ack::Reserved => (Code::NotAuthorized, None),
        Ack::Refused(why) => (Code::ImplementationSpecificError, Some(why)),
        Ack::Failed(why) => (Code::UnspecifiedError, Some(why)),
    };
    let reason_string = why.map(|why| text(why));
    v5::Puback { pid, reason_code, properties: v5::PubackProperties { reason_string, user_properties: Vec::new() } }
}

fn suback_v5(granted: Granted) -> v5::SubscribeReasonCode {
    use v5::SubscribeReasonCode as Code;
    match granted {
        Granted::Qos0 => Code::GrantedQoS0,
        Granted::Qos1 => Code::GrantedQoS1,
        Granted::NotAuthorized => Code::NotAuthorized,
        Granted::Invalid => Code::TopicFilterInvalid,
        Granted::Quota => Code::QuotaExceeded,
        Granted::Shared => Code::SharedSubscriptionNotSupported,
        Granted::Identified => Code::SubscriptionIdentifiersNotSupported,
    }
}

fn publish_to_v5(publish: &Publish) -> Option<v5::Publish> {
    let property = |(name, value): &(Arc<str>, Arc<str>)| v5::UserProperty { name: name.clone(), value: value.clone() };
    Some(v5::Publish {
        dup: false,
        retain: false,
        qos_pid: out_qos(publish)?,
        topic_name: TopicName::try_from(&*publish.topic).ok()?,
        payload: publish.payload.clone(),
        properties: v5::PublishProperties {
            content_type: publish.content_type.clone(),
            correlation_data: publish.correlation.clone(),
            user_properties: publish.properties.iter().map(property).collect(),
            ..v5::PublishProperties::default()
        },
    })
}

fn reject_v5(end: End) -> v5::ConnectReasonCode {
    use v5::ConnectReasonCode as Code;
    match end {
        End::Malformed => Code::MalformedPacket,
        End::UnknownVersion => Code::UnsupportedProtocolVersion,
        End::BadClientId => Code::ClientIdentifierNotValid,
        End::BadCredentials => Code::BadUserNameOrPassword,
        End::BadAuthMethod => Code::BadAuthMethod,
        End::Busy => Code::ServerBusy,
        End::Draining => Code::ServerUnavailable,
        End::TooLarge => Code::PacketTooLarge,
        End::TopicInvalid => Code::TopicNameInvalid,
        End::Quota => Code::QuotaExceeded,
        End::RetainUnsupported => Code::RetainNotSupported,
        End::QosUnsupported => Code::QoSNotSupported,
        _ => Code::ProtocolError,
    }
}

fn disconnect_v5(end: End) -> v5::DisconnectReasonCode {
    use v5::DisconnectReasonCode as Code;
    match end {
        End::Malformed => Code::MalformedPacket,
        End::Busy => Code::ServerBusy,
        End::Draining => Code::ServerShuttingDown,
        End::KeepAlive => Code::KeepAliveTimeout,
        End::TakenOver => Code::SessionTakenOver,
        End::TooLarge => Code::PacketTooLarge,
        End::TopicInvalid => Code::TopicNameInvalid,
        End::AliasInvalid => Code::TopicAliasInvalid,
        End::Quota | End::Stuck => Code::QuotaExceeded,
        End::RetainUnsupported => Code::RetainNotSupported,
        End::QosUnsupported => Code::QoSNotSupported,
        _ => Code::ProtocolError,
    }
}
