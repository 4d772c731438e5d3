//! A place behind routers: its machines and what stands between them and the internet.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use super::addresses::Net;
use super::flows;
use super::kind::{Family, Plan};
use super::rules::{self, OUT};
use crate::lab::{Cable, Lab, Link, Node};

/// How many machines a site can have.
const MACHINES: u8 = 63;

/// A site: routers, innermost first, and machines behind them. The handles in it are clones: what they name ends with the
/// [`super::Internet`].
#[derive(Debug)]
pub struct Site {
    /// The plan it was made by.
    pub plan: Plan,
    /// Its machines; the first is there from the beginning.
    pub machines: Vec<Machine>,
    /// Its routers: that of the machines first, that of the provider last.
    pub routers: Vec<Node>,
    /// The line to the internet. The first end is the router's.
    pub line: Cable,
    pub(super) number: u8,
}

/// A machine of a site.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Where its programs run.
    pub node: Node,
    /// The cable to its router. The first end is the machine's.
    pub cable: Cable,
}

impl Machine {
    /// Its own address, which may be a private one; `None` when it does not have that family.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        let end = self.cable.first();
        let address = match family {
            Family::V4 => IpAddr::V4(end.v4),
            Family::V6 => IpAddr::V6(end.v6),
        };
        (!address.is_unspecified()).then_some(address)
    }
}

impl Site {
    /// The machine that is there from the beginning.
    pub fn machine(&self) -> &Machine {
        &self.machines[0]
    }

    /// The address of the outermost router towards the internet.
    pub fn outside(&self) -> Ipv4Addr {
        self.line.first().v4
    }

    /// The routers lose their memory, as when they are switched off and on: nobody is let in any more, and a mapping is made
    /// anew by the next packet that leaves. TCP connections go on with the next packet from inside, unless its mapping is random.
    ///
    /// # Errors
    /// Without connection tracking in the kernel, or when `nft` is gone.
    pub fn forget(&self) -> io::Result<()> {
        for router in &self.routers {
            load(router, rules::forgetting(&self.plan))?;
            router.enter(flows::forget)?;
        }
        Ok(())
    }

    /// Lets everybody in at a TCP port of the router's, to the first machine: what people set by hand where two machines are to
    /// speak without punching.
    ///
    /// # Errors
    /// When the site is behind two routers or none, and when `nft` is gone.
    pub fn open_port(&self, port: u16) -> io::Result<()> {
        match (self.machine().address(Family::V4), &self.routers[..]) {
            (Some(IpAddr::V4(machine)), [router]) if rules::translates(&self.plan) => {
                load(router, &rules::opening(port, machine))
            }
            _ => Err(io::Error::other("only a site with one router that translates has ports to open")),
        }
    }

    /// Lays the line, sets up the routers behind it, and joins a first machine.
    pub(super) fn build(lab: &mut Lab, core: &Node, number: u8, plan: Plan) -> io::Result<Self> {
        let mut routers = vec![lab.node("router")?];
        let net = Net::line(number);
        let line = lab.lay([net.end(2, &routers[0], OUT), net.end(1, core, format!("site{number}"))], &plan.line)?;
        set_up(&routers[0], net, &plan)?;
        if plan.kind.routers() == 2 {
            let (home, net) = (lab.node("home")?, Net::provider());
            let ends = [net.end(2, &home, OUT), net.end(1, &routers[0], "home")];
            lab.lay(ends, &Link { plain: plan.plain, ..Link::default() })?;
            set_up(&home, net, &plan)?;
            routers.insert(0, home);
        }
        let mut site = Self { plan, machines: Vec::new(), routers, line, number };
        site.join(lab)?;
        Ok(site)
    }

    /// Joins another machine to the innermost router.
    pub(super) fn join(&mut self, lab: &mut Lab) -> io::Result<&Machine> {
        let number = u8::try_from(self.machines.len()).ok().filter(|&number| number < MACHINES);
        let number = number.ok_or_else(|| io::Error::other("a site has 63 machines at the most"))?;
        let net = Net::machine(self.plan.kind, self.number, number);
        let node = lab.node("machine")?;
        let ends = [net.end(2, &node, "eth0"), net.end(1, &self.routers[0], format!("lan{number}"))];
        let cable = lab.lay(ends, &Link { plain: self.plan.plain, ..Link::default() })?;
        default_route(&node, net, "eth0")?;
        self.machines.push(Machine { node, cable });
        Ok(&self.machines[usize::from(number)])
    }
}

/// Makes a node the router of a net that it is the second host of.
fn set_up(router: &Node, net: Net, plan: &Plan) -> io::Result<()> {
    router.forward()?;
    default_route(router, net, OUT)?;
    let rules = rules::rules(plan, net.v4(2));
    if rules.is_empty() {
        return Ok(());
    }
    load(router, &rules)?;
    let seconds = plan.lifetime.as_secs().to_string();
    router.setting("netfilter/nf_conntrack_udp_timeout", &seconds)?;
    router.setting("netfilter/nf_conntrack_udp_timeout_stream", &seconds)
}

/// Sends everything that is not on a device to the first host of a net.
pub(super) fn default_route(node: &Node, net: Net, device: &str) -> io::Result<()> {
    let hops: [(IpAddr, IpAddr); 2] =
        [(Ipv4Addr::UNSPECIFIED.into(), net.v4(1).into()), (Ipv6Addr::UNSPECIFIED.into(), net.v6(1).into())];
    let mut hops = hops.into_iter().filter(|(_, via)| !via.is_unspecified());
    hops.try_for_each(|(all, via)| node.route((all, 0), Some(via), device))
}

/// Gives `nft` in a node rules to load, all or none.
fn load(node: &Node, rules: &str) -> io::Result<()> {
    let mut nft = Command::new("nft");
    nft.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = node.spawn(&mut nft)?;
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(rules.as_bytes()));
    let output = child.wait_with_output()?;
    if output.status.success() {
        return written;
    }
    Err(io::Error::other(format!("nft refused the rules: {}\n{rules}", String::from_utf8_lossy(&output.stderr))))
}
