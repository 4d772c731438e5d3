//! What the kernel permits, as checks of `doctor`.

use nearpath_kernel::probe::{Finding, probe};
use nearpath_kernel::sandbox::Isolation;

use crate::doctor::Check;

/// The best isolation that can be had, then each thing it is made of.
pub(crate) fn checks() -> Vec<Check> {
    let found = probe();
    let isolated = found.isolation == Isolation::Root;
    let parts = found.findings.into_iter().map(|finding| part(finding, isolated));
    std::iter::once(isolation(found.isolation)).chain(parts).collect()
}

fn isolation(isolation: Isolation) -> Check {
    match isolation {
        Isolation::Root => Check::ok("isolation", "full: each instance has namespaces and a user of its own"),
        Isolation::UserNamespace => {
            let lost = "instances have namespaces of their own, but all run under your user";
            Check::warn(
                "isolation",
                "user namespaces",
                lost,
                "run `nearpath up` as root, with all its capabilities, for full isolation",
            )
        }
        Isolation::None => {
            let lost = "functions can only run unprotected, with your rights; edges between them are not enforced";
            Check::lost("isolation", "none", lost, "run as root, allow user namespaces (below), or `up --no-sandbox`")
        }
    }
}

/// What only some ask for, and what the best isolation does not need, is a drawback only for those who may later run without root.
fn part(finding: Finding, isolated: bool) -> Check {
    match finding.trouble {
        None => Check::ok(finding.name, "there"),
        Some(trouble) if finding.optional || isolated && finding.name == "user namespaces" => {
            Check::warn(finding.name, trouble, finding.lost, finding.remedy)
        }
        Some(trouble) => Check::lost(finding.name, trouble, finding.lost, finding.remedy),
    }
}
