//! The connection pool on links of a lab.

#![allow(clippy::unwrap_used)] // a test that panics has failed, which is what it is for

mod cwnd;
