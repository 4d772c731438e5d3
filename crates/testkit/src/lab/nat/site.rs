//! A site: machines behind routers.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use super::addresses::LinkNetwork;
use super::flows;
use super::kind::{IpFamily, NatPlan};
use super::nft_rules::{self, WAN_DEVICE};
use crate::lab::{LabLink, LabNode, LinkConditions, NetworkLab};

/// Maximum number of machines of a site.
const MAX_MACHINES: u8 = 63;

/// Routers, innermost first, and the machines behind them. Its handles are clones: they end with
/// the [`super::LabInternet`].
#[derive(Debug)]
pub struct NatSite {
    /// Plan of the site.
    pub plan: NatPlan,
    /// Machines; the first one always exists.
    pub machines: Vec<SiteMachine>,
    /// Routers: that of the machines first, that of the provider last.
    pub routers: Vec<LabNode>,
    /// Link to the internet. The first end is the router's.
    pub provider_line: LabLink,
    pub(super) number: u8,
}

/// A machine of a site.
#[derive(Debug, Clone)]
pub struct SiteMachine {
    /// Node in which its programs run.
    pub node: LabNode,
    /// Link to its router. The first end is the machine's.
    pub link: LabLink,
}

impl SiteMachine {
    /// Own address, which may be private; `None` without that family.
    pub fn address_of(&self, family: IpFamily) -> Option<IpAddr> {
        let end = self.link.first_end();
        let address = match family {
            IpFamily::V4 => IpAddr::V4(end.v4),
            IpFamily::V6 => IpAddr::V6(end.v6),
        };
        (!address.is_unspecified()).then_some(address)
    }
}

impl NatSite {
    /// The machine that every site has.
    pub fn first_machine(&self) -> &SiteMachine {
        &self.machines[0]
    }

    /// Address of the outermost router on the internet.
    pub fn outside_address(&self) -> Ipv4Addr {
        self.provider_line.first_end().v4
    }

    /// Deletes the flows of the routers, as a restart would: no inbound packet is accepted, and the
    /// next outgoing packet creates a new mapping. TCP connections continue with the next packet
    /// from inside, unless the mapping is random.
    ///
    /// # Errors
    /// Without connection tracking in the kernel, or when `nft` is gone.
    pub fn forget_flows(&self) -> io::Result<()> {
        for router in &self.routers {
            load_rules(router, nft_rules::flush_rules(&self.plan))?;
            router.enter(flows::forget_flows)?;
        }
        Ok(())
    }

    /// Forwards a TCP port of the router to the first machine: the manual setup for connections
    /// without hole punching.
    ///
    /// # Errors
    /// When the site has two routers or none, and when `nft` is gone.
    pub fn open_port(&self, port: u16) -> io::Result<()> {
        match (
            self.first_machine().address_of(IpFamily::V4),
            &self.routers[..],
        ) {
            (Some(IpAddr::V4(machine)), [router]) if nft_rules::translates(&self.plan) => {
                load_rules(router, &nft_rules::port_forward_rules(port, machine))
            }
            _ => Err(io::Error::other(
                "only a site with one router that translates has ports to open",
            )),
        }
    }

    /// Creates the link, the routers behind it, and a first machine.
    pub(super) fn build_site(
        lab: &mut NetworkLab,
        core: &LabNode,
        number: u8,
        plan: NatPlan,
    ) -> io::Result<Self> {
        let mut routers = vec![lab.add_node("router")?];
        let net = LinkNetwork::provider_line(number);
        let provider_line = lab.add_link(
            [
                net.link_end(2, &routers[0], WAN_DEVICE),
                net.link_end(1, core, format!("site{number}")),
            ],
            &plan.conditions,
        )?;
        set_up_router(&routers[0], net, &plan)?;
        if plan.kind.router_count() == 2 {
            let (home, net) = (lab.add_node("home")?, LinkNetwork::carrier_network());
            let ends = [
                net.link_end(2, &home, WAN_DEVICE),
                net.link_end(1, &routers[0], "home"),
            ];
            lab.add_link(
                ends,
                &LinkConditions {
                    is_plain: plan.is_plain,
                    ..LinkConditions::default()
                },
            )?;
            set_up_router(&home, net, &plan)?;
            routers.insert(0, home);
        }
        let mut site = Self {
            plan,
            machines: Vec::new(),
            routers,
            provider_line,
            number,
        };
        site.join_machine(lab)?;
        Ok(site)
    }

    /// Adds a machine to the innermost router.
    pub(super) fn join_machine(&mut self, lab: &mut NetworkLab) -> io::Result<&SiteMachine> {
        let number = u8::try_from(self.machines.len())
            .ok()
            .filter(|&number| number < MAX_MACHINES);
        let number = number.ok_or_else(|| io::Error::other("a site has at most 63 machines"))?;
        let net = LinkNetwork::machine_network(self.plan.kind, self.number, number);
        let node = lab.add_node("machine")?;
        let ends = [
            net.link_end(2, &node, "eth0"),
            net.link_end(1, &self.routers[0], format!("lan{number}")),
        ];
        let lab_link = lab.add_link(
            ends,
            &LinkConditions {
                is_plain: self.plan.is_plain,
                ..LinkConditions::default()
            },
        )?;
        default_route(&node, net, "eth0")?;
        self.machines.push(SiteMachine {
            node,
            link: lab_link,
        });
        Ok(&self.machines[usize::from(number)])
    }
}

/// Configures a node as the router of a network, of which it is host 2.
fn set_up_router(router: &LabNode, net: LinkNetwork, plan: &NatPlan) -> io::Result<()> {
    router.enable_forwarding()?;
    default_route(router, net, WAN_DEVICE)?;
    let rules = nft_rules::router_rules(plan, net.host_v4(2));
    if rules.is_empty() {
        return Ok(());
    }
    load_rules(router, &rules)?;
    let seconds = plan.lifetime.as_secs().to_string();
    router.write_setting("netfilter/nf_conntrack_udp_timeout", &seconds)?;
    router.write_setting("netfilter/nf_conntrack_udp_timeout_stream", &seconds)
}

/// Adds a default route to host 1 of a network.
pub(super) fn default_route(node: &LabNode, net: LinkNetwork, device: &str) -> io::Result<()> {
    let hops: [(IpAddr, IpAddr); 2] = [
        (Ipv4Addr::UNSPECIFIED.into(), net.host_v4(1).into()),
        (Ipv6Addr::UNSPECIFIED.into(), net.host_v6(1).into()),
    ];
    let mut hops = hops.into_iter().filter(|(_, via)| !via.is_unspecified());
    hops.try_for_each(|(all, via)| node.add_route((all, 0), Some(via), device))
}

/// Loads rules with `nft` in a node, all or none.
fn load_rules(node: &LabNode, rules: &str) -> io::Result<()> {
    let mut nft = Command::new("nft");
    nft.args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = node.spawn(&mut nft)?;
    let written = child
        .stdin
        .take()
        .map_or(Ok(()), |mut input| input.write_all(rules.as_bytes()));
    let output = child.wait_with_output()?;
    if output.status.success() {
        return written;
    }
    Err(io::Error::other(format!(
        "nft refused the rules: {}\n{rules}",
        String::from_utf8_lossy(&output.stderr)
    )))
}
