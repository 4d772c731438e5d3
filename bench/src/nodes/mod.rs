//! One application on several machines: `nearpath node` processes, and the peers that a user would
//! deploy instead.
//!
//! Network namespaces represent the machines ([`machines`]). An [`app_folder::AppFolder`] is what all
//! nodes of an application read, and [`node_set::NodeSet`] are these nodes. The peers are nginx on each
//! machine, with TLS between them ([`nginx_tls`]). A [`scripted_node`] reports functions that do not
//! exist.

pub(crate) mod app_folder;
pub(crate) mod host_program;
pub(crate) mod machines;
pub(crate) mod nginx_tls;
pub(crate) mod node_process;
pub(crate) mod node_set;
pub(crate) mod scripted_node;
