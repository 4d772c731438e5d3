//! Jobs of workers that stream batches to each other.
//!
//! A [`graph::StageGraph`] has stages and edges. Expanded, it is a [`topology::JobTopology`] of
//! workers, which can also be written by hand. Each [`worker::DataflowWorker`] has one connection
//! per edge and sends [`frame`]s over it (`contract/dataflow.md`). A producer has at most its
//! consumer's window of bytes in flight; a consumer acknowledges what it has processed ([`flow`]).
//!
//! Barriers travel with the batches and cut the whole job at one point ([`flow::InputMerge`]). The
//! state of each worker at that point is stored in a [`checkpoint`]. After a failure the job
//! resumes from it: nothing is lost and nothing counts twice (decision 37).

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
