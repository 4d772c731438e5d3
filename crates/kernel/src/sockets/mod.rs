//! Sockets: datagrams with their destinations; of TCP options, hop limits, locking to a peer, path measurements, initial windows, and detection of
//! closed ones.

mod datagram;
mod flow_info;
mod initial_window;
mod min_hop_limit;
mod options;
mod peer_lock;
pub(crate) mod raw_options;
mod sock_diag;
mod socket_dump;

pub(crate) use datagram::request_details;
pub use datagram::{ReceivedDatagram, receive_datagram};
pub use flow_info::{TcpFlowInfo, tcp_flow_info};
pub use initial_window::{InitialWindow, set_initial_window};
pub use min_hop_limit::{set_min_hop_count, set_min_ttl};
pub(crate) use options::unreported_options;
pub use options::{OptionChange, SocketOptions};
pub use peer_lock::{is_filter_locked, lock_to_peer};
pub use raw_options::{TcpState, tcp_state};
pub use sock_diag::{CloseMonitor, ClosedSocket, SockDiag, SocketIdentity};
pub(crate) use socket_dump::{DumpedSocket, SocketDump, SocketProtocol};
