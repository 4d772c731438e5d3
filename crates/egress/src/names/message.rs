//! DNS queries of instances and their replies (RFC 1035). Pure.

use std::net::Ipv4Addr;

use simple_dns::rdata::{A, RData};
use simple_dns::{CLASS, OPCODE, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};

use super::wildcard::MAX_ANSWER_AGE;

/// Maximum length of a message over UDP (RFC 1035, section 4.2.1).
pub(crate) const MAX_MESSAGE_BYTES: usize = 512;

/// A query with one question.
#[derive(Debug, Clone)]
pub(crate) struct DnsQuestion {
    packet: Packet<'static>,
    /// The name in lower case, without the final dot.
    pub(crate) name: String,
    /// True if an IPv4 address is requested. Other types get an empty answer, whether or not the
    /// name has them.
    pub(crate) wants_ipv4: bool,
}

/// Answer to a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DnsAnswer {
    /// The name has this address.
    Address(Ipv4Addr),
    /// The name exists and has no record of the requested type.
    NoData,
    /// The name does not exist (NXDOMAIN).
    NameError,
    /// The name cannot be resolved now (SERVFAIL).
    ServerFailure,
    /// The instance asks too often (REFUSED).
    Refused,
}

impl DnsQuestion {
    /// Parses a packet with a single question; `None` for anything else, which gets no reply.
    pub(crate) fn parse_packet(packet: &[u8]) -> Option<Self> {
        // Counts of questions, answers, authorities and additional records (EDNS). The parser
        // allocates by these counts, so they are checked before.
        let [q, a, n, more] = *packet.get(4..12)?.as_chunks::<2>().0 else {
            return None;
        };
        let [q, a, n, more] = [q, a, n, more].map(u16::from_be_bytes);
        let is_single_question =
            (q, a, n) == (1, 0, 0) && more <= 2 && packet.len() <= MAX_MESSAGE_BYTES;
        let packet = is_single_question
            .then(|| Packet::parse(packet).ok())
            .flatten()?;
        if packet.has_flags(PacketFlag::RESPONSE) || packet.opcode() != OPCODE::StandardQuery {
            return None;
        }
        let question = packet.questions.first()?;
        let name = question.qname.to_string().to_ascii_lowercase();
        let wants_ipv4 = matches!(question.qtype, QTYPE::TYPE(TYPE::A) | QTYPE::ANY);
        // Only the question is kept: other records of the packet are not repeated.
        let mut question_only = Packet::new_query(packet.id());
        if packet.has_flags(PacketFlag::RECURSION_DESIRED) {
            question_only.set_flags(PacketFlag::RECURSION_DESIRED);
        }
        question_only.questions.push(question.clone().into_owned());
        Some(Self {
            packet: question_only,
            name,
            wants_ipv4,
        })
    }

    /// Builds the reply. It repeats the question as it was written, since some resolvers compare
    /// the case of letters (DNS 0x20).
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
            DnsAnswer::Refused => *packet.rcode_mut() = RCODE::Refused,
        }
        packet.build_bytes_vec().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Query with id 7, recursion desired, for `Ab.example.com` of type `kind` and class IN.
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
        assert_eq!(answer[12..32], query_of_type(1)[12..], "the case is kept");
        assert_eq!(
            answer[answer.len() - 10..],
            [0, 0, 0, 30, 0, 4, 10, 61, 255, 1]
        );
        let code = |answer| question.build_reply(answer).unwrap()[3] & 15;
        assert_eq!(
            [
                DnsAnswer::NoData,
                DnsAnswer::NameError,
                DnsAnswer::ServerFailure,
                DnsAnswer::Refused
            ]
            .map(code),
            [0, 3, 2, 5]
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
        fn no_bytes_make_the_parser_panic(
            random_bytes in prop::collection::vec(any::<u8>(), 0..600),
            at in 0usize..32, with in any::<u8>(), cut in 0usize..40,
        ) {
            let mut almost_valid = query_of_type(1);
            almost_valid[at] = with;
            almost_valid.truncate(cut.max(12));
            for packet in [&random_bytes, &almost_valid] {
                if let Some(question) = DnsQuestion::parse_packet(packet) {
                    let answer = question.build_reply(DnsAnswer::Address(Ipv4Addr::LOCALHOST));
                    prop_assert!(answer.is_none_or(|answer| answer.len() <= 2 * MAX_MESSAGE_BYTES));
                }
            }
        }
    }
}
