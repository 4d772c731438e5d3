//! Readiness of a deployed or scaled function, decided from the statuses that its gateway reports.
//! Pure; time is an argument.

use std::time::Duration;

use nearpath_types::FunctionStatus;
use nearpath_types::instance_label::split_instance_label;

use crate::output::TextMeaning;

/// Time for which a start failure must be reported before waiting fails. During an update, a
/// shorter one may come from an instance of the old revision.
const FAILURE_GRACE: Duration = Duration::from_secs(1);

/// State of a function while its wanted instances start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadyPhase {
    /// All wanted instances are ready and run the newest revision.
    Ready { wanted: u64 },
    /// No instance is wanted: the function is scaled to zero.
    ScaledToZero,
    /// Some instances are missing.
    Starting { ready: u64, wanted: u64 },
    /// Some instances are missing, and the node reports why, for example a failed start.
    Failing {
        ready: u64,
        wanted: u64,
        why: String,
    },
}

impl ReadyPhase {
    /// Derives the phase from a status.
    pub(crate) fn from_status(status: &FunctionStatus) -> Self {
        let (ready, wanted) = (count_ready(status), status.replicas);
        match &status.not_ready_reason {
            // The order matters: with enough instances ready, or none wanted, the status may still
            // report the failure of an earlier instance.
            _ if wanted == 0 => Self::ScaledToZero,
            _ if ready >= wanted => Self::Ready { wanted },
            // The reason may include output of the tenant's code, whose escape sequences must not
            // reach the terminal.
            Some(why) => Self::Failing {
                ready,
                wanted,
                why: why.replace(char::is_control, " "),
            },
            None => Self::Starting { ready, wanted },
        }
    }

    /// Returns whether there is nothing to wait for.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self, Self::Ready { .. } | Self::ScaledToZero)
    }

    /// Formats the phase for the command line.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Ready { wanted } => format!("ready {wanted}/{wanted}"),
            Self::ScaledToZero => "scaled to zero".to_owned(),
            Self::Starting { ready, wanted } => format!("starting {ready}/{wanted}"),
            Self::Failing { ready, wanted, why } => format!("failing {ready}/{wanted}: {why}"),
        }
    }

    /// Returns the colour of [`Self::to_text`].
    pub(crate) fn color(&self) -> TextMeaning {
        match self {
            Self::Ready { .. } | Self::ScaledToZero => TextMeaning::Good,
            Self::Starting { .. } => TextMeaning::Warning,
            Self::Failing { .. } => TextMeaning::Bad,
        }
    }
}

/// Counts ready instances of the wanted revision.
fn count_ready(status: &FunctionStatus) -> u64 {
    let newest = status
        .instances
        .iter()
        .map(|instance| instance.revision)
        .max();
    // An OpenFaaS gateway lists no instances, only their number.
    let Some(newest) = newest else {
        return status.available_replicas;
    };
    // Without a wanted revision in the status, the newest one of an instance counts.
    let revision = if status.revision > 0 {
        status.revision
    } else {
        newest
    };
    let current = status.instances.iter().filter(|instance| {
        let wanted = node_revision(status, &instance.id).unwrap_or(revision);
        instance.revision == wanted && instance.state == "ready"
    });
    current.count() as u64
}

/// Returns the revision that the node of an instance wants: each node counts its own.
fn node_revision(status: &FunctionStatus, instance: &str) -> Option<u64> {
    let (node, _) = split_instance_label(instance);
    let row = status.nodes.iter().find(|row| Some(&*row.node) == node)?;
    Some(row.revision).filter(|revision| *revision > 0)
}

/// Result of waiting so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// Not known yet.
    Pending,
    /// The function is ready.
    Ready,
    /// The function does not become ready without a change.
    Failed(String),
}

/// State of one wait for a function.
#[derive(Debug, Default)]
pub(crate) struct WaitState {
    /// Time at which the reported failure began.
    failing_since: Option<Duration>,
}

impl WaitState {
    /// Evaluates the phase seen at `now`, the time since any fixed moment.
    pub(crate) fn observe(&mut self, now: Duration, phase: &ReadyPhase) -> WaitOutcome {
        match phase {
            ReadyPhase::Ready { .. } | ReadyPhase::ScaledToZero => WaitOutcome::Ready,
            ReadyPhase::Starting { .. } => {
                // The node tries again: a new failure must last for the whole `FAILURE_GRACE`.
                self.failing_since = None;
                WaitOutcome::Pending
            }
            ReadyPhase::Failing { why, .. } => {
                let since = *self.failing_since.get_or_insert(now);
                if now.saturating_sub(since) >= FAILURE_GRACE {
                    WaitOutcome::Failed(why.clone())
                } else {
                    WaitOutcome::Pending
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(
        replicas: u64,
        revision: u64,
        instances: &[(&str, u64)],
        failure: Option<&str>,
    ) -> FunctionStatus {
        let instance = |(state, revision): &(&str, u64)| json!({"id": "i1", "state": state, "addr": "10.62.0.2:8080", "revision": revision, "pid": 1, "startMs": {}});
        let ready = instances
            .iter()
            .filter(|(state, _)| *state == "ready")
            .count();
        serde_json::from_value(json!({
            "name": "f", "image": "", "namespace": "openfaas-fn", "invocationCount": 0.0, "replicas": replicas,
            "availableReplicas": ready, "createdAt": "", "revision": revision, "notReadyReason": failure,
            "instances": instances.iter().map(instance).collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    #[test]
    fn instances_of_an_older_revision_do_not_count() {
        assert_eq!(
            ReadyPhase::from_status(&status(1, 2, &[("ready", 1)], None)),
            ReadyPhase::Starting {
                ready: 0,
                wanted: 1
            }
        );
        assert_eq!(
            ReadyPhase::from_status(&status(1, 2, &[("draining", 1), ("ready", 2)], None)),
            ReadyPhase::Ready { wanted: 1 }
        );
        assert_eq!(
            ReadyPhase::from_status(&status(1, 0, &[("ready", 1), ("starting", 2)], None)),
            ReadyPhase::Starting {
                ready: 0,
                wanted: 1
            }
        );
        assert_eq!(
            ReadyPhase::from_status(&status(0, 2, &[], Some("old"))),
            ReadyPhase::ScaledToZero
        );
    }

    #[test]
    fn each_node_counts_its_own_revisions() {
        let mut all = status(2, 9, &[("ready", 9), ("ready", 4)], None);
        all.instances[0].id = "a/i1".into();
        all.instances[1].id = "b/i1".into();
        let row = |node: &str, revision| nearpath_types::NodeFunction {
            node: node.into(),
            revision,
            ..Default::default()
        };
        all.nodes = vec![row("a", 9), row("b", 4)];
        assert_eq!(
            ReadyPhase::from_status(&all),
            ReadyPhase::Ready { wanted: 2 }
        );
        all.nodes[1].revision = 5;
        let starting = ReadyPhase::Starting {
            ready: 1,
            wanted: 2,
        };
        assert_eq!(ReadyPhase::from_status(&all), starting);
    }

    #[test]
    fn a_failed_start_must_last_before_the_wait_fails() {
        let crash = ReadyPhase::from_status(&status(1, 1, &[], Some("exit 1")));
        let starting = ReadyPhase::from_status(&status(1, 1, &[], None));
        let mut state = WaitState::default();
        assert_eq!(state.observe(Duration::ZERO, &crash), WaitOutcome::Pending);
        assert_eq!(
            state.observe(Duration::from_millis(900), &starting),
            WaitOutcome::Pending
        );
        assert_eq!(
            state.observe(Duration::from_millis(1_000), &crash),
            WaitOutcome::Pending
        );
        assert_eq!(
            state.observe(Duration::from_millis(2_000), &crash),
            WaitOutcome::Failed("exit 1".into())
        );
    }
}
