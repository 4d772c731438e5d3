//! What a call hands on to the calls that its handler makes: the deadline and the trace.

use nearpath_domain::clock::{self, Nanos};

use crate::ask::Ask;

tokio::task_local! {
    /// That of the call whose handler runs; what a handler spawns has none.
    pub(crate) static CONTEXT: Context;
}

/// See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) deadline: Nanos,
    pub(crate) trace: [u8; 16],
    pub(crate) span: [u8; 8],
}

impl Context {
    /// That of the running handler.
    pub(crate) fn current() -> Self {
        CONTEXT.try_with(|context| *context).unwrap_or_default()
    }

    /// For a call: the nearer of both deadlines.
    pub(crate) fn narrowed(self, ask: &Ask) -> Self {
        let own = ask.deadline.map(clock::within);
        let deadline = [own, Some(self.deadline).filter(|at| *at != 0)].into_iter().flatten().min();
        Self { deadline: deadline.unwrap_or(0), ..self }
    }

    /// From the field of W3C Trace Context, level 1; a field that is none is passed over.
    pub(crate) fn traced(self, field: Option<&[u8]>) -> Self {
        field.and_then(read).map_or(self, |(trace, span)| Self { trace, span, ..self })
    }

    /// As the field `traceparent`; none without a trace.
    pub(crate) fn traceparent(&self) -> Option<String> {
        (self.trace != [0; 16]).then(|| format!("00-{}-{}-01", hex(&self.trace), hex(&self.span)))
    }
}

fn read(field: &[u8]) -> Option<([u8; 16], [u8; 8])> {
    let text = std::str::from_utf8(field).ok()?;
    let mut parts = text.split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    (version.len() == 2 && version != "ff").then_some(())?;
    Some((unhex(trace)?, unhex(span)?))
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.len() == 2 * N && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    digits.then_some(())?;
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    (bytes != [0; N]).then_some(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_goes_in_and_out() {
        let field = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = Context::default().traced(Some(field.as_bytes()));
        assert_eq!(context.traceparent().as_deref(), Some(field));
    }

    #[test]
    fn what_is_no_trace_is_passed_over() {
        for field in ["", "00-0-0-01", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-x"] {
            assert_eq!(Context::default().traced(Some(field.as_bytes())), Context::default(), "{field}");
        }
        let none = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        assert_eq!(Context::default().traced(Some(none.as_bytes())), Context::default());
    }
}
