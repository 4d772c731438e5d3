//! Bytes to packets and back, by `mqtt-proto`. What comes is cut into packets here, by the length that each one announces,
//! so that none larger than the limit is ever waited for, let alone kept.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use mqtt_proto::{Error, Pid, Protocol, QoS, QosPid, TopicName, decode_raw_header_async, v3, v5};

use super::packet::{Ack, Connect, End, Granted, In, Out, Publish, Version, Welcome};

/// Takes the next packet out of what has come. `None`: it is not there yet.
///
/// # Errors
/// `TooLarge` as soon as a packet announces more than `limit` bytes, else what is wrong with it.
pub(crate) fn next(from: &mut BytesMut, version: Option<Version>, limit: usize) -> Result<Option<In>, End> {
    let header = decode_raw_header_async(&mut &from[..]).now_or_never(); // a slice never keeps anybody waiting
    let total = match header {
        Some(Ok((_, remaining, length))) => 1 + length + remaining as usize,
        Some(Err(error)) if error.is_eof() => return Ok(None),
        Some(Err(_)) | None => return Err(End::Malformed),
    };
    if total > limit {
        return Err(End::TooLarge);
    }
    if from.len() < total {
        return Ok(None);
    }
    let packet = decode(&from[..total], version)?;
    from.advance(total);
    Ok(Some(packet))
}

fn decode(bytes: &[u8], version: Option<Version>) -> Result<In, End> {
    match version {
        Some(Version::V311) => read_v3(bytes),
        Some(Version::V5) => read_v5(bytes),
        None => match v5::Packet::decode(bytes) {
            Ok(Some(packet)) => Ok(from_v5(packet)),
            Ok(None) => Err(End::Malformed),
            Err(v5::ErrorV5::Common(Error::UnexpectedProtocol(Protocol::V311))) => read_v3(bytes),
            Err(v5::ErrorV5::Common(Error::UnexpectedProtocol(_) | Error::InvalidProtocol(..))) => {
                Err(End::UnknownVersion)
            }
            Err(_) => Err(End::Malformed),
        },
    }
}

fn read_v3(bytes: &[u8]) -> Result<In, End> {
    // A whole packet that ends too early is no packet.
    v3::Packet::decode(bytes).ok().flatten().map(from_v3).ok_or(End::Malformed)
}

fn read_v5(bytes: &[u8]) -> Result<In, End> {
    v5::Packet::decode(bytes).ok().flatten().map(from_v5).ok_or(End::Malformed)
}

fn text(name: &str) -> Arc<str> {
    name.into()
}

fn qos_pid(qos_pid: QosPid) -> (u8, Option<u16>) {
    (qos_pid.qos() as u8, qos_pid.pid().map(Pid::value))
}

fn from_v3(packet: v3::Packet) -> In {
    match packet {
        v3::Packet::Connect(connect) => In::Connect(Box::new(connect_v3(connect))),
        v3::Packet::Publish(publish) => {
            let (qos, pid) = qos_pid(publish.qos_pid);
            let (topic, payload, retain) = (text(&publish.topic_name), publish.payload, publish.retain);
            In::Publish(Publish { topic, payload, qos, pid, retain, ..Publish::default() })
        }
        v3::Packet::Puback(pid) => In::Puback(pid.value()),
        v3::Packet::Subscribe(subscribe) => In::Subscribe {
            pid: subscribe.pid.value(),
            filters: subscribe.topics.iter().map(|(filter, qos)| (text(filter), *qos != QoS::Level0)).collect(),
            identified: false,
        },
        v3::Packet::Unsubscribe(unsubscribe) => In::Unsubscribe {
            pid: unsubscribe.pid.value(),
            filters: unsubscribe.topics.iter().map(|filter| text(filter)).collect(),
        },
        v3::Packet::Pingreq => In::Ping,
        v3::Packet::Disconnect => In::Disconnect { will: false },
        _ => In::Unexpected,
    }
}

fn connect_v3(connect: v3::Connect) -> Connect {
    let will = connect.last_will.map(|will| Publish {
        topic: text(&will.topic_name),
        payload: will.message,
        qos: will.qos as u8,
        retain: will.retain,
        ..Publish::default()
    });
    Connect {
        version: Version::V311,
        id: text(&connect.client_id),
        clean: connect.clean_session,
        keep_alive: connect.keep_alive,
        user: connect.username.map(|name| text(&name)),
        password: connect.password,
        will,
        receive_max: u16::MAX,
        max_packet: u32::MAX,
        enhanced: false,
    }
}

fn from_v5(packet: v5::Packet) -> In {
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

/// Writes a packet. `None`: this version has no word for it.
pub(crate) fn encode(out: &Out, version: Version) -> Option<Bytes> {
    let bytes = match version {
        Version::V311 => to_v3(out)?.encode(),
        Version::V5 => to_v5(out)?.encode(),
    };
    let mut bytes = bytes.ok()?.as_ref().to_vec();
    if let (Out::Suback(_, granted), Version::V311) = (out, version) {
        refuse_v3(&mut bytes, granted);
    }
    Some(bytes.into())
}

/// `mqtt-proto` 0.4 writes a refused subscription as 3; the standard says 0x80 (section 3.9.3). The codes come last.
fn refuse_v3(suback: &mut [u8], granted: &[Granted]) {
    let codes = suback.iter_mut().rev().zip(granted.iter().rev());
    codes.filter(|(_, granted)| !matches!(granted, Granted::Qos0 | Granted::Qos1)).for_each(|(code, _)| *code = 0x80);
}

fn pid(number: u16) -> Option<Pid> {
    Pid::try_from(number).ok()
}

fn out_qos(publish: &Publish) -> Option<QosPid> {
    match publish.pid {
        Some(number) => Some(QosPid::Level1(pid(number)?)),
        None => Some(QosPid::Level0),
    }
}

fn to_v3(out: &Out) -> Option<v3::Packet> {
    use v3::SubscribeReturnCode as Code;
    Some(match out {
        Out::Welcome(_) => connack_v3(v3::ConnectReturnCode::Accepted),
        Out::Reject(end) => connack_v3(reject_v3(*end)?),
        Out::Puback(number, _) => v3::Packet::Puback(pid(*number)?),
        Out::Suback(number, granted) => {
            let code = |granted: &Granted| match granted {
                Granted::Qos0 => Code::MaxLevel0,
                Granted::Qos1 => Code::MaxLevel1,
                _ => Code::Failure,
            };
            let topics = granted.iter().map(code).collect();
            v3::Packet::Suback(v3::Suback { pid: pid(*number)?, topics })
        }
        Out::Unsuback(number, _) => v3::Packet::Unsuback(pid(*number)?),
        Out::Publish(publish) => {
            let topic = TopicName::try_from(&*publish.topic).ok()?;
            v3::Packet::Publish(v3::Publish {
                dup: false,
                retain: false,
                qos_pid: out_qos(publish)?,
                topic_name: topic,
                payload: publish.payload.clone(),
            })
        }
        Out::Pong => v3::Packet::Pingresp,
        Out::Disconnect(_) => return None,
    })
}

fn connack_v3(code: v3::ConnectReturnCode) -> v3::Packet {
    v3::Packet::Connack(v3::Connack { session_present: false, code })
}

fn reject_v3(end: End) -> Option<v3::ConnectReturnCode> {
    use v3::ConnectReturnCode as Code;
    Some(match end {
        End::UnknownVersion => Code::UnacceptableProtocolVersion,
        End::BadClientId => Code::IdentifierRejected,
        End::Busy | End::Draining => Code::ServerUnavailable,
        End::BadCredentials => Code::BadUserNameOrPassword,
        End::BadAuthMethod | End::TopicInvalid => Code::NotAuthorized,
        _ => return None,
    })
}

fn to_v5(out: &Out) -> Option<v5::Packet> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(bytes: &[u8], version: Option<Version>) -> Result<Option<In>, End> {
        next(&mut BytesMut::from(bytes), version, 1024)
    }

    #[test]
    fn an_announced_giant_is_refused_at_once() {
        assert_eq!(packet(&[0x30, 0xff, 0xff, 0xff, 0x7f], Some(Version::V311)), Err(End::TooLarge));
        assert_eq!(packet(&[0x10, 0xff, 0xff, 0xff, 0x7f], None), Err(End::TooLarge));
        assert_eq!(packet(&[0x30, 0xff, 0xff, 0xff, 0xff, 0x01], None), Err(End::Malformed));
        assert_eq!(packet(&[0x30, 0xff], None), Ok(None), "the length itself is not there yet");
    }

    #[test]
    fn a_whole_packet_that_ends_too_early_is_malformed() {
        assert_eq!(packet(&[0x30, 3, 0, 9, b'a'], Some(Version::V311)), Err(End::Malformed));
        assert_eq!(packet(&[0x30, 3, 0, 9, b'a'], Some(Version::V5)), Err(End::Malformed));
        assert_eq!(packet(&[0x10, 7, 0, 4, b'H', b'T', b'T', b'P', 9], None), Err(End::UnknownVersion));
    }

    #[test]
    fn the_version_is_read_from_the_first_packet() {
        let v311 = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a";
        let v5 = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01a";
        for (bytes, version) in [(&v311[..], Version::V311), (v5, Version::V5)] {
            let Ok(Some(In::Connect(connect))) = packet(bytes, None) else { panic!("{version:?}") };
            assert_eq!((connect.version, &*connect.id, connect.keep_alive), (version, "a", 60));
        }
    }

    #[test]
    fn a_refused_subscription_is_one_in_both_versions() {
        let out = Out::Suback(7, vec![Granted::Qos1, Granted::Quota, Granted::Qos0, Granted::Invalid]);
        assert_eq!(encode(&out, Version::V311).unwrap()[..], [0x90, 6, 0, 7, 1, 0x80, 0, 0x80]);
        assert_eq!(encode(&out, Version::V5).unwrap()[..], [0x90, 7, 0, 7, 0, 1, 0x97, 0, 0x8f]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            kind in 1u8..16,
            version in prop::option::of(prop_oneof![Just(Version::V311), Just(Version::V5)]),
        ) {
            let _ = packet(&bytes, version);
            let mut framed = vec![kind << 4 | [0, 2][usize::from(matches!(kind, 6 | 8 | 10))], 0];
            framed.extend(bytes.iter().take(100));
            framed[1] = (framed.len() - 2) as u8;
            let mut buffer = BytesMut::from(&framed[..]);
            let before = buffer.len();
            if let Ok(Some(_)) = next(&mut buffer, version, 1024) {
                prop_assert_eq!(before - buffer.len(), framed.len(), "a packet takes its own bytes and no others");
            }
        }

        #[test]
        fn what_is_written_has_its_version(topic in "[a-z/]{1,20}", payload in prop::collection::vec(any::<u8>(), 0..50), pid in 1u16..) {
            let out = Publish { topic: topic.as_str().into(), payload: payload.into(), qos: 1, pid: Some(pid), ..Publish::default() };
            for version in [Version::V311, Version::V5] {
                let bytes = encode(&Out::Publish(out.clone()), version).unwrap();
                prop_assert_eq!(packet(&bytes, Some(version)), Ok(Some(In::Publish(out.clone()))));
            }
        }
    }
}
