//! Packets of MQTT 3.1.1.

use mqtt_proto::{QoS, TopicName, v3};

use super::super::packet::{Connect, End, Granted, In, Out, Publish, Version};
use super::{out_qos, pid, qos_pid, text};

/// What a client says.
pub(super) fn from_v3(packet: v3::Packet) -> In {
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

/// What is said to a client. `None`: there is no word for it.
pub(super) fn to_v3(out: &Out) -> Option<v3::Packet> {
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

/// `mqtt-proto` 0.4 writes a refused subscription as 3; the standard says 0x80 (section 3.9.3). The codes come last.
pub(super) fn refuse_v3(suback: &mut [u8], granted: &[Granted]) {
    let codes = suback.iter_mut().rev().zip(granted.iter().rev());
    codes.filter(|(_, granted)| !matches!(granted, Granted::Qos0 | Granted::Qos1)).for_each(|(code, _)| *code = 0x80);
}
