//! Jobs of workers that stream batches to each other.
//!
//! A [`graph::StageGraph`] has stages and edges; expanded, it is a [`topology::JobTopology`] of workers, which is also what a person can
//! write down. Each [`worker::Worker`] has one connection an edge, in [`frame`]s (`contract/dataflow.md`). A producer has no more
//! bytes on their way than its consumer's window; what a consumer has processed, it acknowledges ([`window`]). Barriers go with
//! the batches and cut the whole job in two at one place ([`window::InputMerge`]); what each worker knows there lies in a
//! [`checkpoint`], from which a job goes on after a death, with nothing lost and nothing counted twice (decision 37).

pub mod checkpoint;
pub mod flow;
pub mod frame;
pub mod graph;
pub mod local;
pub mod remote;
pub mod scale_out;
pub mod spill;
pub mod topology;
pub mod value;
pub mod worker;
