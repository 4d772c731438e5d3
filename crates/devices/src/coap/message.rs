//! CoAP requests, read from `coap-lite`'s packets, and the options that it lacks.

use coap_lite::option_value::{OptionValueU16, OptionValueU32};
use coap_lite::{CoapOption, MessageClass, MessageType, Packet, RequestType, ResponseType};
use http::Method;

/// RFC 9175.
pub(super) const ECHO: CoapOption = CoapOption::Unknown(252);
/// RFC 9175: elective, and part of an upload's identity.
const REQUEST_TAG: CoapOption = CoapOption::Unknown(292);

/// A block option (RFC 7959). `coap-lite`'s own type has 12 of a number's 20 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockOption {
    pub number: u32,
    pub more: bool,
    /// 0 to 6: blocks of 16 to 1024 bytes.
    pub exponent: u8,
}

impl BlockOption {
    /// Parses an option's value; `None` if it is longer than three bytes or has the reserved size.
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        // A block option has at most 3 bytes (RFC 7959 section 2.2).
        if value.len() > 3 {
            return None;
        }
        let all = OptionValueU32::try_from(value.to_vec()).ok()?.0;
        let block = Self {
            number: all >> 4,
            more: all & 8 != 0,
            exponent: (all & 7) as u8,
        };
        (block.exponent < 7).then_some(block)
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let more = u32::from(self.more) << 3;
        OptionValueU32(self.number << 4 | more | u32::from(self.exponent)).into()
    }

    pub(super) fn size(self) -> usize {
        16 << self.exponent
    }

    /// The block's first byte in the body.
    pub(super) fn offset(self) -> usize {
        self.number as usize * self.size()
    }
}

/// The part of a request that does not depend on how it is transferred: the key of block-wise
/// transfers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct ResourceRequest {
    pub method: Method,
    /// The method is FETCH (RFC 8132), which HTTP lacks; `method` is POST.
    pub is_fetch: bool,
    pub path: Vec<String>,
    pub query: Vec<String>,
    pub format: Option<u16>,
    pub accept: Option<u16>,
}

/// A parsed request.
#[derive(Debug, Clone)]
pub(super) struct CoapRequest {
    pub resource: ResourceRequest,
    pub tag: Vec<u8>,
    /// `Some(true)` begins an observation, `Some(false)` ends it.
    pub observe: Option<bool>,
    pub block1: Option<BlockOption>,
    pub block2: Option<BlockOption>,
    pub echo: Option<Vec<u8>>,
    pub payload: Vec<u8>,
}

/// Parses a request.
///
/// # Errors
/// The response code of the refusal.
pub(super) fn parse_request(
    packet: &Packet,
    request: &RequestType,
) -> Result<CoapRequest, ResponseType> {
    let (method, is_fetch) = http_method(request).ok_or(ResponseType::MethodNotAllowed)?;
    check_options(packet)?;
    let block = |option| match packet.get_first_option(option) {
        Some(value) => BlockOption::parse(value)
            .map(Some)
            .ok_or(ResponseType::BadRequest),
        None => Ok(None),
    };
    let observe = match packet
        .get_first_option(CoapOption::Observe)
        .map(Vec::as_slice)
    {
        // An empty value is 0 (RFC 7252 section 3.2). Other values are unknown and ignored.
        Some([] | [0]) => Some(true),
        Some([1]) => Some(false),
        _ => None,
    };
    let path = option_strings(packet, CoapOption::UriPath)?;
    // RFC 7252 section 5.10.1 forbids these; as HTTP paths they would leave the function's own.
    if path
        .iter()
        .any(|segment| matches!(segment.as_str(), "." | ".."))
    {
        return Err(ResponseType::BadRequest);
    }
    let (format, accept) = (
        option_u16(packet, CoapOption::ContentFormat)?,
        option_u16(packet, CoapOption::Accept)?,
    );
    let query = option_strings(packet, CoapOption::UriQuery)?;
    Ok(CoapRequest {
        resource: ResourceRequest {
            method,
            is_fetch,
            path,
            query,
            format,
            accept,
        },
        tag: packet
            .get_first_option(REQUEST_TAG)
            .cloned()
            .unwrap_or_default(),
        observe,
        block1: block(CoapOption::Block1)?,
        block2: block(CoapOption::Block2)?,
        echo: packet.get_first_option(ECHO).cloned(),
        payload: packet.payload.clone(),
    })
}

fn http_method(request: &RequestType) -> Option<(Method, bool)> {
    Some(match request {
        RequestType::Get => (Method::GET, false),
        RequestType::Post => (Method::POST, false),
        RequestType::Put => (Method::PUT, false),
        RequestType::Delete => (Method::DELETE, false),
        RequestType::Fetch => (Method::POST, true),
        RequestType::Patch | RequestType::IPatch => (Method::PATCH, false),
        RequestType::UnKnown => return None,
    })
}

/// Refuses unknown critical options: those with odd numbers must not be ignored (RFC 7252 section
/// 5.4.1).
fn check_options(packet: &Packet) -> Result<(), ResponseType> {
    use CoapOption as O;
    for (number, _) in packet.options() {
        match O::from(*number) {
            O::ProxyUri | O::ProxyScheme => return Err(ResponseType::ProxyingNotSupported),
            O::UriHost
            // Understood means harmless here: one endpoint serves all hosts and ports.
            | O::UriPort
            | O::UriPath
            | O::UriQuery
            | O::Accept
            | O::Block1
            | O::Block2 => {}
            _ if number % 2 == 1 => return Err(ResponseType::BadOption),
            _ => {}
        }
    }
    Ok(())
}

fn option_strings(packet: &Packet, option: CoapOption) -> Result<Vec<String>, ResponseType> {
    let values = packet.get_option(option).into_iter().flatten();
    values
        .map(|value| String::from_utf8(value.clone()).map_err(|_| ResponseType::BadOption))
        .collect()
}

fn option_u16(packet: &Packet, option: CoapOption) -> Result<Option<u16>, ResponseType> {
    let Some(value) = packet.get_first_option(option) else {
        return Ok(None);
    };
    if value.len() > 2 {
        return Err(ResponseType::BadOption);
    }
    OptionValueU16::try_from(value.clone())
        .map(|value| Some(value.0))
        .map_err(|_| ResponseType::BadOption)
}

/// Encodes a number as an option's value, in as few bytes as possible.
pub(super) fn encode_uint(value: u32) -> Vec<u8> {
    OptionValueU32(value).into()
}

/// Encodes an empty message: no token, options or payload.
pub(super) fn empty_message(kind: MessageType, message_id: u16) -> Vec<u8> {
    let mut packet = Packet::new();
    packet.header.set_type(kind);
    packet.header.code = MessageClass::Empty;
    packet.header.message_id = message_id;
    packet.to_bytes_unlimited().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unknown_critical_options_are_refused() {
        let with = |number: u16| {
            let mut packet = Packet::new();
            packet.add_option(CoapOption::from(number), vec![1]);
            parse_request(&packet, &RequestType::Get).map(drop)
        };
        assert_eq!(with(35), Err(ResponseType::ProxyingNotSupported));
        for critical in [1, 5, 9, 19, 31, 2051] {
            assert_eq!(with(critical), Err(ResponseType::BadOption), "{critical}");
        }
        for elective in [4, 16, 60, 252, 258, 292, 2052] {
            assert_eq!(with(elective), Ok(()), "{elective}");
        }
        assert_eq!(
            parse_request(&Packet::new(), &RequestType::UnKnown).map(drop),
            Err(ResponseType::MethodNotAllowed)
        );
    }

    proptest! {
        #[test]
        fn arbitrary_datagrams_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(packet) = Packet::from_bytes(&bytes) {
                let _ = parse_request(&packet, &RequestType::Post);
                let _ = packet.to_bytes_unlimited();
            }
        }

        #[test]
        fn a_block_option_survives_encoding(number in 0u32..1 << 20, more: bool, exponent in 0u8..7) {
            let block = BlockOption { number, more, exponent };
            prop_assert_eq!(BlockOption::parse(&block.to_bytes()), Some(block));
        }
    }
}
