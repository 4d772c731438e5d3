//! Virtual addresses of functions on this node: what callers find at them, and who may use them.
//!
//! [`SwitchTable`] decides which rows the kernel's maps need, from what functions declare and from
//! the instances here. [`NodeSwitch`] writes them, and then [`flow_cutter`] cuts the connections of
//! removed edges. [`host_names`] are the names of addresses inside instances.
//! [`SwitchReport`] reads what the kernel counts. [`WakeProxy`] takes the connections to functions
//! without a ready instance here: [`remote`] carries those to other nodes. [`DatagramForwarder`]
//! takes their datagrams.

mod address_index;
mod connection_shares;
mod cut_schedule;
mod datagrams;
mod denial_log;
mod edge_set;
mod flow_cutter;
mod host_names;
mod indexed_snapshots;
mod instance_connector;
mod node_switch;
mod relay;
pub mod remote;
mod switch_metrics;
mod switch_report;
mod switch_table;
mod wake_proxy;

pub(crate) use datagrams::{DatagramForwarder, DatagramReport};
pub(crate) use denial_log::log_denials;
pub(crate) use host_names::host_entries;
pub(crate) use indexed_snapshots::IndexedSnapshots;
pub(crate) use instance_connector::InstanceConnector;
pub(crate) use node_switch::{InstancePermit, NodeSwitch};
pub(crate) use switch_metrics::register_collector;
pub(crate) use switch_report::SwitchReport;
pub use switch_table::SwitchChange;
pub(crate) use switch_table::{FunctionRows, SwitchTable};
pub(crate) use wake_proxy::WakeProxy;
