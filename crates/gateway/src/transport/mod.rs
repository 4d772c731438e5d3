//! One thread's connections to instances, kept between requests: over TCP, over QUIC, and in shared memory.

mod quic;
mod shm_domains;
mod tcp;

pub(crate) use quic::{Found, Lines, NoLine};
pub(crate) use shm_domains::Domains;
pub(crate) use tcp::{Cover, Line, Pools};
