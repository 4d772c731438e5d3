//! The paths of health checks.

/// Answers whether the instance is alive.
pub(crate) const HEALTH_PATH: &str = "/_/health";
/// Answers whether the instance can be called.
pub(crate) const READY_PATH: &str = "/_/ready";

/// Returns whether a request on this path is a health check.
pub(crate) fn is_health_check(path: &str) -> bool {
    [HEALTH_PATH, READY_PATH].contains(&path)
}
