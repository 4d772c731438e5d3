//! Protocol adapters whose used connections can be proven clean, so that they serve the next
//! client.
//!
//! Each protocol has an [`Adapter`]; [`adapter_of`] finds it. The adapter reads requests, runs them
//! on a backend, and returns the backend to the pool. The backend goes back only after the protocol
//! itself has shown that nothing of this client is left in it. Otherwise the adapter closes it.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod client_instance;
pub mod client_stream;
pub mod context;
pub mod failed_writes;
pub mod http;
pub mod lru;
pub mod mysql;
pub mod postgres;
pub mod prefetch;
pub mod redis;
pub mod relay;
mod tls_demand;
pub mod tls_tunnel;

pub use adapter::Adapter;
pub use client_instance::ClientInstance;
pub use context::ClientContext;

use nearpath_types::egress::EgressProtocol;

/// All adapters, each for one protocol.
pub const ADAPTERS: [&dyn Adapter; 4] = [
    &http::HttpAdapter,
    &postgres::PostgresAdapter,
    &mysql::MysqlAdapter,
    &redis::RedisAdapter,
];

/// Returns the adapter of a protocol; `None`: bytes pass unchanged.
pub fn adapter_of(protocol: EgressProtocol) -> Option<&'static dyn Adapter> {
    ADAPTERS
        .into_iter()
        .find(|adapter| adapter.protocol() == protocol)
}

#[cfg(test)]
mod tests {
    use nearpath_types::egress::protocol::PROTOCOL_TRAITS;

    use super::adapter_of;

    #[test]
    fn every_known_protocol_has_an_adapter() {
        for row in &PROTOCOL_TRAITS {
            let found = adapter_of(row.protocol).map(|adapter| adapter.protocol());
            let expected = (!row.protocol.is_opaque()).then_some(row.protocol);
            assert_eq!(found, expected, "{}", row.name);
        }
    }
}
