//! Workers behind NATs: a [`fixture`] with a real rendezvous and sites behind real routers,
//! [`node_thread`]s in it on which workers run, the [`worker`]s themselves, and streams between two of
//! them that bytes are sent through ([`stream`]); and [`chain`]s of many.

pub(crate) mod chain;
pub(crate) mod fixture;
pub(crate) mod node_thread;
pub(crate) mod stream;
pub(crate) mod worker;

pub(crate) use nearpath_testkit::p2p::prediction as theory;
