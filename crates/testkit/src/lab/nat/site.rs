//! A place behind routers: its machines and what stands between them and the internet.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use super::addresses::LinkNetwork;
use super::flows;
use super::kind::{IpFamily, NatPlan};
use super::nft_rules::{self, WAN_DEVICE};
use crate::lab::{LabLink, LabNode, LinkConditions, NetworkLab};

/// How many machines a site can have.
const MAX_MACHINES: u8 = 63;

/// A site: routers, innermost first, and machines behind them. The handles in it are clones: what they name ends with the
/// [`super::LabInternet`].
#[derive(Debug)]
pub struct NatSite {
    /// The plan it was made by.
    pub plan: NatPlan,
    /// Its machines; the first is there from the beginning.
    pub machines: Vec<SiteMachine>,
    /// Its routers: that of the machines first, that of the provider last.
    pub routers: Vec<LabNode>,
    /// The line to the internet. The first end is the router's.
    pub provider_line: LabLink,
    pub(super) number: u8,
}

/// A machine of a site.
#[derive(Debug, Clone)]
pub struct SiteMachine {
    /// Where its programs run.
    pub node: LabNode,
    /// The cable to its router. The first end is the machine's.
    pub link: LabLink,
}

impl SiteMachine {
    /// Its own address, which may be a private one; `NoConnection` when it does not have that family.
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
    /// The machine that is there from the beginning.
    pub fn first_machine(&self) -> &SiteMachine {
        &self.machines[0]
    }

    /// The address of the outermost router towards the internet.
    pub fn outside_address(&self) -> Ipv4Addr {
        self.provider_line.first_end().v4
    }

    /// The routers lose their memory, as when they are switched off and on: nobody is let in any more, and a mapping is made
    /// anew by the next packet that leaves. TCP connections go on with the next packet from inside, unless its mapping is random.
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

    /// Lets everybody in at a TCP port of the router's, to the first machine: what people set by hand where two machines are to
    /// speak without punching.
    ///
    /// # Errors
    /// When the site is behind two routers or none, and when `nft` is gone.
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

    /// Lays the line, sets up the routers behind it, and joins a first machine.
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

    /// Joins another machine to the innermost router.
    pub(super) fn join_machine(&mut self, lab: &mut NetworkLab) -> io::Result<&SiteMachine> {
        let number = u8::try_from(self.machines.len())
            .ok()
            .filter(|&number| number < MAX_MACHINES);
        let number =
            number.ok_or_else(|| io::Error::other("a site has 63 machines at the most"))?;
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

/// Makes a node the router of a net that it is the second host of.
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

/// Sends everything that is not on a device to the first host of a net.
pub(super) fn default_route(node: &LabNode, net: LinkNetwork, device: &str) -> io::Result<()> {
    let hops: [(IpAddr, IpAddr); 2] = [
        (Ipv4Addr::UNSPECIFIED.into(), net.host_v4(1).into()),
        (Ipv6Addr::UNSPECIFIED.into(), net.host_v6(1).into()),
    ];
    let mut hops = hops.into_iter().filter(|(_, via)| !via.is_unspecified());
    hops.try_for_each(|(all, via)| node.add_route((all, 0), Some(via), device))
}

/// Gives `nft` in a node rules to load, all or none.
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
