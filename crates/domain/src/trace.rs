//! Trace context of a call, in two forms. The header `traceparent` follows W3C Trace Context,
//! section 3.2. The envelope has 24 bytes (`contract/memory.md`). Pure.

use std::fmt;

use crate::endpoint::IncomingCall;

/// Name of the header, and of the head field.
pub const TRACEPARENT: &str = "traceparent";

/// Bytes of a `traceparent` of version 00.
const TRACEPARENT_BYTES: usize = 55;

/// Trace id and parent span of a call. Displays as a sampled `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// Id of the trace.
    pub id: [u8; 16],
    /// Span id of the caller.
    pub span: [u8; 8],
}

impl TraceContext {
    /// Parses a `traceparent`; none where the standard requires to ignore it.
    pub fn parse_traceparent(text: &[u8]) -> Option<Self> {
        let known = text.get(..TRACEPARENT_BYTES)?;
        // W3C Trace Context, section 3.2.2: version ff is invalid, later ones are read as far as
        // known.
        let version: [u8; 1] = parse_hex(&known[..2])?;
        let whole = match (version[0], text.get(TRACEPARENT_BYTES)) {
            (0xff, _) => false,
            (0, more) => more.is_none(),
            (_, more) => more.is_none_or(|byte| *byte == b'-'), // later versions append fields
        };
        let dashes = [2, 35, 52].iter().all(|&at| known[at] == b'-');
        let _flags: [u8; 1] = parse_hex(&known[53..])?;
        let trace = Self {
            id: parse_hex(&known[3..35])?,
            span: parse_hex(&known[36..52])?,
        };
        (whole && dashes && trace.id != [0; 16] && trace.span != [0; 8]).then_some(trace)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.id
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-01")
    }
}

impl IncomingCall {
    /// Returns the `traceparent` of the call: the field as received, or one built from the
    /// envelope.
    pub fn traceparent(&self) -> Option<String> {
        // The field first: it also has the flags, which the envelope lacks.
        let field = self
            .head_fields()
            .get(TRACEPARENT)
            .filter(|text| TraceContext::parse_traceparent(text).is_some());
        let field = field
            .and_then(|text| std::str::from_utf8(text).ok())
            .map(str::to_owned);
        let envelope = (self.trace != [0; 16]).then(|| {
            TraceContext {
                id: self.trace,
                span: self.span,
            }
            .to_string()
        });
        field.or(envelope)
    }
}

/// Parses lower-case hexadecimal digits.
fn parse_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
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
    fn the_example_of_the_standard_is_parsed_and_written() {
        let trace = TraceContext::parse_traceparent(EXAMPLE.as_bytes()).unwrap();
        assert_eq!(
            (trace.id[0], trace.id[15], trace.span[0], trace.span[7]),
            (0x0a, 0x9c, 0xb7, 0x31)
        );
        assert_eq!(trace.to_string(), EXAMPLE);
        let later = format!("cc{}-what-follows", &EXAMPLE[2..]);
        assert_eq!(
            TraceContext::parse_traceparent(later.as_bytes()),
            Some(trace),
            "a later version"
        );
    }

    #[test]
    fn a_traceparent_that_the_standard_forbids_is_ignored() {
        let zero_id = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        let (upper, version) = (EXAMPLE.to_uppercase(), format!("ff{}", &EXAMPLE[2..]));
        let (longer, apart) = (format!("{EXAMPLE}-x"), EXAMPLE.replace('-', "_"));
        for bad in [
            "",
            "00-1-2-01",
            &EXAMPLE[..54],
            &zero_id,
            &zero_span,
            &upper,
            &version,
            &longer,
            &apart,
        ] {
            assert_eq!(
                TraceContext::parse_traceparent(bad.as_bytes()),
                None,
                "{bad}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_trace_context_survives_writing_and_parsing(id in any::<[u8; 16]>(), span in any::<[u8; 8]>()) {
            prop_assume!(id != [0; 16] && span != [0; 8]);
            let trace = TraceContext { id, span };
            prop_assert_eq!(TraceContext::parse_traceparent(trace.to_string().as_bytes()), Some(trace));
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes: Vec<u8>) {
            let _ = TraceContext::parse_traceparent(&bytes);
        }
    }
}
