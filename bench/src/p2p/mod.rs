//! Workers behind NATs. A [`fixture`] has a real rendezvous and sites behind real routers. Its
//! [`node_thread`]s run the [`worker`]s, with streams between pairs ([`stream`]) and [`chain`]s of
//! many.

pub(crate) mod chain;
pub(crate) mod fixture;
pub(crate) mod node_thread;
pub(crate) mod stream;
pub(crate) mod worker;

pub(crate) use nearpath_testkit::p2p::prediction as theory;
