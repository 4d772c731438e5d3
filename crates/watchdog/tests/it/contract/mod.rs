//! The contract, row by row, against the real program: `README.md` says which test holds which row.

mod connections;
mod cuts;
mod direct;
mod files;
mod fork;
mod http;
mod life;
mod limits;
mod memory;
mod node;
mod pair;
mod quic;
mod renewal;
mod slow;
mod streams;
mod support;
mod tls;
mod transports;
mod versions;
mod ways;
