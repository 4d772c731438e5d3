//! Virtual addresses of functions on this node: what callers find at them, and who may use them.
//!
//! [`SwitchTable`] decides which rows the kernel's maps need, from what functions declare and from
//! the instances here. [`NodeSwitch`] writes them. [`host_names`] are the names of addresses inside
//! instances. [`WakeProxy`] takes the connections to functions without a ready instance.

mod connection_shares;
mod host_names;
mod node_switch;
mod switch_table;
mod wake_proxy;

pub(crate) use host_names::host_entries;
pub(crate) use node_switch::{InstancePermit, NodeSwitch};
pub use switch_table::SwitchChange;
pub(crate) use switch_table::{FunctionRows, SwitchTable};
pub(crate) use wake_proxy::WakeProxy;
