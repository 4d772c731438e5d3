//! What must be reached: the table of the published system's figures, and ours.

use super::Place;
use super::apps::DETOUR;
use crate::compare::{Better, Comparison, Goal, Row};
use crate::remote::Way;

const EARLY: &str = "quic 0-rtt";
/// The least that the published system has saved in chains with a database, by all of the time.
const RETAIL: f64 = 0.86;

/// Goals of the cases that were measured.
pub(super) fn add(comparison: &mut Comparison, chain_delay: Place) {
    for what in ["GET, new connection", "POST, new connection"] {
        let case = format!("{what}, 0.5 ms");
        against(
            comparison,
            &case,
            EARLY,
            &[(Way::Tls12, 0.55), (Way::Tls13, 0.70), (Way::Tcp, 1.0)],
        );
    }
    // The published system's other side shows no certificate.
    against(
        comparison,
        "GET, new connection, 0.5 ms",
        EARLY,
        &[(Way::Tls12Server, 0.55), (Way::Tls13Server, 0.70)],
    );
    against(
        comparison,
        "first call to a worker, 0.5 ms",
        EARLY,
        &[(Way::Tls12, 0.55)],
    );
    against(
        comparison,
        "1 MB response, new connection, 0.5 ms",
        EARLY,
        &[(Way::Tls12, 0.79)],
    );
    against(
        comparison,
        &format!("chain of 6, {chain_delay}"),
        EARLY,
        &[(Way::Tls12, 0.40)],
    );
    for chain in ["f3 f4 f5 f6", "f8 f9 f10 f11", "f12 f13 f14 f15"] {
        let case = format!("app retail chain {chain}, 0.5 ms");
        against(
            comparison,
            &case,
            EARLY,
            &[(Way::Tls12, RETAIL), (Way::Tls12Server, RETAIL)],
        );
        between(comparison, &case);
    }
    against(
        comparison,
        "GET, new connection, 0 ms",
        EARLY,
        &[(Way::Tls13, 1.0)],
    );
    against(
        comparison,
        "GET, new connection, 0 ms",
        Way::QuicReady.name(),
        &[(Way::Tls13, 0.5)],
    );
    for case in ["GET, continuous 1, 0.5 ms", "GET, continuous 32, 0.5 ms"] {
        against(comparison, case, Way::Quic.name(), &[(Way::Tls13, 1.0)]);
    }
    for case in [
        "GET, continuous 1, loopback",
        "GET, continuous 32, loopback",
    ] {
        let cpu = Goal {
            value: |row: &Row| row.cpu_us_per_request,
            better: Better::Lower,
            goal: 1.0,
        };
        let name = format!("CPU of both sides, {case}, quic/tls 1.3");
        comparison.ratio(&name, case, Way::Quic.name(), Way::Tls13.name(), cpu);
    }
}

/// As the published system is, with a gateway between functions, and it by what it was compared with.
fn between(comparison: &mut Comparison, case: &str) {
    let under = format!("{}{DETOUR}", Way::Tls12Server.name());
    for over in [EARLY.to_owned(), format!("{EARLY}{DETOUR}")] {
        let goal = Goal {
            value: |row| row.p50_us,
            better: Better::Lower,
            goal: RETAIL,
        };
        comparison.ratio(
            &format!("p50, {case}, {over}/{under}"),
            case,
            &over,
            &under,
            goal,
        );
    }
}

fn against(comparison: &mut Comparison, case: &str, over: &str, under: &[(Way, f64)]) {
    for (way, goal) in under {
        let name = format!("p50, {case}, {over}/{}", way.name());
        let goal = Goal {
            value: |row| row.p50_us,
            better: Better::Lower,
            goal: *goal,
        };
        comparison.ratio(&name, case, over, way.name(), goal);
    }
}
