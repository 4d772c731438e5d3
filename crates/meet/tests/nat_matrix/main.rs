//! Two workers behind NATs of every kind, with real sockets and a real kernel's NAT: they meet where theory says that they
//! can, and the relay carries the bytes elsewhere; in both cases every byte arrives, once and in order.
//!
//! By default each kind meets two others; all pairs are run by `make test-nat`.

mod matrix;
mod scene;
mod side;
mod theory;
mod upgrade;
