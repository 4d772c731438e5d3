//! Kernel features.

use nearpath_kernel::probe::{CapabilityFinding, probe_machine};
use nearpath_kernel::sandbox::IsolationLevel;

use super::Check;

/// Checks the best isolation available, then each feature it consists of.
pub(super) fn checks() -> Vec<Check> {
    let found = probe_machine();
    let is_root = found.isolation == IsolationLevel::Root;
    let features = found
        .findings
        .into_iter()
        .map(|finding| feature_check(finding, is_root));
    // The summary first: the features below explain it.
    std::iter::once(isolation_check(found.isolation))
        .chain(features)
        .collect()
}

fn isolation_check(isolation: IsolationLevel) -> Check {
    match isolation {
        IsolationLevel::Root => Check::ok(
            "isolation",
            "full: each instance has its own namespaces and user",
        ),
        IsolationLevel::UserNamespace => {
            let effect = "instances have their own namespaces, but all run under your user";
            let remedy = "run `nearpath up` as root, with all its capabilities, for full isolation";
            Check::warn("isolation", "user namespaces", effect, remedy)
        }
        IsolationLevel::None => {
            let effect = "functions run without isolation, with your rights; edges between them are not enforced";
            let remedy = "run as root, allow user namespaces (below), or use `up --no-sandbox`";
            Check::fail("isolation", "none", effect, remedy)
        }
    }
}

fn feature_check(finding: CapabilityFinding, is_root: bool) -> Check {
    match finding.problem {
        None => Check::ok(finding.name, "available"),
        // Root needs no user namespaces; without them only a later run without root has a drawback.
        Some(problem) if finding.optional || is_root && finding.name == "user namespaces" => {
            Check::warn(finding.name, problem, finding.impact, finding.remedy)
        }
        Some(problem) => Check::fail(finding.name, problem, finding.impact, finding.remedy),
    }
}
