//! What a call hands on to the calls that its handler makes: the deadline and the trace.

use nearpath_domain::clock::{self, Nanos};
use nearpath_domain::trace::Trace;

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
        let this = ask.context.unwrap_or(self);
        let own = ask.deadline.map(clock::within);
        let deadline = [own, Some(this.deadline).filter(|at| *at != 0)].into_iter().flatten().min();
        Self { deadline: deadline.unwrap_or(0), ..this }
    }

    /// From the field `traceparent`; one that is none is passed over.
    pub(crate) fn traced(self, field: Option<&[u8]>) -> Self {
        field.and_then(Trace::parse).map_or(self, |Trace { id, span }| Self { trace: id, span, ..self })
    }

    /// As the field `traceparent`; none without a trace.
    pub(crate) fn traceparent(&self) -> Option<String> {
        (self.trace != [0; 16]).then(|| Trace { id: self.trace, span: self.span }.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_trace_goes_in_and_out() {
        let field = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(Context::default().traced(Some(field.as_bytes())).traceparent().as_deref(), Some(field));
        assert_eq!(Context::default().traced(Some(b"00-0-0-01")), Context::default());
    }

    #[test]
    fn the_nearer_deadline_holds() {
        let (soon, late) =
            (Ask::default().deadline(Duration::from_secs(1)), Ask::default().deadline(Duration::from_secs(9)));
        let caller = Context { deadline: clock::within(Duration::from_secs(5)), ..Context::default() };
        assert!(caller.narrowed(&soon).deadline < caller.deadline);
        assert_eq!(caller.narrowed(&late).deadline, caller.deadline);
        assert_eq!(Context::default().narrowed(&Ask::default()).deadline, 0);
    }
}
