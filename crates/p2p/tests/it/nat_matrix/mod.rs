//! Two workers behind NATs of every kind, with real sockets and the kernel's NAT. They connect
//! where theory permits, and the relay carries the bytes elsewhere. Every byte arrives, once and in
//! order.
//!
//! By default each kind is tested with another one; `make test-nat` runs all pairs, and a hundred
//! runs of some.

mod end_to_end;
mod matrix;

mod refusing;
mod repeated;
mod without_relay;
