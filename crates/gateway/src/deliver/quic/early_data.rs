//! Which calls go in a connection's first flight. Pure.
//!
//! What is recorded and sent again is never run a second time (`contract/quic.md`). What remains is this: where no answer comes at all, nobody
//! knows whether the call ran. One that may run twice is then made again over TCP; any other goes early only where UDP is known to get
//! through.

use http::Method;
use nearpath_types::policy::ZeroRttPolicy;
use nearpath_wire::quic::EarlyData;

/// Decides for one call. `proven`: UDP got through on this machine before, and nothing says that it does not any more.
pub(super) fn select_early_data(
    setting: ZeroRttPolicy,
    method: &Method,
    udp_is_proven: bool,
) -> EarlyData {
    let is_allowed = match setting {
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

/// Whether a call to which no answer came can be made again: it was not sent, or may run twice (RFC 9110 section 9.2.2).
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
