//! How large an answer is: whole, a block of it, or as little as its address permits.

use coap_lite::{CoapOption, MessageClass, MessageType, Packet, ResponseType};

use super::super::message::{Block, ECHO, uint};
use super::{Answer, Ask, Endpoint, LARGEST};

impl Endpoint {
    pub(super) fn packet(&self, answer: &Answer, token: &[u8], kind: MessageType) -> Packet {
        let mut packet = Packet::new();
        packet.header.set_type(kind);
        packet.header.code = MessageClass::Response(answer.code);
        packet.set_token(token.to_vec());
        if let Some(format) = answer.format {
            packet.add_option(CoapOption::ContentFormat, uint(u32::from(format)));
        }
        packet
    }

    /// The answer as bytes, and whether it is only a block of it.
    pub(super) fn shape(
        &self,
        ask: &Ask,
        answer: &Answer,
        observe: Option<u32>,
        kind: MessageType,
        number: u16,
        small: Option<(&[u8], u8)>,
    ) -> (Vec<u8>, bool) {
        let mut packet = self.packet(answer, &ask.token, kind);
        packet.header.message_id = number;
        if let Some(number) = observe {
            packet.add_option(CoapOption::Observe, uint(number));
        }
        if let Some(block) = ask.block1.filter(|_| answer.code != ResponseType::RequestEntityIncomplete) {
            let block = Block { more: answer.code == ResponseType::Continue, ..block };
            packet.add_option(CoapOption::Block1, block.value());
        }
        if answer.code == ResponseType::RequestEntityTooLarge {
            packet.add_option(CoapOption::Size1, uint(u32::try_from(self.limits.body).unwrap_or(u32::MAX)));
        }
        let asked = ask.block2.unwrap_or(Block { number: 0, more: false, exponent: LARGEST });
        let exponent = small.map_or(asked.exponent, |(_, exponent)| exponent.min(asked.exponent));
        let block = Block { number: (asked.offset() >> (exponent + 4)) as u32, more: false, exponent };
        if let Some((challenge, _)) = small {
            packet.add_option(ECHO, challenge.to_vec());
        }
        let in_blocks = slice(&mut packet, answer, block, ask.block2.is_some());
        (packet.to_bytes_unlimited().unwrap_or_default(), in_blocks)
    }

    /// The largest answer that fits: a smaller block of it, else a refusal; with a challenge, so that the next one can be
    /// as large as it likes.
    pub(super) fn shrink(
        &self,
        ask: &Ask,
        answer: &Answer,
        kind: MessageType,
        number: u16,
        challenge: &[u8],
        budget: usize,
    ) -> Option<(Vec<u8>, bool)> {
        let smaller =
            (0..LARGEST).rev().map(|exponent| self.shape(ask, answer, None, kind, number, Some((challenge, exponent))));
        let refusal = Answer::bare(ResponseType::Unauthorized);
        let refused = std::iter::once_with(|| {
            let ask = Ask { block1: None, block2: None, ..ask.clone() };
            self.shape(&ask, &refusal, None, kind, number, Some((challenge, LARGEST)))
        });
        smaller.chain(refused).find(|(bytes, _)| bytes.len() <= budget)
    }
}

/// Puts a block of the body into a packet, with its option if it is not the whole. True: it is not.
pub(super) fn slice(packet: &mut Packet, answer: &Answer, block: Block, asked: bool) -> bool {
    let (from, size) = (block.offset(), block.size());
    let whole = answer.body.len() <= size && block.number == 0;
    if !whole || (asked && answer.is_good()) {
        if from > answer.body.len() || (from == answer.body.len() && from > 0) {
            packet.header.code = MessageClass::Response(ResponseType::BadOption); // beyond the end
            return false;
        }
        let more = from + size < answer.body.len();
        packet.add_option(CoapOption::Block2, Block { more, ..block }.value());
        if block.number == 0 {
            packet.add_option(CoapOption::Size2, uint(u32::try_from(answer.body.len()).unwrap_or(u32::MAX)));
        }
    }
    if !whole {
        packet.add_option(CoapOption::ETag, answer.etag());
    }
    packet.payload = answer.body[from.min(answer.body.len())..(from + size).min(answer.body.len())].to_vec();
    !whole
}
