//! The size of a response: whole, one block, or as much as an unproven address may get.

use coap_lite::{CoapOption, MessageClass, MessageType, Packet, ResponseType};

use super::super::message::{BlockOption, ECHO, encode_uint};
use super::{CoapEndpoint, CoapResponse, MAX_BLOCK_EXPONENT, PendingRequest};

impl CoapEndpoint {
    pub(super) fn new_packet(
        &self,
        response: &CoapResponse,
        token: &[u8],
        kind: MessageType,
    ) -> Packet {
        let mut packet = Packet::new();
        packet.header.set_type(kind);
        packet.header.code = MessageClass::Response(response.code);
        packet.set_token(token.to_vec());
        if let Some(format) = response.format {
            packet.add_option(CoapOption::ContentFormat, encode_uint(u32::from(format)));
        }
        packet
    }

    /// Encodes a response; returns its bytes, and whether they hold only a block of it.
    pub(super) fn encode_response(
        &self,
        pending: &PendingRequest,
        response: &CoapResponse,
        observe: Option<u32>,
        kind: MessageType,
        number: u16,
        limited: Option<(&[u8], u8)>,
    ) -> (Vec<u8>, bool) {
        let mut packet = self.new_packet(response, &pending.token, kind);
        packet.header.message_id = number;
        if let Some(number) = observe {
            packet.add_option(CoapOption::Observe, encode_uint(number));
        }
        // The client begins again after 4.08 (RFC 7959 section 2.9.2), so no block number helps it.
        if let Some(block) = pending
            .block1
            .filter(|_| response.code != ResponseType::RequestEntityIncomplete)
        {
            let block = BlockOption {
                more: response.code == ResponseType::Continue,
                ..block
            };
            packet.add_option(CoapOption::Block1, block.to_bytes());
        }
        if response.code == ResponseType::RequestEntityTooLarge {
            packet.add_option(
                CoapOption::Size1,
                encode_uint(u32::try_from(self.limits.max_body_bytes).unwrap_or(u32::MAX)),
            );
        }
        let requested = pending.block2.unwrap_or(BlockOption {
            number: 0,
            more: false,
            exponent: MAX_BLOCK_EXPONENT,
        });
        let exponent = limited.map_or(requested.exponent, |(_, exponent)| {
            exponent.min(requested.exponent)
        });
        let block = BlockOption {
            // The same byte offset in smaller blocks (RFC 7959 section 2.4).
            number: (requested.offset() >> (exponent + 4)) as u32,
            more: false,
            exponent,
        };
        if let Some((challenge, _)) = limited {
            packet.add_option(ECHO, challenge.to_vec());
        }
        let in_blocks = put_block(&mut packet, response, block, pending.block2.is_some());
        (packet.to_bytes_unlimited().unwrap_or_default(), in_blocks)
    }

    /// Encodes the largest response within `budget` bytes: a smaller block, or else a refusal.
    ///
    /// It bears a challenge; once the client has answered that, responses are not limited.
    pub(super) fn encode_within_budget(
        &self,
        pending: &PendingRequest,
        response: &CoapResponse,
        kind: MessageType,
        number: u16,
        challenge: &[u8],
        budget: usize,
    ) -> Option<(Vec<u8>, bool)> {
        let smaller = (0..MAX_BLOCK_EXPONENT).rev().map(|exponent| {
            self.encode_response(
                pending,
                response,
                None,
                kind,
                number,
                Some((challenge, exponent)),
            )
        });
        let refusal = CoapResponse::without_body(ResponseType::Unauthorized);
        let refused = std::iter::once_with(|| {
            let pending = PendingRequest {
                // Without block options, so that the refusal is as short as possible.
                block1: None,
                block2: None,
                ..pending.clone()
            };
            self.encode_response(
                &pending,
                &refusal,
                None,
                kind,
                number,
                Some((challenge, MAX_BLOCK_EXPONENT)),
            )
        });
        smaller
            .chain(refused)
            .find(|(bytes, _)| bytes.len() <= budget)
    }
}

/// Puts a block of the body into a packet; returns whether it is only a part, which has the option.
pub(super) fn put_block(
    packet: &mut Packet,
    response: &CoapResponse,
    block: BlockOption,
    requested: bool,
) -> bool {
    let (from, size) = (block.offset(), block.size());
    let is_whole = response.body.len() <= size && block.number == 0;
    if !is_whole || (requested && response.is_success()) {
        if from > response.body.len() || (from == response.body.len() && from > 0) {
            packet.header.code = MessageClass::Response(ResponseType::BadOption); // beyond the end
            return false;
        }
        let more = from + size < response.body.len();
        packet.add_option(CoapOption::Block2, BlockOption { more, ..block }.to_bytes());
        // The total size is needed once, to reserve memory.
        if block.number == 0 {
            packet.add_option(
                CoapOption::Size2,
                encode_uint(u32::try_from(response.body.len()).unwrap_or(u32::MAX)),
            );
        }
    }
    // Lets the client see that the response changed between two blocks.
    if !is_whole {
        packet.add_option(CoapOption::ETag, response.etag());
    }
    packet.payload = response.body
        [from.min(response.body.len())..(from + size).min(response.body.len())]
        .to_vec();
    !is_whole
}
