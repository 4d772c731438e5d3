//! Choice of the calls that go in a connection's first flight (0-RTT). A pure function.
//!
//! A replayed first flight never runs twice (`contract/quic.md`). One doubt remains: without any
//! answer, it is unknown whether the call ran. An idempotent call is then repeated over TCP. Any
//! other call goes early only if UDP is known to work.

use http::Method;
use nearpath_types::policy::ZeroRttPolicy;
use nearpath_wire::quic::EarlyData;

/// Decides for one call. `udp_is_proven`: UDP worked on this machine before, and no failure
/// contradicts it since.
pub(super) fn select_early_data(
    setting: ZeroRttPolicy,
    method: &Method,
    udp_is_proven: bool,
) -> EarlyData {
    let is_allowed = match setting {
        // Without proof, a blocked return path would leave a POST in doubt, which cannot be
        // repeated.
        ZeroRttPolicy::Always => udp_is_proven || method.is_idempotent(),
        ZeroRttPolicy::Idempotent => method.is_idempotent(),
        ZeroRttPolicy::Never => false,
    };
    if is_allowed {
        EarlyData::Allowed
    } else {
        EarlyData::Never
    }
}

/// Returns whether an unanswered call can be repeated: it was not sent early, or is idempotent
/// (RFC 9110 section 9.2.2).
pub(super) fn is_repeatable(early: EarlyData, method: &Method) -> bool {
    early == EarlyData::Never || method.is_idempotent()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_its_methods() {
        let (yes, no) = (EarlyData::Allowed, EarlyData::Never);
        for (setting, udp_is_proven, get, post) in [
            (ZeroRttPolicy::Always, true, yes, yes),
            (ZeroRttPolicy::Always, false, yes, no),
            (ZeroRttPolicy::Idempotent, true, yes, no),
            (ZeroRttPolicy::Idempotent, false, yes, no),
            (ZeroRttPolicy::Never, true, no, no),
        ] {
            let of = |method| select_early_data(setting, &method, udp_is_proven);
            assert_eq!(
                (of(Method::GET), of(Method::POST)),
                (get, post),
                "{setting:?} {udp_is_proven}"
            );
            assert_eq!(
                (of(Method::DELETE), of(Method::PATCH)),
                (get, post),
                "{setting:?} {udp_is_proven}"
            );
        }
    }

    #[test]
    fn an_early_call_is_repeated_only_if_it_is_idempotent() {
        assert!(
            is_repeatable(EarlyData::Allowed, &Method::PUT)
                && !is_repeatable(EarlyData::Allowed, &Method::POST)
        );
        assert!(is_repeatable(EarlyData::Never, &Method::POST));
    }
}
