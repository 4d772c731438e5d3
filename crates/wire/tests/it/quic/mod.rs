//! Calls over QUIC between our own parts, and connections with TLS over TCP: over real sockets on loopback.

mod calls;
mod early;
mod peers;
mod replay;
mod scale;
mod site;
mod strangers;
mod tls;
mod worker;
