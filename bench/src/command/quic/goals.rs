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
    for what in ["GET, new connection", "POST, new connection"] {
        let case = format!("{what}, 0.5 ms");
        add_ratio_goals(
            comparison,
            &case,
            EARLY_VARIANT,
            &[
                (RemoteTransport::Tls12, 0.55),
                (RemoteTransport::Tls13, 0.70),
                (RemoteTransport::Tcp, 1.0),
            ],
        );
    }
    // The published system's other side shows no certificate.
    add_ratio_goals(
        comparison,
        "GET, new connection, 0.5 ms",
        EARLY_VARIANT,
        &[
            (RemoteTransport::Tls12Server, 0.55),
            (RemoteTransport::Tls13Server, 0.70),
        ],
    );
    add_ratio_goals(
        comparison,
        "first call to a worker, 0.5 ms",
        EARLY_VARIANT,
        &[(RemoteTransport::Tls12, 0.55)],
    );
    add_ratio_goals(
        comparison,
        "1 MB response, new connection, 0.5 ms",
        EARLY_VARIANT,
        &[(RemoteTransport::Tls12, 0.79)],
    );
    add_ratio_goals(
        comparison,
        &format!("chain of 6, {chain_delay}"),
        EARLY_VARIANT,
        &[(RemoteTransport::Tls12, 0.40)],
    );
    for chain in ["f3-f4-f5-f6", "f8-f9-f10-f11", "f12-f13-f14-f15"] {
        let case = format!("app retail chain {chain}, 0.5 ms");
        add_ratio_goals(
            comparison,
            &case,
            EARLY_VARIANT,
            &[
                (RemoteTransport::Tls12, RETAIL_GOAL),
                (RemoteTransport::Tls12Server, RETAIL_GOAL),
            ],
        );
        add_gateway_goals(comparison, &case);
    }
    add_ratio_goals(
        comparison,
        "GET, new connection, 0 ms",
        EARLY_VARIANT,
        &[(RemoteTransport::Tls13, 1.0)],
    );
    add_ratio_goals(
        comparison,
        "GET, new connection, 0 ms",
        RemoteTransport::QuicReady.name(),
        &[(RemoteTransport::Tls13, 0.5)],
    );
    for case in ["GET, continuous 1, 0.5 ms", "GET, continuous 32, 0.5 ms"] {
        add_ratio_goals(
            comparison,
            case,
            RemoteTransport::Quic.name(),
            &[(RemoteTransport::Tls13, 1.0)],
        );
    }
    for case in [
        "GET, continuous 1, loopback",
        "GET, continuous 32, loopback",
    ] {
        let cpu = RatioGoal {
            value: |row: &ReportRow| row.cpu_us_per_request,
            better: BetterDirection::Lower,
            goal: 1.0,
        };
        let name = format!("CPU of both sides, {case}, quic/tls 1.3");
        comparison.add_ratio(
            &name,
            case,
            RemoteTransport::Quic.name(),
            RemoteTransport::Tls13.name(),
            cpu,
        );
    }
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
