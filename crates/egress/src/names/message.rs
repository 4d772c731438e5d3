//! Questions about names as they come from an instance, and the answers (RFC 1035). Pure.

use std::net::Ipv4Addr;

use simple_dns::rdata::{A, RData};
use simple_dns::{CLASS, OPCODE, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};

use super::wildcard::MAX_ANSWER_AGE;

/// Longest question over UDP (RFC 1035, 4.2.1).
pub(crate) const MAX_MESSAGE_BYTES: usize = 512;

/// One question.
#[derive(Debug, Clone)]
pub(crate) struct DnsQuestion {
    packet: Packet<'static>,
    /// The name, in small letters, without a dot at its end.
    pub(crate) name: String,
    /// Whether an IPv4 address is wanted. Others, which the name may or may not have, are not told.
    pub(crate) wants_ipv4: bool,
}

/// What is said to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DnsAnswer {
    /// This stands for it.
    Address(Ipv4Addr),
    /// There is such a name, and nothing of the kind that was asked for.
    NoData,
    /// There is no such name (NXDOMAIN).
    NameError,
    /// It cannot be said now (SERVFAIL).
    ServerFailure,
}

impl DnsQuestion {
    /// Reads a packet that asks one thing; what is anything else is not worth an answer.
    pub(crate) fn parse_packet(packet: &[u8]) -> Option<Self> {
        // Questions, answers, authorities, and room for EDNS: what a packet announces is made room for before it is read.
        let [q, a, n, more] = *packet.get(4..12)?.as_chunks::<2>().0 else {
            return None;
        };
        let [q, a, n, more] = [q, a, n, more].map(u16::from_be_bytes);
        let plain = (q, a, n) == (1, 0, 0) && more <= 2 && packet.len() <= MAX_MESSAGE_BYTES;
        let packet = plain.then(|| Packet::parse(packet).ok()).flatten()?;
        if packet.has_flags(PacketFlag::RESPONSE) || packet.opcode() != OPCODE::StandardQuery {
            return None;
        }
        let asked = packet.questions.first()?;
        let name = asked.qname.to_string().to_ascii_lowercase();
        let of_address = matches!(asked.qtype, QTYPE::TYPE(TYPE::A) | QTYPE::ANY);
        let mut kept = Packet::new_query(packet.id());
        if packet.has_flags(PacketFlag::RECURSION_DESIRED) {
            kept.set_flags(PacketFlag::RECURSION_DESIRED);
        }
        kept.questions.push(asked.clone().into_owned());
        Some(Self {
            packet: kept,
            name,
            wants_ipv4: of_address,
        })
    }

    /// The packet that answers it: with the question as it was written, since some resolvers look at the letters' case.
    pub(crate) fn build_reply(&self, answer: DnsAnswer) -> Option<Vec<u8>> {
        let mut packet = Packet::new_reply(self.packet.id());
        packet.set_flags(PacketFlag::RECURSION_AVAILABLE);
        if self.packet.has_flags(PacketFlag::RECURSION_DESIRED) {
            packet.set_flags(PacketFlag::RECURSION_DESIRED);
        }
        packet.questions.clone_from(&self.packet.questions);
        match answer {
            DnsAnswer::Address(address) => {
                let name = self.packet.questions.first()?.qname.clone();
                let data = RData::A(A {
                    address: address.to_bits(),
                });
                packet.answers.push(ResourceRecord::new(
                    name,
                    CLASS::IN,
                    MAX_ANSWER_AGE.as_secs() as u32,
                    data,
                ));
            }
            DnsAnswer::NoData => {}
            DnsAnswer::NameError => *packet.rcode_mut() = RCODE::NameError,
            DnsAnswer::ServerFailure => *packet.rcode_mut() = RCODE::ServerFailure,
        }
        packet.build_bytes_vec().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a resolver sends: id 7, recursion desired, `Ab.example.com`, type and class IN.
    fn query_of_type(kind: u8) -> Vec<u8> {
        let name = b"\x02Ab\x07example\x03com\0";
        [
            &[0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..],
            name,
            &[0, kind, 0, 1],
        ]
        .concat()
    }

    #[test]
    fn a_reply_repeats_its_question() {
        let question = DnsQuestion::parse_packet(&query_of_type(1)).unwrap();
        assert_eq!(
            (question.name.as_str(), question.wants_ipv4),
            ("ab.example.com", true)
        );
        let answer = question
            .build_reply(DnsAnswer::Address([10, 61, 255, 1].into()))
            .unwrap();
        assert_eq!(
            answer[..12],
            [0, 7, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0],
            "a reply, recursion and all, without error"
        );
        assert_eq!(
            answer[12..32],
            query_of_type(1)[12..],
            "letters as they were"
        );
        assert_eq!(
            answer[answer.len() - 10..],
            [0, 0, 0, 30, 0, 4, 10, 61, 255, 1]
        );
        let code = |answer| question.build_reply(answer).unwrap()[3] & 15;
        assert_eq!(
            [
                DnsAnswer::NoData,
                DnsAnswer::NameError,
                DnsAnswer::ServerFailure
            ]
            .map(code),
            [0, 3, 2]
        );
        assert!(
            !DnsQuestion::parse_packet(&query_of_type(28))
                .unwrap()
                .wants_ipv4,
            "AAAA"
        );
    }

    #[test]
    fn a_packet_without_a_single_question_has_no_reply() {
        let good = query_of_type(1);
        for (at, octet) in [(2, 0x81), (2, 0x11), (5, 0), (5, 2), (7, 1), (10, 255)] {
            let mut bad = good.clone();
            bad[at] = octet;
            assert!(DnsQuestion::parse_packet(&bad).is_none(), "{at} {octet}");
        }
        assert!(
            DnsQuestion::parse_packet(&good[..20]).is_none()
                && DnsQuestion::parse_packet(&[]).is_none()
        );
        let edns = [
            &good[..11],
            &[1],
            &good[12..],
            &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert!(
            DnsQuestion::parse_packet(&edns).is_some(),
            "as Go's resolver asks"
        );
    }

    proptest! {
        #[test]
        fn no_octets_make_it_fail(
            noise in prop::collection::vec(any::<u8>(), 0..600),
            at in 0usize..32, with in any::<u8>(), cut in 0usize..40,
        ) {
            let mut near = query_of_type(1);
            near[at] = with;
            near.truncate(cut.max(12));
            for packet in [&noise, &near] {
                if let Some(question) = DnsQuestion::parse_packet(packet) {
                    let answer = question.build_reply(DnsAnswer::Address(Ipv4Addr::LOCALHOST));
                    prop_assert!(answer.is_none_or(|answer| answer.len() <= 2 * MAX_MESSAGE_BYTES));
                }
            }
        }
    }
}
