//! Calls over QUIC between our own parts, over real sockets on loopback.

mod calls;
mod early;
mod peers;
mod replay;
mod site;
