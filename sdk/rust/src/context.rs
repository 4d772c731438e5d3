//! Context that a call passes on to the calls of its handler: deadline and trace.

use nearpath_domain::clock::{self, MonotonicNanos};
use nearpath_domain::trace::TraceContext;
use nearpath_types::duration;

tokio::task_local! {
    /// That of the call whose handler runs; what a handler spawns has none.
    pub(crate) static CONTEXT: CallContext;
}

/// Deadline and trace that a call passes on to the calls of its handler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CallContext {
    pub(crate) deadline: MonotonicNanos,
    pub(crate) trace: [u8; 16],
    pub(crate) span: [u8; 8],
}

impl CallContext {
    /// That of the running handler.
    pub(crate) fn current() -> Self {
        CONTEXT.try_with(|context| *context).unwrap_or_default()
    }

    /// From the field `traceparent`; one that is none is passed over.
    pub(crate) fn with_traceparent(self, field: Option<&[u8]>) -> Self {
        field
            .and_then(TraceContext::parse_traceparent)
            .map_or(self, |TraceContext { id, span }| Self {
                trace: id,
                span,
                ..self
            })
    }

    /// From the field `X-Timeout`: how long the caller waits; one that is none is passed over.
    pub(crate) fn with_timeout(self, field: Option<&[u8]>) -> Self {
        let limit = field
            .and_then(|field| std::str::from_utf8(field).ok())
            .and_then(|text| duration::parse_duration(text).ok());
        limit
            .filter(|limit| !limit.is_zero())
            .map_or(self, |limit| Self {
                deadline: clock::deadline_after(limit),
                ..self
            })
    }

    /// Formats the remaining time as `X-Timeout`: whole milliseconds, at least one; none without a deadline.
    pub(crate) fn timeout_field(&self) -> Option<String> {
        let left = || {
            u64::try_from(clock::time_until(self.deadline).as_millis())
                .unwrap_or(u64::MAX)
                .max(1)
        };
        (self.deadline != 0)
            .then(|| duration::format_duration(std::time::Duration::from_millis(left())))
    }

    /// Returns the fields that pass the context on over HTTP.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        let trace = self.traceparent().map(|trace| ("traceparent", trace));
        trace
            .into_iter()
            .chain(self.timeout_field().map(|timeout| ("x-timeout", timeout)))
    }

    /// As the field `traceparent`; none without a trace.
    pub(crate) fn traceparent(&self) -> Option<String> {
        (self.trace != [0; 16]).then(|| {
            TraceContext {
                id: self.trace,
                span: self.span,
            }
            .to_string()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::call_options::CallOptions;

    #[test]
    fn a_trace_is_parsed_and_propagated() {
        let field = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(
            CallContext::default()
                .with_traceparent(Some(field.as_bytes()))
                .traceparent()
                .as_deref(),
            Some(field)
        );
        assert_eq!(
            CallContext::default().with_traceparent(Some(b"00-0-0-01")),
            CallContext::default()
        );
    }

    #[test]
    fn an_explicit_traceparent_takes_precedence() {
        let field = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let ask = CallOptions::default().header("traceparent", field).unwrap();
        let caller = CallContext {
            trace: [7; 16],
            span: [7; 8],
            ..CallContext::default()
        };
        assert_eq!(
            caller.with_options(&ask).traceparent().as_deref(),
            Some(field)
        );
        assert_eq!(caller.with_options(&CallOptions::default()).trace, [7; 16]);
    }

    #[test]
    fn a_deadline_is_parsed_and_propagated() {
        let limited = CallContext::default().with_timeout(Some(b"1m30s"));
        let left = duration::parse_duration(&limited.timeout_field().unwrap()).unwrap();
        assert!(
            left <= Duration::from_secs(90) && left > Duration::from_secs(60),
            "{left:?}"
        );
        for none in [None, Some(&b"soon"[..]), Some(b"0s"), Some(b"\xff")] {
            assert_eq!(
                CallContext::default().with_timeout(none).timeout_field(),
                None
            );
        }
        let over = CallContext {
            deadline: 1,
            ..CallContext::default()
        };
        assert_eq!(
            over.timeout_field().as_deref(),
            Some("1ms"),
            "0 would mean that there is no limit"
        );
    }

    #[test]
    fn the_earlier_deadline_takes_precedence() {
        let (soon, late) = (
            CallOptions::default().deadline(Duration::from_secs(1)),
            CallOptions::default().deadline(Duration::from_secs(9)),
        );
        let caller = CallContext {
            deadline: clock::deadline_after(Duration::from_secs(5)),
            ..CallContext::default()
        };
        assert!(caller.with_options(&soon).deadline < caller.deadline);
        assert_eq!(caller.with_options(&late).deadline, caller.deadline);
        assert_eq!(
            CallContext::default()
                .with_options(&CallOptions::default())
                .deadline,
            0
        );
    }
}
