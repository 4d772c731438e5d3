//! The trace that a call belongs to, between its two forms: the header `traceparent` (W3C Trace Context, section 3.2) and the
//! 24 bytes in the envelope (`contract/memory.md`). Pure.

use std::fmt;

use crate::post::Incoming;

/// Name of the header, and of the field in a head.
pub const TRACEPARENT: &str = "traceparent";

/// Bytes of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// Who traces, and which of its spans made the call. Displays as a `traceparent`, sampled: who is not wants no trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// The whole trace.
    pub id: [u8; 16],
    /// The caller's span.
    pub span: [u8; 8],
}

impl Trace {
    /// Reads a `traceparent`. `None` where the standard says that it is to be passed over.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let known = text.get(..LENGTH)?;
        let version: [u8; 1] = hex(&known[..2])?;
        let whole = match (version[0], text.get(LENGTH)) {
            (0xff, _) => false,
            (0, more) => more.is_none(),
            (_, more) => more.is_none_or(|byte| *byte == b'-'), // later versions add fields at the end
        };
        let dashes = [2, 35, 52].iter().all(|&at| known[at] == b'-');
        let _flags: [u8; 1] = hex(&known[53..])?;
        let trace = Self { id: hex(&known[3..35])?, span: hex(&known[36..52])? };
        (whole && dashes && trace.id != [0; 16] && trace.span != [0; 8]).then_some(trace)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-01")
    }
}

impl Incoming {
    /// The call's `traceparent` for whoever goes on tracing: the field as it came, else what the envelope says.
    pub fn traceparent(&self) -> Option<String> {
        let field = self.fields().get(TRACEPARENT).filter(|text| Trace::parse(text).is_some());
        let field = field.and_then(|text| std::str::from_utf8(text).ok()).map(str::to_owned);
        let envelope = (self.trace != [0; 16]).then(|| Trace { id: self.trace, span: self.span }.to_string());
        field.or(envelope)
    }
}

/// Lower-case hexadecimal digits.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn the_standards_example_is_read_and_written() {
        let trace = Trace::parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!((trace.id[0], trace.id[15], trace.span[0], trace.span[7]), (0x0a, 0x9c, 0xb7, 0x31));
        assert_eq!(trace.to_string(), EXAMPLE);
        let later = format!("cc{}-what-follows", &EXAMPLE[2..]);
        assert_eq!(Trace::parse(later.as_bytes()), Some(trace), "a later version");
    }

    #[test]
    fn what_the_standard_forbids_is_passed_over() {
        let zero_id = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        let (upper, version) = (EXAMPLE.to_uppercase(), format!("ff{}", &EXAMPLE[2..]));
        let (longer, apart) = (format!("{EXAMPLE}-x"), EXAMPLE.replace('-', "_"));
        for bad in ["", "00-1-2-01", &EXAMPLE[..54], &zero_id, &zero_span, &upper, &version, &longer, &apart] {
            assert_eq!(Trace::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_trace_survives(id in any::<[u8; 16]>(), span in any::<[u8; 8]>()) {
            prop_assume!(id != [0; 16] && span != [0; 8]);
            let trace = Trace { id, span };
            prop_assert_eq!(Trace::parse(trace.to_string().as_bytes()), Some(trace));
        }

        #[test]
        fn any_bytes_are_answered(bytes: Vec<u8>) {
            let _ = Trace::parse(&bytes);
        }
    }
}
