//! Goals from the published system, and our own.

use super::NetworkPlace;
use super::apps::VIA_GATEWAY_SUFFIX;
use crate::compare::{BenchComparison, BetterDirection, RatioGoal, ReportRow};
use crate::remote::RemoteTransport;

const EARLY_VARIANT: &str = "quic 0-rtt";
/// Smallest saving of the published system in chains with a database, relative to the total time.
const RETAIL_GOAL: f64 = 0.86;

/// Adds the goals of the measured cases.
pub(super) fn add_goals(comparison: &mut BenchComparison, chain_delay: NetworkPlace) {
    for (case, goals) in new_connection_goals(chain_delay) {
        add_ratio_goals(comparison, &case, EARLY_VARIANT, &goals);
    }
    for chain in ["f3-f4-f5-f6", "f8-f9-f10-f11", "f12-f13-f14-f15"] {
        let case = format!("app retail chain {chain}, 0.5 ms");
        let goals = [
            (RemoteTransport::Tls12, RETAIL_GOAL),
            (RemoteTransport::Tls12Server, RETAIL_GOAL),
        ];
        add_ratio_goals(comparison, &case, EARLY_VARIANT, &goals);
        add_gateway_goals(comparison, &case);
    }
    add_ratio_goals(
        comparison,
        "GET, new connection, 0 ms",
        RemoteTransport::QuicReady.name(),
        &[(RemoteTransport::Tls13, 0.5)],
    );
    for callers in [1, 32] {
        add_ratio_goals(
            comparison,
            &format!("GET, continuous {callers}, 0.5 ms"),
            RemoteTransport::Quic.name(),
            &[(RemoteTransport::Tls13, 1.0)],
        );
        add_cpu_goal(comparison, &format!("GET, continuous {callers}, loopback"));
    }
}

type CaseGoals = (String, Vec<(RemoteTransport, f64)>);

/// Returns the goals of the first call on a new connection, with early data.
fn new_connection_goals(chain_delay: NetworkPlace) -> Vec<CaseGoals> {
    use RemoteTransport::{Tcp, Tls12, Tls12Server, Tls13, Tls13Server};
    let post = vec![(Tls12, 0.55), (Tls13, 0.70), (Tcp, 1.0)];
    // The published system's other side shows no certificate.
    let get = [&post[..], &[(Tls12Server, 0.55), (Tls13Server, 0.70)]].concat();
    [
        ("GET, new connection, 0.5 ms", get),
        ("POST, new connection, 0.5 ms", post),
        ("first call to a worker, 0.5 ms", vec![(Tls12, 0.55)]),
        ("1 MB response, new connection, 0.5 ms", vec![(Tls12, 0.79)]),
        ("GET, new connection, 0 ms", vec![(Tls13, 1.0)]),
    ]
    .map(|(case, goals)| (case.to_owned(), goals))
    .into_iter()
    .chain([(format!("chain of 6, {chain_delay}"), vec![(Tls12, 0.40)])])
    .collect()
}

/// Adds the goal for the CPU time of both sides, without delay.
fn add_cpu_goal(comparison: &mut BenchComparison, case: &str) {
    let cpu = RatioGoal {
        value: |row: &ReportRow| row.cpu_us_per_request,
        better: BetterDirection::Lower,
        goal: 1.0,
    };
    comparison.add_ratio(
        &format!("CPU of both sides, {case}, quic/tls 1.3"),
        case,
        RemoteTransport::Quic.name(),
        RemoteTransport::Tls13.name(),
        cpu,
    );
}

/// Adds goals relative to the published architecture, with a gateway between functions, and its
/// baseline.
fn add_gateway_goals(comparison: &mut BenchComparison, case: &str) {
    let under = format!(
        "{}{VIA_GATEWAY_SUFFIX}",
        RemoteTransport::Tls12Server.name()
    );
    for over in [
        EARLY_VARIANT.to_owned(),
        format!("{EARLY_VARIANT}{VIA_GATEWAY_SUFFIX}"),
    ] {
        let goal = RatioGoal {
            value: |row| row.p50_us,
            better: BetterDirection::Lower,
            goal: RETAIL_GOAL,
        };
        comparison.add_ratio(
            &format!("p50, {case}, {over}/{under}"),
            case,
            &over,
            &under,
            goal,
        );
    }
}

fn add_ratio_goals(
    comparison: &mut BenchComparison,
    case: &str,
    over: &str,
    under: &[(RemoteTransport, f64)],
) {
    for (transport, goal) in under {
        let name = format!("p50, {case}, {over}/{}", transport.name());
        let goal = RatioGoal {
            value: |row| row.p50_us,
            better: BetterDirection::Lower,
            goal: *goal,
        };
        comparison.add_ratio(&name, case, over, transport.name(), goal);
    }
}
