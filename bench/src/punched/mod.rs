//! Workers behind NATs: a [`town`] with a real rendezvous and sites behind real routers, [`machine`]s in it on which workers run, the
//! [`worker`]s themselves, and streams between two of them that bytes are sent through ([`stream`]); and [`chain`]s of many.

pub(crate) mod chain;
pub(crate) mod machine;
pub(crate) mod stream;
#[path = "../../../crates/meet/tests/nat_matrix/theory.rs"]
pub(crate) mod theory;
pub(crate) mod town;
pub(crate) mod worker;
