//! Paths of health checks.

/// Path of the liveness check.
pub(crate) const HEALTH_PATH: &str = "/_/health";
/// Path of the readiness check.
pub(crate) const READY_PATH: &str = "/_/ready";

/// Returns whether a request on this path is a health check.
pub(crate) fn is_health_check(path: &str) -> bool {
    // Exact paths: everything else, also below them, belongs to the tenant.
    [HEALTH_PATH, READY_PATH].contains(&path)
}
