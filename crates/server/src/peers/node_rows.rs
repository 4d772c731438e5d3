//! Rows of `nearpath nodes`, from what this node knows of others. Pure.

use std::time::{Duration, Instant, SystemTime};

use nearpath_internode::{PeerAvailability, PeerStatus};
use nearpath_source::SourceStatus;
use nearpath_types::status::rfc3339;
use nearpath_types::{NodeName, NodeState, NodeStatus, SourceReport};

/// Makes the row of another node. `status` is `None` before the first attempt to connect.
pub(super) fn peer_row(
    name: &NodeName,
    address: &str,
    status: Option<&PeerStatus>,
    now: Instant,
) -> NodeStatus {
    let row = NodeStatus {
        name: Some(name.to_string()),
        address: Some(address.to_owned()),
        state: NodeState::Connecting,
        ..NodeStatus::default()
    };
    let Some(status) = status else { return row };
    let (state, cause) = state_and_cause(status, now);
    let is_reachable = state.is_reachable();
    let ready = status.functions.values().map(|load| u64::from(load.ready));
    NodeStatus {
        state,
        cause,
        version: status.version.as_deref().map(str::to_owned),
        functions: status.functions.len() as u64,
        ready_instances: ready.sum(),
        // A node that is down has no state, whose age would mean something.
        state_age_seconds: status
            .change_age(now)
            .filter(|_| is_reachable)
            .map(|age| age.as_secs_f64()),
        round_trip_seconds: status.round_trip.map(|time| time.as_secs_f64()),
        clock_offset_seconds: status.clock_offset_micros.map(|micros| micros as f64 / 1e6),
        ..row
    }
}

fn state_and_cause(status: &PeerStatus, now: Instant) -> (NodeState, Option<String>) {
    match &status.availability {
        PeerAvailability::Connecting => (NodeState::Connecting, None),
        PeerAvailability::Up if status.is_draining => (NodeState::Draining, None),
        PeerAvailability::Up => (NodeState::Up, None),
        PeerAvailability::HeldDown { until } => {
            let rest = until.saturating_duration_since(now);
            let text = format!(
                "it went down several times: calls go there in {}",
                whole(rest)
            );
            (NodeState::HeldDown, Some(text))
        }
        PeerAvailability::Down { cause } => {
            let age = now.saturating_duration_since(status.since);
            (
                NodeState::Down,
                Some(format!("{cause}, for {}", whole(age))),
            )
        }
    }
}

/// Writes a time for people, in whole seconds.
fn whole(time: Duration) -> String {
    nearpath_types::duration::format_duration(Duration::from_secs(time.as_secs()))
}

/// Makes the row of a node to which this one has no connection.
pub(super) fn unconnected_row(name: &NodeName, address: &str) -> NodeStatus {
    NodeStatus {
        name: Some(name.to_string()),
        address: Some(address.to_owned()),
        state: NodeState::Down,
        cause: Some("this node calls no others: it has no --node-certificates".to_owned()),
        ..NodeStatus::default()
    }
}

/// Makes the report about a source.
pub(super) fn source_report(folder: &str, status: &SourceStatus) -> SourceReport {
    let applied_at: Option<SystemTime> = status.applied_at;
    SourceReport {
        folder: folder.to_owned(),
        revision: status.revision.0,
        applied_at: applied_at.map(rfc3339::format_time),
        fault: status.fault.as_deref().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::FunctionLoad;

    fn status(availability: PeerAvailability, now: Instant) -> PeerStatus {
        let mut status = PeerStatus::new(now);
        let load = |ready| FunctionLoad { ready, requests: 0 };
        status.functions.insert("cart".parse().unwrap(), load(2));
        status.functions.insert("front".parse().unwrap(), load(1));
        status.changed_at = Some(now);
        status.clock_offset_micros = Some(-1_500);
        PeerStatus {
            availability,
            ..status
        }
    }

    fn row(status: Option<&PeerStatus>, now: Instant) -> NodeStatus {
        peer_row(&"b".parse().unwrap(), "b.example:8444", status, now)
    }

    #[test]
    fn a_node_that_is_up_shows_its_functions() {
        let now = Instant::now();
        let mut status = status(PeerAvailability::Up, now);
        let shown = row(Some(&status), now + Duration::from_secs(3));
        assert_eq!(
            (shown.state, shown.functions, shown.ready_instances),
            (NodeState::Up, 2, 3)
        );
        assert_eq!(shown.state_age_seconds, Some(3.0));
        assert_eq!(shown.clock_offset_seconds, Some(-0.0015));
        status.is_draining = true;
        assert_eq!(row(Some(&status), now).state, NodeState::Draining);
    }

    #[test]
    fn other_nodes_show_the_cause() {
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        let held = PeerAvailability::HeldDown {
            until: later + Duration::from_secs(2),
        };
        let shown = row(Some(&status(held, now)), later);
        let cause = "it went down several times: calls go there in 2s";
        assert_eq!(
            (shown.state, shown.cause.as_deref()),
            (NodeState::HeldDown, Some(cause))
        );
        let down = PeerAvailability::Down {
            cause: "its stream ended".into(),
        };
        let shown = row(Some(&status(down, now)), later);
        assert_eq!(shown.cause.as_deref(), Some("its stream ended, for 5s"));
        assert_eq!(
            (shown.state, shown.state_age_seconds),
            (NodeState::Down, None)
        );
        assert_eq!(row(None, now).state, NodeState::Connecting);
    }
}
