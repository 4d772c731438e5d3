//! Two workers behind NATs of every kind, with real sockets and a real kernel's NAT: they meet where theory says that they
//! can, and the relay carries the bytes elsewhere; in both cases every byte arrives, once and in order.
//!
//! By default each kind meets another one; all pairs, and a hundred meetings of some in a row, are run by `make test-nat`.

mod end_to_end;
mod matrix;

mod repeated;
mod without_relay;
