//! What a call hands on to the calls that its handler makes: the deadline and the trace.

use nearpath_domain::clock::{self, Nanos};
use nearpath_domain::trace::Trace;
use nearpath_types::duration;

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

    /// For a call: the nearer of both deadlines, and the trace that its own fields name.
    pub(crate) fn narrowed(self, ask: &Ask) -> Self {
        let this = ask.context.unwrap_or(self).traced(ask.head.get("traceparent"));
        let own = ask.deadline.map(clock::within);
        let deadline = [own, Some(this.deadline).filter(|at| *at != 0)].into_iter().flatten().min();
        Self { deadline: deadline.unwrap_or(0), ..this }
    }

    /// From the field `traceparent`; one that is none is passed over.
    pub(crate) fn traced(self, field: Option<&[u8]>) -> Self {
        field.and_then(Trace::parse).map_or(self, |Trace { id, span }| Self { trace: id, span, ..self })
    }

    /// From the field `X-Timeout`: how long the caller waits; one that is none is passed over.
    pub(crate) fn limited(self, field: Option<&[u8]>) -> Self {
        let limit = field.and_then(|field| std::str::from_utf8(field).ok()).and_then(|text| duration::parse(text).ok());
        limit.filter(|limit| !limit.is_zero()).map_or(self, |limit| Self { deadline: clock::within(limit), ..self })
    }

    /// What is left, as the field `X-Timeout`: whole milliseconds, at least one; none without a deadline.
    pub(crate) fn timeout(&self) -> Option<String> {
        let left = || u64::try_from(clock::until(self.deadline).as_millis()).unwrap_or(u64::MAX).max(1);
        (self.deadline != 0).then(|| duration::format(std::time::Duration::from_millis(left())))
    }

    /// The fields with which a call over HTTP hands it on.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        let trace = self.traceparent().map(|trace| ("traceparent", trace));
        trace.into_iter().chain(self.timeout().map(|timeout| ("x-timeout", timeout)))
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
    fn the_trace_that_a_call_names_itself_holds() {
        let field = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let ask = Ask::default().header("traceparent", field).unwrap();
        let caller = Context { trace: [7; 16], span: [7; 8], ..Context::default() };
        assert_eq!(caller.narrowed(&ask).traceparent().as_deref(), Some(field));
        assert_eq!(caller.narrowed(&Ask::default()).trace, [7; 16]);
    }

    #[test]
    fn a_deadline_goes_in_and_out() {
        let limited = Context::default().limited(Some(b"1m30s"));
        let left = duration::parse(&limited.timeout().unwrap()).unwrap();
        assert!(left <= Duration::from_secs(90) && left > Duration::from_secs(60), "{left:?}");
        for none in [None, Some(&b"soon"[..]), Some(b"0s"), Some(b"\xff")] {
            assert_eq!(Context::default().limited(none).timeout(), None);
        }
        let over = Context { deadline: 1, ..Context::default() };
        assert_eq!(over.timeout().as_deref(), Some("1ms"), "0 would mean that there is no limit");
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
