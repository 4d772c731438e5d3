//! The header `x-nearpath-not-run`, with which a watchdog reports over HTTP that a call has not
//! run, so that another instance may run it.
//!
//! In shared memory and over QUIC the response's opening reports it. Over HTTP it is a header that
//! only watchdogs can set: the watchdog removes it from its tenant's responses, the gateway from
//! responses to its callers. A tenant that forwards such a response reports nothing about its own
//! call.

use http::{HeaderMap, HeaderName, HeaderValue};
use nearpath_types::Reason;

/// Name of the header. Its value is the name of a reason.
pub const NOT_RUN: HeaderName = HeaderName::from_static("x-nearpath-not-run");

/// Sets the header to `reason`; `None` removes it, because the tenant responded.
pub fn set_not_run(headers: &mut HeaderMap, reason: Option<Reason>) {
    match reason {
        // `insert` replaces all values, so a tenant cannot add one of its own.
        Some(reason) => drop(headers.insert(NOT_RUN, HeaderValue::from_static(reason.name()))),
        None => drop(headers.remove(NOT_RUN)),
    }
}

/// Removes the header and returns the reason.
pub fn take_not_run(headers: &mut HeaderMap) -> Option<Reason> {
    // Removed in any case: an unknown value must not reach the caller either.
    let value = headers.remove(NOT_RUN)?;
    parse_reason(value.as_bytes())
}

/// Parses a value of the header.
pub fn parse_reason(value: &[u8]) -> Option<Reason> {
    let mut all = Reason::ALL.iter().copied();
    all.find(|reason| reason.name().as_bytes() == value)
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
