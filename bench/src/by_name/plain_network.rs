//! The same programs in namespaces without nearpath: joined by a veth pair, or as nearpath's hub does.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;

use nearpath_testkit::lab::{LabNode, LinkConditions, LinkEnd, NetworkLab};

use super::control::RunningCaller;
use crate::peers::PeerProcess;

/// Settings of the hub that cost a packet time; see `nearpath_kernel::hub_netns`.
const HUB_SETTINGS: [(&str, &str); 4] = [
    ("ipv4/conf/all/rp_filter", "1"),
    ("ipv4/conf/default/rp_filter", "1"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/ip_forward", "1"),
];
/// Prefix length of an address alone.
const HOST_PREFIX: u8 = 32;

/// Devices between the namespaces of caller and callee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlainPath {
    /// A veth pair.
    Pair,
    /// Two veth pairs, and a namespace that forwards, as nearpath's hub does.
    Hub,
}

/// A caller and a callee in a namespace each.
pub(crate) struct PlainNetwork {
    pub(crate) caller: RunningCaller, // before the lab: programs end first
    callee: PeerProcess,
    _lab: NetworkLab,
}

/// Both ends of a path, and the address of the callee.
struct PlainEnds {
    lab: NetworkLab,
    caller: LabNode,
    callee: LabNode,
    addr: Ipv4Addr,
}

impl PlainNetwork {
    /// Starts the programs. `command` returns that of the callee, whose `port` is at this address.
    ///
    /// # Errors
    /// Without root, or when a program does not start.
    pub(crate) async fn start(
        path: PlainPath,
        port: u16,
        command: impl FnOnce(Ipv4Addr) -> io::Result<Command>,
    ) -> io::Result<Self> {
        let ends = PlainEnds::create(path)?;
        let addr = SocketAddr::from((ends.addr, port));
        // The callee first: a caller without tasks does nothing.
        let callee = PeerProcess::start_on(&ends.callee, command(ends.addr)?, addr).await?;
        Ok(Self {
            caller: RunningCaller::start_on(&ends.caller).await?,
            callee,
            _lab: ends.lab,
        })
    }

    /// Returns the callee's address, with the port at which it was started.
    pub(crate) fn callee_addr(&self) -> SocketAddr {
        self.callee.addr
    }

    /// Returns the processes of both programs.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let caller = self.caller.own_pid();
        caller.into_iter().chain([self.callee.pid()]).collect()
    }
}

impl PlainEnds {
    fn create(path: PlainPath) -> io::Result<Self> {
        let mut lab = NetworkLab::new()?;
        let (caller, callee) = (lab.add_node("caller")?, lab.add_node("callee")?);
        let addr = match path {
            PlainPath::Pair => {
                let link = lab.connect_nodes(&caller, &callee, &LinkConditions::plain())?;
                link.second_end().v4
            }
            PlainPath::Hub => join_by_hub(&mut lab, &caller, &callee)?,
        };
        Ok(Self {
            lab,
            caller,
            callee,
            addr,
        })
    }
}

/// Joins both by a namespace that forwards. Returns the address of the callee.
fn join_by_hub(lab: &mut NetworkLab, caller: &LabNode, callee: &LabNode) -> io::Result<Ipv4Addr> {
    let hub = lab.add_node("hub")?;
    for (name, value) in HUB_SETTINGS {
        hub.write_setting(name, value)?;
    }
    // Settings first: new devices take the defaults.
    let near = lab.connect_nodes(caller, &hub, &LinkConditions::plain())?;
    let far = lab.connect_nodes(&hub, callee, &LinkConditions::plain())?;
    let (from, to) = (near.first_end().v4, far.second_end().v4);
    // Both directions: strict filters drop packets without a route back.
    add_route(near.first_end(), to, near.second_end().v4)?;
    add_route(far.second_end(), from, far.first_end().v4)?;
    Ok(to)
}

fn add_route(end: &LinkEnd, to: Ipv4Addr, via: Ipv4Addr) -> io::Result<()> {
    let to = (IpAddr::V4(to), HOST_PREFIX);
    // One route for one address, as instances have one to all others.
    end.node.add_route(to, Some(via.into()), &end.device)
}
