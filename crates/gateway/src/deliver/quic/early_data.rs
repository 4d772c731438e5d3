//! Which calls go in a connection's first flight. Pure.
//!
//! What is recorded and sent again is never run a second time (`contract/quic.md`). What remains is this: where no answer comes at all, nobody
//! knows whether the call ran. One that may run twice is then made again over TCP; any other goes early only where UDP is known to get
//! through.

use http::Method;
use nearpath_types::policy::ZeroRtt;
use nearpath_wire::quic::Early;

/// Decides for one call. `proven`: UDP got through on this machine before, and nothing says that it does not any more.
pub(super) fn early(setting: ZeroRtt, method: &Method, proven: bool) -> Early {
    let allowed = match setting {
        ZeroRtt::Always => proven || method.is_idempotent(),
        ZeroRtt::Idempotent => method.is_idempotent(),
        ZeroRtt::Never => false,
    };
    if allowed { Early::Allowed } else { Early::Never }
}

/// Whether a call to which no answer came can be made again: it was not sent, or may run twice (RFC 9110 section 9.2.2).
pub(super) fn repeatable(early: Early, method: &Method) -> bool {
    early == Early::Never || method.is_idempotent()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_its_methods() {
        let (yes, no) = (Early::Allowed, Early::Never);
        for (setting, proven, get, post) in [
            (ZeroRtt::Always, true, yes, yes),
            (ZeroRtt::Always, false, yes, no),
            (ZeroRtt::Idempotent, true, yes, no),
            (ZeroRtt::Idempotent, false, yes, no),
            (ZeroRtt::Never, true, no, no),
        ] {
            let of = |method| early(setting, &method, proven);
            assert_eq!((of(Method::GET), of(Method::POST)), (get, post), "{setting:?} {proven}");
            assert_eq!((of(Method::DELETE), of(Method::PATCH)), (get, post), "{setting:?} {proven}");
        }
    }

    #[test]
    fn what_went_early_is_made_again_only_when_it_may_run_twice() {
        assert!(repeatable(Early::Allowed, &Method::PUT) && !repeatable(Early::Allowed, &Method::POST));
        assert!(repeatable(Early::Never, &Method::POST));
    }
}
