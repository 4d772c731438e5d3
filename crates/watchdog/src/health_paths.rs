//! The paths of health checks.

/// Answers whether the instance is alive.
pub(crate) const HEALTH: &str = "/_/health";
/// Answers whether the instance can be called.
pub(crate) const READY: &str = "/_/ready";

/// Returns whether a request on this path is a health check.
pub(crate) fn is_check(path: &str) -> bool {
    [HEALTH, READY].contains(&path)
}
