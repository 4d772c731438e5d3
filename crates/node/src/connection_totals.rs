//! Connections to a function, for the autoscaler.

/// Connections to one function at its virtual address and its instances: of all callers on this node, and of
/// those on other nodes that came here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionTotals {
    /// Connections and flows of datagrams that have ever started.
    pub started: u64,
    /// Connections that have not ended, and flows of datagrams that the node forwards. Others have no end.
    pub open: u64,
}
