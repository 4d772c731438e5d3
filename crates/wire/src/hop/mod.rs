//! One hop of HTTP: the rules that the gateway, the watchdog and the database proxy share.
//!
//! [`headers`] removes hop-by-hop headers, [`balance`] draws the instances of which the less loaded
//! one gets a call, [`grpc`] detects gRPC and writes its errors, [`timeout`] reads `X-Timeout`.
//! [`request_head`] refuses requests whose host or framing has two meanings.

pub mod balance;
pub mod grpc;
pub mod headers;
pub mod request_head;
pub mod timeout;
