//! Packets of MQTT 3.1.1.

use mqtt_proto::{QoS, TopicName, v3};

use super::super::packet::{
    ClientPacket, Connect, DisconnectReason, Publish, ServerPacket, SubscribeResult, Version,
};
use super::{packet_id, qos_to_send, shared_str, split_qos};

/// Returns whether a CONNECT holds a password without a user name. MQTT 3.1.1 forbids it (section
/// 3.1.2.9), MQTT 5 does not; the decoder accepts both.
pub(super) fn has_password_only(packet: &v3::Packet) -> bool {
    matches!(packet, v3::Packet::Connect(connect) if connect.password.is_some() && connect.username.is_none())
}

/// Converts a client's packet.
pub(super) fn from_v3(packet: v3::Packet) -> ClientPacket {
    match packet {
        v3::Packet::Connect(connect) => ClientPacket::Connect(Box::new(connect_v3(connect))),
        v3::Packet::Publish(publish) => {
            let (qos, packet_id) = split_qos(publish.qos_pid);
            let (topic, payload, retain) = (
                shared_str(&publish.topic_name),
                publish.payload,
                publish.retain,
            );
            ClientPacket::Publish(Publish {
                topic,
                payload,
                qos,
                packet_id,
                retain,
                ..Publish::default()
            })
        }
        v3::Packet::Puback(pid) => ClientPacket::Puback(pid.value()),
        v3::Packet::Subscribe(subscribe) => ClientPacket::Subscribe {
            packet_id: subscribe.pid.value(),
            filters: subscribe
                .topics
                .iter()
                .map(|(filter, qos)| (shared_str(filter), *qos != QoS::Level0))
                .collect(),
            has_identifier: false,
        },
        v3::Packet::Unsubscribe(unsubscribe) => ClientPacket::Unsubscribe {
            packet_id: unsubscribe.pid.value(),
            filters: unsubscribe
                .topics
                .iter()
                .map(|filter| shared_str(filter))
                .collect(),
        },
        v3::Packet::Pingreq => ClientPacket::Ping,
        v3::Packet::Disconnect => ClientPacket::Disconnect { will: false },
        _ => ClientPacket::Unexpected,
    }
}

fn connect_v3(connect: v3::Connect) -> Connect {
    let will = connect.last_will.map(|will| Publish {
        topic: shared_str(&will.topic_name),
        payload: will.message,
        qos: will.qos as u8,
        retain: will.retain,
        ..Publish::default()
    });
    Connect {
        version: Version::V311,
        client_id: shared_str(&connect.client_id),
        clean_session: connect.clean_session,
        keep_alive: connect.keep_alive,
        user: connect.username.map(|name| shared_str(&name)),
        password: connect.password,
        will,
        // 3.1.1 has no such limits; these are the defaults of MQTT 5 (sections 3.1.2.11.3 and .4).
        receive_max: u16::MAX,
        max_packet: u32::MAX,
        enhanced_auth: false,
    }
}

/// Converts a packet to a client; `None` if this version has none for it.
pub(super) fn to_v3(out: &ServerPacket) -> Option<v3::Packet> {
    use v3::SubscribeReturnCode as Code;
    Some(match out {
        ServerPacket::Connack(_) => connack_v3(v3::ConnectReturnCode::Accepted),
        ServerPacket::Reject(end) => connack_v3(reject_v3(*end)?),
        ServerPacket::Puback(number, _) => v3::Packet::Puback(packet_id(*number)?),
        ServerPacket::Suback(number, granted) => {
            let code = |granted: &SubscribeResult| match granted {
                SubscribeResult::Qos0 => Code::MaxLevel0,
                SubscribeResult::Qos1 => Code::MaxLevel1,
                _ => Code::Failure,
            };
            let topics = granted.iter().map(code).collect();
            v3::Packet::Suback(v3::Suback {
                pid: packet_id(*number)?,
                topics,
            })
        }
        ServerPacket::Unsuback(number, _) => v3::Packet::Unsuback(packet_id(*number)?),
        ServerPacket::Publish(publish) => {
            let topic = TopicName::try_from(&*publish.topic).ok()?;
            v3::Packet::Publish(v3::Publish {
                dup: false,
                // Nothing is retained here, and each message is sent once: neither flag is ever
                // set.
                retain: false,
                qos_pid: qos_to_send(publish)?,
                topic_name: topic,
                payload: publish.payload.clone(),
            })
        }
        ServerPacket::Pong => v3::Packet::Pingresp,
        // In 3.1.1 only clients send DISCONNECT (section 3.14); the server closes the socket.
        ServerPacket::Disconnect(_) => return None,
    })
}

fn connack_v3(code: v3::ConnectReturnCode) -> v3::Packet {
    v3::Packet::Connack(v3::Connack {
        session_present: false,
        code,
    })
}

fn reject_v3(end: DisconnectReason) -> Option<v3::ConnectReturnCode> {
    use v3::ConnectReturnCode as Code;
    Some(match end {
        DisconnectReason::UnknownVersion => Code::UnacceptableProtocolVersion,
        DisconnectReason::BadClientId => Code::IdentifierRejected,
        // 3.1.1 has no code of its own for a lock-out; this one says that a later try can succeed.
        DisconnectReason::Busy | DisconnectReason::Draining | DisconnectReason::LoginLocked => {
            Code::ServerUnavailable
        }
        DisconnectReason::BadCredentials => Code::BadUserNameOrPassword,
        DisconnectReason::BadAuthMethod | DisconnectReason::TopicInvalid => Code::NotAuthorized,
        // Other reasons have no 3.1.1 code: the socket is closed without CONNACK (section 3.2.2.3).
        _ => return None,
    })
}

/// Corrects refused subscriptions: `mqtt-proto` 0.4 writes 3, the standard says 0x80 (section
/// 3.9.3). The codes come last.
pub(super) fn fix_suback_failures(suback: &mut [u8], granted: &[SubscribeResult]) {
    let codes = suback.iter_mut().rev().zip(granted.iter().rev());
    codes
        .filter(|(_, granted)| !matches!(granted, SubscribeResult::Qos0 | SubscribeResult::Qos1))
        .for_each(|(code, _)| *code = 0x80);
}
