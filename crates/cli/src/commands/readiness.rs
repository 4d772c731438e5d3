//! When is a function that was deployed or scaled *there*? Pure decisions over statuses; time is an argument.

use std::time::Duration;

use nearpath_types::FunctionStatus;

/// A failed start that is still told after this long is the function's own fault, and not the end of the instance that
/// is being replaced.
const GRACE: Duration = Duration::from_secs(1);

/// What a function is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// As many instances as wanted are ready and run the newest revision.
    Ready { wanted: u64 },
    /// None is wanted.
    Asleep,
    /// Some are still missing.
    Starting { ready: u64, wanted: u64 },
    /// Some are missing, and this is why.
    Trouble { ready: u64, wanted: u64, why: String },
}

impl Phase {
    /// What a status says.
    pub(crate) fn of(status: &FunctionStatus) -> Self {
        let (ready, wanted) = (ready(status), status.replicas);
        match &status.trouble {
            _ if wanted == 0 => Self::Asleep,
            _ if ready >= wanted => Self::Ready { wanted },
            // The words are the tenant's: what would steer a terminal is taken out.
            Some(why) => Self::Trouble { ready, wanted, why: why.replace(char::is_control, " ") },
            None => Self::Starting { ready, wanted },
        }
    }

    /// Whether there is nothing to wait for.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self, Self::Ready { .. } | Self::Asleep)
    }

    /// As a person reads it.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Ready { wanted } => format!("ready {wanted}/{wanted}"),
            Self::Asleep => "asleep".to_owned(),
            Self::Starting { ready, wanted } => format!("starting {ready}/{wanted}"),
            Self::Trouble { ready, wanted, why } => format!("trouble {ready}/{wanted}: {why}"),
        }
    }
}

/// Ready instances of the revision that is wanted. Where the gateway tells no revision, the newest one seen counts.
fn ready(status: &FunctionStatus) -> u64 {
    let newest = status.instances.iter().map(|instance| instance.revision).max();
    let Some(newest) = newest else { return status.available_replicas };
    let revision = if status.revision > 0 { status.revision } else { newest };
    let current = status.instances.iter().filter(|instance| instance.revision == revision && instance.state == "ready");
    current.count() as u64
}

/// Whether to wait on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Ask again.
    Pending,
    /// It is there.
    There,
    /// It will not be there without a change.
    Failed(String),
}

/// One function that is waited for.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    trouble_since: Option<Duration>,
}

impl Waiting {
    /// Judges what was seen at `now`, counted from any fixed moment.
    pub(crate) fn observe(&mut self, now: Duration, phase: &Phase) -> Verdict {
        match phase {
            Phase::Ready { .. } | Phase::Asleep => Verdict::There,
            Phase::Starting { .. } => {
                self.trouble_since = None;
                Verdict::Pending
            }
            Phase::Trouble { why, .. } => {
                let since = *self.trouble_since.get_or_insert(now);
                if now.saturating_sub(since) >= GRACE { Verdict::Failed(why.clone()) } else { Verdict::Pending }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(replicas: u64, revision: u64, instances: &[(&str, u64)], trouble: Option<&str>) -> FunctionStatus {
        let instance = |(state, revision): &(&str, u64)| json!({"id": "i1", "state": state, "addr": "10.62.0.2:8080", "revision": revision, "pid": 1, "startMs": {}});
        let ready = instances.iter().filter(|(state, _)| *state == "ready").count();
        serde_json::from_value(json!({
            "name": "f", "image": "", "namespace": "openfaas-fn", "invocationCount": 0.0, "replicas": replicas,
            "availableReplicas": ready, "createdAt": "", "revision": revision, "trouble": trouble,
            "instances": instances.iter().map(instance).collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    #[test]
    fn instances_of_an_older_revision_do_not_count() {
        assert_eq!(Phase::of(&status(1, 2, &[("ready", 1)], None)), Phase::Starting { ready: 0, wanted: 1 });
        assert_eq!(Phase::of(&status(1, 2, &[("draining", 1), ("ready", 2)], None)), Phase::Ready { wanted: 1 });
        assert_eq!(
            Phase::of(&status(1, 0, &[("ready", 1), ("starting", 2)], None)),
            Phase::Starting { ready: 0, wanted: 1 }
        );
        assert_eq!(Phase::of(&status(0, 2, &[], Some("old"))), Phase::Asleep);
    }

    #[test]
    fn trouble_must_last_before_it_is_believed() {
        let crash = Phase::of(&status(1, 1, &[], Some("exit 1")));
        let starting = Phase::of(&status(1, 1, &[], None));
        let mut waiting = Waiting::default();
        assert_eq!(waiting.observe(Duration::ZERO, &crash), Verdict::Pending);
        assert_eq!(waiting.observe(Duration::from_millis(900), &starting), Verdict::Pending);
        assert_eq!(waiting.observe(Duration::from_millis(1_000), &crash), Verdict::Pending);
        assert_eq!(waiting.observe(Duration::from_millis(2_000), &crash), Verdict::Failed("exit 1".into()));
    }
}
