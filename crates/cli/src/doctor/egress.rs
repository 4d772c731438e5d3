//! Connections of functions to destinations outside: their paths, their congestion windows, and the
//! number of local ports.

use std::fs;

use nearpath_kernel::probe::{best_isolation, check_interception_support};
use nearpath_kernel::sandbox::IsolationLevel;

use super::Check;

/// Fewer local ports than this limit the connections to one destination noticeably; Linux has 28232
/// by default.
const FEW_PORTS: u32 = 10_000;

pub(super) fn checks() -> Vec<Check> {
    let interception = check_interception_support().map_err(|why| why.to_string());
    // A file that cannot be read becomes an empty text, which matches no good value.
    let setting =
        |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    vec![
        egress_check(best_isolation(), interception),
        idle_window_check(
            setting("tcp_congestion_control").trim(),
            setting("tcp_slow_start_after_idle").trim(),
        ),
        local_port_check(&setting("ip_local_port_range")),
    ]
}

/// Checks whether the egress proxy enforces declarations, and whether socket interception avoids
/// its hop.
fn egress_check(isolation: IsolationLevel, interception: Result<(), String>) -> Check {
    let name = "egress";
    match (isolation, interception) {
        (IsolationLevel::None, _) => {
            let effect = "`egress` is not enforced: functions reach every address this machine reaches, and no connection is kept warm for them";
            Check::fail(
                name,
                "no egress proxy",
                effect,
                "run as root or allow user namespaces (see `isolation`)",
            )
        }
        (_, Ok(())) => Check::ok(
            name,
            "egress proxy for all protocols; socket interception avoids its hop for plain TCP",
        ),
        (_, Err(why)) => {
            let effect = "plain TCP passes the node's proxy, as all other protocols do";
            let remedy = "see the kernel features above";
            Check::warn(
                name,
                format!("egress proxy alone; no socket interception: {why}"),
                effect,
                remedy,
            )
        }
    }
}

/// Checks whether an idle connection keeps its congestion window.
fn idle_window_check(algorithm: &str, slow_start_after_idle: &str) -> Check {
    let name = "congestion window after idle";
    match (algorithm, slow_start_after_idle) {
        // net.ipv4.tcp_slow_start_after_idle, Documentation/networking/ip-sysctl.rst.
        (_, "0") => Check::ok(name, "kept (tcp_slow_start_after_idle=0)"),
        // BBR sets the window itself (`cong_control` in net/ipv4/tcp_output.c) and does not reset
        // it when idle.
        (bbr, _) if bbr.starts_with("bbr") => Check::ok(name, format!("kept, by {bbr}")),
        (algorithm, _) => {
            let effect =
                "after an idle time, a connection to a database sends as slowly as a new one";
            let remedy = "`sysctl -w net.ipv4.tcp_slow_start_after_idle=0` as root, for the whole machine; or tcp_congestion_control=bbr";
            Check::warn(name, format!("reset, by {algorithm}"), effect, remedy)
        }
    }
}

/// Checks the number of local ports, which bounds the connections to one destination.
fn local_port_check(range: &str) -> Check {
    let name = "local ports";
    let mut ends = range
        .split_whitespace()
        .filter_map(|port| port.parse::<u32>().ok());
    let count = ends
        .next()
        .zip(ends.next())
        // Both ends of the range are usable, hence the 1.
        .map_or(0, |(first, last)| (last + 1).saturating_sub(first));
    let found = format!("{count} for each destination");
    match count >= FEW_PORTS {
        true => Check::ok(name, found),
        false => {
            // Closed connections count as well while they are in TIME_WAIT.
            let effect = "further connections to one destination fail, counting those that ended within the last minute";
            let remedy = "`sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"` as root";
            Check::warn(name, found, effect, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckStatus;

    #[test]
    fn missing_interception_is_reported_with_its_reason() {
        let both = egress_check(IsolationLevel::Root, Ok(()));
        assert!(
            both.status == CheckStatus::Ok && both.found.contains("socket interception"),
            "{both:?}"
        );
        let proxy = egress_check(
            IsolationLevel::UserNamespace,
            Err("not as an ordinary user".into()),
        );
        assert_eq!(proxy.status, CheckStatus::Warn);
        assert!(
            proxy.found.contains("proxy alone") && proxy.found.contains("ordinary user"),
            "{proxy:?}"
        );
        assert_eq!(
            egress_check(IsolationLevel::None, Ok(())).status,
            CheckStatus::Fail
        );
    }

    #[test]
    fn windows_are_kept_by_the_algorithm_or_by_the_setting() {
        assert_eq!(idle_window_check("bbr", "1").status, CheckStatus::Ok);
        assert_eq!(idle_window_check("cubic", "0").status, CheckStatus::Ok);
        let reset = idle_window_check("cubic", "1");
        assert!(
            reset
                .remedy
                .unwrap()
                .contains("tcp_slow_start_after_idle=0")
        );
    }

    #[test]
    fn few_ports_are_reported() {
        assert_eq!(local_port_check("32768\t60999\n").status, CheckStatus::Ok);
        let few = local_port_check("50000 50099");
        assert_eq!(
            (few.status, few.found.as_str()),
            (CheckStatus::Warn, "100 for each destination")
        );
        assert_eq!(local_port_check("").status, CheckStatus::Warn);
    }
}
