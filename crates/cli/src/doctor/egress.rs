//! How functions get outside here: which ways there are and why, what their connections keep, how many there can be.

use std::fs;

use nearpath_kernel::probe::{isolation, shortcut_possible};
use nearpath_kernel::sandbox::Isolation;

use super::Check;

/// Connections to one destination that a machine has ports for, below which it is worth a word.
const FEW_PORTS: u32 = 10_000;

pub(super) fn checks() -> Vec<Check> {
    let shortcut = shortcut_possible().map_err(|why| why.to_string());
    let setting = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    vec![
        ways(isolation(), shortcut),
        pauses(setting("tcp_congestion_control").trim(), setting("tcp_slow_start_after_idle").trim()),
        ports(&setting("ip_local_port_range")),
    ]
}

/// Which ways out there are.
fn ways(isolation: Isolation, shortcut: Result<(), String>) -> Check {
    let name = "egress";
    match (isolation, shortcut) {
        (Isolation::None, _) => {
            let lost =
                "`egress` is not enforced: functions reach what the machine reaches, and nothing is kept warm for them";
            Check::lost(name, "no way of its own", lost, "run as root or allow user namespaces (see `isolation`)")
        }
        (_, Ok(())) => Check::ok(name, "the exit for all; for plain TCP the shortcut, which spares its hop"),
        (_, Err(why)) => {
            let lost = "plain TCP has the node's hop, as all other protocols do";
            let advice = "see `warm sockets in the place of a function's own`";
            Check::warn(name, format!("the exit alone; no shortcut: {why}"), lost, advice)
        }
    }
}

/// Whether a connection that was used keeps its window until it is used again. BBR does not take it back (`cong_control` in `net/ipv4/tcp_output.c`).
fn pauses(algorithm: &str, slow: &str) -> Check {
    let name = "windows after a pause";
    match (algorithm, slow) {
        (_, "0") => Check::ok(name, "kept (tcp_slow_start_after_idle=0)"),
        (kept, _) if kept.starts_with("bbr") => Check::ok(name, format!("kept, by {kept}")),
        (algorithm, _) => {
            let lost = "a connection to a database that nobody used for a moment sends as slowly at first as a new one";
            let advice = "`sysctl -w net.ipv4.tcp_slow_start_after_idle=0` as root, for all of this machine; or tcp_congestion_control=bbr";
            Check::warn(name, format!("taken back, by {algorithm}"), lost, advice)
        }
    }
}

/// How many connections to one destination there can be.
fn ports(range: &str) -> Check {
    let name = "local ports";
    let mut ends = range.split_whitespace().filter_map(|port| port.parse::<u32>().ok());
    let count = ends.next().zip(ends.next()).map_or(0, |(first, last)| (last + 1).saturating_sub(first));
    let found = format!("{count} for each destination");
    match count >= FEW_PORTS {
        true => Check::ok(name, found),
        false => {
            let lost =
                "more connections at a time to one destination fail, those that ended within the last minute counted";
            Check::warn(name, found, lost, "`sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"` as root")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn the_ways_out_are_told_with_the_reason() {
        let both = ways(Isolation::Root, Ok(()));
        assert!(both.verdict == Verdict::Ok && both.found.contains("shortcut"), "{both:?}");
        let one = ways(Isolation::UserNamespace, Err("not as an ordinary user".into()));
        assert_eq!(one.verdict, Verdict::Warn);
        assert!(one.found.contains("exit alone") && one.found.contains("ordinary user"), "{one:?}");
        assert_eq!(ways(Isolation::None, Ok(())).verdict, Verdict::Lost);
    }

    #[test]
    fn windows_are_kept_by_the_algorithm_or_by_the_setting() {
        assert_eq!(pauses("bbr", "1").verdict, Verdict::Ok);
        assert_eq!(pauses("cubic", "0").verdict, Verdict::Ok);
        let lost = pauses("cubic", "1");
        assert!(lost.advice.unwrap().contains("tcp_slow_start_after_idle=0"));
    }

    #[test]
    fn few_ports_are_told() {
        assert_eq!(ports("32768\t60999\n").verdict, Verdict::Ok);
        let few = ports("50000 50099");
        assert_eq!((few.verdict, few.found.as_str()), (Verdict::Warn, "100 for each destination"));
        assert_eq!(ports("").verdict, Verdict::Warn);
    }
}
