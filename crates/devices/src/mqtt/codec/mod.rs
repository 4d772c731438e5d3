//! Bytes to packets and back, by `mqtt-proto`. The stream is cut into packets here, by the length
//! that each announces. No packet above the limit is waited for or buffered.

mod v3;
mod v5;

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use mqtt_proto::{
    Error, Pid, Protocol, QosPid, decode_raw_header_async, v3 as proto_v3, v5 as proto_v5,
};

use super::packet::{ClientPacket, DisconnectReason, Publish, ServerPacket, Version};
use v3::{fix_suback_failures, from_v3, has_password_only, to_v3};
use v5::{from_v5, to_v5};

/// Takes the next packet from the buffer; `None` if it is incomplete.
///
/// # Errors
/// `TooLarge` as soon as a packet announces more than `limit` bytes; otherwise the reason for which
/// it is invalid.
pub(crate) fn decode_next(
    from: &mut BytesMut,
    version: Option<Version>,
    limit: usize,
) -> Result<Option<ClientPacket>, DisconnectReason> {
    // Reading from a slice never waits.
    let header = decode_raw_header_async(&mut &from[..]).now_or_never();
    let total = match header {
        Some(Ok((_, remaining, length))) => 1 + length + remaining as usize,
        Some(Err(error)) if error.is_eof() => return Ok(None),
        Some(Err(_)) | None => return Err(DisconnectReason::Malformed),
    };
    if total > limit {
        return Err(DisconnectReason::TooLarge);
    }
    if from.len() < total {
        return Ok(None);
    }
    let packet = decode(&from[..total], version)?;
    from.advance(total);
    Ok(Some(packet))
}

fn decode(bytes: &[u8], version: Option<Version>) -> Result<ClientPacket, DisconnectReason> {
    match version {
        Some(Version::V311) => read_v3(bytes),
        Some(Version::V5) => read_v5(bytes),
        // Version 5 first: its decoder names the version that it found instead.
        None => match proto_v5::Packet::decode(bytes) {
            Ok(Some(packet)) => Ok(from_v5(packet)),
            Ok(None) => Err(DisconnectReason::Malformed),
            Err(proto_v5::ErrorV5::Common(Error::UnexpectedProtocol(Protocol::V311))) => {
                read_v3(bytes)
            }
            Err(proto_v5::ErrorV5::Common(
                Error::UnexpectedProtocol(_) | Error::InvalidProtocol(..),
            )) => Err(DisconnectReason::UnknownVersion),
            Err(_) => Err(DisconnectReason::Malformed),
        },
    }
}

fn read_v3(bytes: &[u8]) -> Result<ClientPacket, DisconnectReason> {
    // `None` means that fields go beyond the packet's end: all its bytes are here.
    proto_v3::Packet::decode(bytes)
        .ok()
        .flatten()
        .filter(|packet| !has_password_only(packet))
        .map(from_v3)
        .ok_or(DisconnectReason::Malformed)
}

fn read_v5(bytes: &[u8]) -> Result<ClientPacket, DisconnectReason> {
    proto_v5::Packet::decode(bytes)
        .ok()
        .flatten()
        .map(from_v5)
        .ok_or(DisconnectReason::Malformed)
}

fn shared_str(name: &str) -> Arc<str> {
    name.into()
}

fn split_qos(qos_pid: QosPid) -> (u8, Option<u16>) {
    (qos_pid.qos() as u8, qos_pid.pid().map(Pid::value))
}

/// Encodes a packet; `None` if this version has none for it.
pub(crate) fn encode(out: &ServerPacket, version: Version) -> Option<Bytes> {
    let bytes = match version {
        Version::V311 => to_v3(out)?.encode(),
        Version::V5 => to_v5(out)?.encode(),
    };
    // A copy, because the refused codes of a 3.1.1 SUBACK are mended in place.
    let mut bytes = bytes.ok()?.as_ref().to_vec();
    if let (ServerPacket::Suback(_, granted), Version::V311) = (out, version) {
        fix_suback_failures(&mut bytes, granted);
    }
    Some(bytes.into())
}

fn packet_id(number: u16) -> Option<Pid> {
    Pid::try_from(number).ok()
}

fn qos_to_send(publish: &Publish) -> Option<QosPid> {
    match publish.packet_id {
        Some(number) => Some(QosPid::Level1(packet_id(number)?)),
        None => Some(QosPid::Level0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::SubscribeResult;
    use super::*;
    use proptest::prelude::*;

    fn packet(
        bytes: &[u8],
        version: Option<Version>,
    ) -> Result<Option<ClientPacket>, DisconnectReason> {
        decode_next(&mut BytesMut::from(bytes), version, 1024)
    }

    #[test]
    fn a_packet_above_the_limit_is_refused_at_its_header() {
        assert_eq!(
            packet(&[0x30, 0xff, 0xff, 0xff, 0x7f], Some(Version::V311)),
            Err(DisconnectReason::TooLarge)
        );
        assert_eq!(
            packet(&[0x10, 0xff, 0xff, 0xff, 0x7f], None),
            Err(DisconnectReason::TooLarge)
        );
        assert_eq!(
            packet(&[0x30, 0xff, 0xff, 0xff, 0xff, 0x01], None),
            Err(DisconnectReason::Malformed)
        );
        assert_eq!(
            packet(&[0x30, 0xff], None),
            Ok(None),
            "the length itself is not there yet"
        );
    }

    #[test]
    fn a_whole_packet_that_ends_too_early_is_malformed() {
        assert_eq!(
            packet(&[0x30, 3, 0, 9, b'a'], Some(Version::V311)),
            Err(DisconnectReason::Malformed)
        );
        assert_eq!(
            packet(&[0x30, 3, 0, 9, b'a'], Some(Version::V5)),
            Err(DisconnectReason::Malformed)
        );
        assert_eq!(
            packet(&[0x10, 7, 0, 4, b'H', b'T', b'T', b'P', 9], None),
            Err(DisconnectReason::UnknownVersion)
        );
    }

    #[test]
    fn the_version_is_read_from_the_first_packet() {
        let v311 = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a";
        let v5 = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01a";
        for (bytes, version) in [(&v311[..], Version::V311), (v5, Version::V5)] {
            let Ok(Some(ClientPacket::Connect(connect))) = packet(bytes, None) else {
                panic!("{version:?}")
            };
            assert_eq!(
                (connect.version, &*connect.client_id, connect.keep_alive),
                (version, "a", 60)
            );
        }
    }

    #[test]
    fn a_password_without_a_user_is_malformed_in_3_1_1_only() {
        let v311 = b"\x10\x10\x00\x04MQTT\x04\x42\x00\x3c\x00\x01a\x00\x01p";
        let v5 = b"\x10\x11\x00\x04MQTT\x05\x42\x00\x3c\x00\x00\x01a\x00\x01p";
        assert_eq!(packet(v311, None), Err(DisconnectReason::Malformed));
        assert!(matches!(
            packet(v5, None),
            Ok(Some(ClientPacket::Connect(_)))
        ));
    }

    #[test]
    fn a_refused_subscription_is_one_in_both_versions() {
        let out = ServerPacket::Suback(
            7,
            vec![
                SubscribeResult::Qos1,
                SubscribeResult::Quota,
                SubscribeResult::Qos0,
                SubscribeResult::Invalid,
            ],
        );
        assert_eq!(
            encode(&out, Version::V311).unwrap()[..],
            [0x90, 6, 0, 7, 1, 0x80, 0, 0x80]
        );
        assert_eq!(
            encode(&out, Version::V5).unwrap()[..],
            [0x90, 7, 0, 7, 0, 1, 0x97, 0, 0x8f]
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(
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
            if let Ok(Some(_)) = decode_next(&mut buffer, version, 1024) {
                prop_assert_eq!(before - buffer.len(), framed.len(), "a packet takes its own bytes and no others");
            }
        }

        #[test]
        fn a_packet_survives_encoding_and_decoding(topic in "[a-z/]{1,20}", payload in prop::collection::vec(any::<u8>(), 0..50), packet_id in 1u16..) {
            let out = Publish { topic: topic.as_str().into(), payload: payload.into(), qos: 1, packet_id: Some(packet_id), ..Publish::default() };
            for version in [Version::V311, Version::V5] {
                let bytes = encode(&ServerPacket::Publish(out.clone()), version).unwrap();
                prop_assert_eq!(packet(&bytes, Some(version)), Ok(Some(ClientPacket::Publish(out.clone()))));
            }
        }
    }
}
