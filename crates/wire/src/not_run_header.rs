//! How a watchdog says over HTTP that a call has not run, so that another instance may.
//!
//! In memory and over QUIC there is a place for it beside the head; HTTP has none. So it is a header that nobody else can write: the watchdog takes it out of what
//! its tenant answers, the gateway out of what its callers see. A tenant that passes on a refusal which it met itself says nothing of its own call.

use http::{HeaderMap, HeaderName, HeaderValue};
use nearpath_types::Reason;

/// See the module's text. Its value is a reason's name.
pub const NOT_RUN: HeaderName = HeaderName::from_static("x-nearpath-not-run");

/// Says in an answer's head that the call has not run, for this reason; nothing: that the tenant answers.
pub fn set_not_run(headers: &mut HeaderMap, reason: Option<Reason>) {
    match reason {
        Some(reason) => drop(headers.insert(NOT_RUN, HeaderValue::from_static(reason.name()))),
        None => drop(headers.remove(NOT_RUN)),
    }
}

/// Takes the mark out again: why the call has not run.
pub fn take_not_run(headers: &mut HeaderMap) -> Option<Reason> {
    let value = headers.remove(NOT_RUN)?;
    Reason::ALL
        .iter()
        .copied()
        .find(|reason| reason.name().as_bytes() == value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_value_counts_and_is_removed() {
        let mut headers = HeaderMap::from_iter([(NOT_RUN, HeaderValue::from_static("draining"))]);
        set_not_run(&mut headers, None);
        assert_eq!(take_not_run(&mut headers), None, "a tenant's");
        headers.append(NOT_RUN, HeaderValue::from_static("draining"));
        headers.append(NOT_RUN, HeaderValue::from_static("nonsense"));
        set_not_run(&mut headers, Some(Reason::ConnectFailed));
        assert_eq!(
            (take_not_run(&mut headers), take_not_run(&mut headers)),
            (Some(Reason::ConnectFailed), None)
        );
        headers.insert(NOT_RUN, HeaderValue::from_static("nonsense"));
        assert_eq!((take_not_run(&mut headers), headers.len()), (None, 0));
    }
}
