//! What a CoAP message says, read from and written to `coap-lite`'s packets.

use coap_lite::option_value::{OptionValueU16, OptionValueU32};
use coap_lite::{CoapOption, MessageClass, MessageType, Packet, RequestType, ResponseType};
use http::Method;

/// RFC 9175.
pub(super) const ECHO: CoapOption = CoapOption::Unknown(252);
/// RFC 9175: elective, and part of what tells uploads apart.
const REQUEST_TAG: CoapOption = CoapOption::Unknown(292);

/// A block of a transfer (RFC 7959). `coap-lite`'s own type has room for 12 of the 20 bits of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub number: u32,
    pub more: bool,
    /// 0 to 6: blocks of 16 to 1024 bytes.
    pub exponent: u8,
}

impl Block {
    /// Reads an option's value. `None`: longer than three bytes, or with the reserved size.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        if value.len() > 3 {
            return None;
        }
        let all = OptionValueU32::try_from(value.to_vec()).ok()?.0;
        let block = Self { number: all >> 4, more: all & 8 != 0, exponent: (all & 7) as u8 };
        (block.exponent < 7).then_some(block)
    }

    pub(super) fn value(self) -> Vec<u8> {
        let more = u32::from(self.more) << 3;
        OptionValueU32(self.number << 4 | more | u32::from(self.exponent)).into()
    }

    pub(super) fn size(self) -> usize {
        16 << self.exponent
    }

    /// Where it begins in the whole body.
    pub(super) fn offset(self) -> usize {
        self.number as usize * self.size()
    }
}

/// What is asked for, apart from how it is transferred.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Wanted {
    pub method: Method,
    /// RFC 8132's FETCH, which HTTP lacks: `method` is POST.
    pub fetch: bool,
    pub path: Vec<String>,
    pub query: Vec<String>,
    pub format: Option<u16>,
    pub accept: Option<u16>,
}

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub wanted: Wanted,
    pub tag: Vec<u8>,
    /// `Some(true)`: to observe; `Some(false)`: no longer.
    pub observe: Option<bool>,
    pub block1: Option<Block>,
    pub block2: Option<Block>,
    pub echo: Option<Vec<u8>>,
    pub payload: Vec<u8>,
}

/// Reads a request.
///
/// # Errors
/// How to refuse it.
pub(super) fn read(packet: &Packet, request: &RequestType) -> Result<Request, ResponseType> {
    let (method, fetch) = method(request).ok_or(ResponseType::MethodNotAllowed)?;
    check_options(packet)?;
    let block = |option| match packet.get_first_option(option) {
        Some(value) => Block::read(value).map(Some).ok_or(ResponseType::BadRequest),
        None => Ok(None),
    };
    let observe = match packet.get_first_option(CoapOption::Observe).map(Vec::as_slice) {
        Some([] | [0]) => Some(true),
        Some([1]) => Some(false),
        _ => None,
    };
    let path = texts(packet, CoapOption::UriPath)?;
    if path.iter().any(|segment| matches!(segment.as_str(), "." | "..")) {
        return Err(ResponseType::BadRequest);
    }
    let (format, accept) = (number(packet, CoapOption::ContentFormat)?, number(packet, CoapOption::Accept)?);
    let query = texts(packet, CoapOption::UriQuery)?;
    Ok(Request {
        wanted: Wanted { method, fetch, path, query, format, accept },
        tag: packet.get_first_option(REQUEST_TAG).cloned().unwrap_or_default(),
        observe,
        block1: block(CoapOption::Block1)?,
        block2: block(CoapOption::Block2)?,
        echo: packet.get_first_option(ECHO).cloned(),
        payload: packet.payload.clone(),
    })
}

fn method(request: &RequestType) -> Option<(Method, bool)> {
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

/// An option with an odd number that is not understood must not be passed over (RFC 7252 section 5.4.1).
fn check_options(packet: &Packet) -> Result<(), ResponseType> {
    use CoapOption as O;
    for (number, _) in packet.options() {
        match O::from(*number) {
            O::ProxyUri | O::ProxyScheme => return Err(ResponseType::ProxyingNotSupported),
            O::UriHost | O::UriPort | O::UriPath | O::UriQuery | O::Accept | O::Block1 | O::Block2 => {}
            _ if number % 2 == 1 => return Err(ResponseType::BadOption),
            _ => {}
        }
    }
    Ok(())
}

fn texts(packet: &Packet, option: CoapOption) -> Result<Vec<String>, ResponseType> {
    let values = packet.get_option(option).into_iter().flatten();
    values.map(|value| String::from_utf8(value.clone()).map_err(|_| ResponseType::BadOption)).collect()
}

fn number(packet: &Packet, option: CoapOption) -> Result<Option<u16>, ResponseType> {
    let Some(value) = packet.get_first_option(option) else { return Ok(None) };
    if value.len() > 2 {
        return Err(ResponseType::BadOption);
    }
    OptionValueU16::try_from(value.clone()).map(|value| Some(value.0)).map_err(|_| ResponseType::BadOption)
}

/// A number as an option's value, as short as it can be.
pub(super) fn uint(value: u32) -> Vec<u8> {
    OptionValueU32(value).into()
}

/// A message of that type without token, options and payload.
pub(super) fn empty(kind: MessageType, message_id: u16) -> Vec<u8> {
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
    fn what_may_not_be_passed_over_is_refused() {
        let with = |number: u16| {
            let mut packet = Packet::new();
            packet.add_option(CoapOption::from(number), vec![1]);
            read(&packet, &RequestType::Get).map(drop)
        };
        assert_eq!(with(35), Err(ResponseType::ProxyingNotSupported));
        for critical in [1, 5, 9, 19, 31, 2051] {
            assert_eq!(with(critical), Err(ResponseType::BadOption), "{critical}");
        }
        for elective in [4, 16, 60, 252, 258, 292, 2052] {
            assert_eq!(with(elective), Ok(()), "{elective}");
        }
        assert_eq!(read(&Packet::new(), &RequestType::UnKnown).map(drop), Err(ResponseType::MethodNotAllowed));
    }

    proptest! {
        #[test]
        fn any_datagram_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(packet) = Packet::from_bytes(&bytes) {
                let _ = read(&packet, &RequestType::Post);
                let _ = packet.to_bytes_unlimited();
            }
        }

        #[test]
        fn a_block_is_what_was_written(number in 0u32..1 << 20, more: bool, exponent in 0u8..7) {
            let block = Block { number, more, exponent };
            prop_assert_eq!(Block::read(&block.value()), Some(block));
        }
    }
}
