//! Bytes to packets and back, by `mqtt-proto`. What comes is cut into packets here, by the length that each one announces,
//! so that none larger than the limit is ever waited for, let alone kept.

mod five;
mod three;

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use mqtt_proto::{Error, Pid, Protocol, QosPid, decode_raw_header_async, v3, v5};

use super::packet::{End, In, Out, Publish, Version};
use five::{from_v5, to_v5};
use three::{from_v3, refuse_v3, to_v3};

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

fn pid(number: u16) -> Option<Pid> {
    Pid::try_from(number).ok()
}

fn out_qos(publish: &Publish) -> Option<QosPid> {
    match publish.pid {
        Some(number) => Some(QosPid::Level1(pid(number)?)),
        None => Some(QosPid::Level0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::Granted;
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
