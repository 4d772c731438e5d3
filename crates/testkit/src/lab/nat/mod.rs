//! An internet with NATs: sites behind routers of every kind, and a rendezvous that all of them reach.
//!
//! ```text
//!  machine      router          internet         router      machine
//!  192.168.1.2 ─ NAT 198.18.0.2 ─┬──┬─ 198.18.1.2 NAT ─ 192.168.1.2     private addresses are the same everywhere
//!  machine     ─┘                │  │
//!  192.168.1.6                   │  └ home 100.64.0.2 ─ machine          a double NAT has two routers
//!                           rendezvous
//!                  203.0.113.2    2001:db8::2
//!                  198.51.100.1   2001:db8:ffff::1
//! ```
//!
//! Every box is a [`Node`], every line a [`Cable`], whose delay and loss can be set. Routers are Linux with rules of nftables
//! (`rules`), so `nft` of Debian's package `nftables` must be there ([`crate::need_nat!`]). What a [`Kind`] says of itself
//! is measured from outside by `tests/it/nat`.
//!
//! ```no_run
//! use nearpath_testkit::lab::Lab;
//! use nearpath_testkit::lab::nat::{Kind, Plan};
//!
//! # fn main() -> std::io::Result<()> {
//! let pair = Lab::pair(Kind::Symmetric, Plan { hairpin: true, ..Kind::FullCone.into() })?;
//! let near = pair.first.machine().node.enter(|| std::net::UdpSocket::bind("0.0.0.0:0"))?;
//! # Ok(())
//! # }
//! ```

mod addresses;
mod flows;
mod kind;
mod rules;
mod site;

use std::io;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use super::{Cable, Lab, Link, Node};
use addresses::{Net, SECOND, of_site};
pub use kind::{Family, Filtering, Kind, Mapping, Plan};
pub use site::{Machine, Site};

/// Returns from the test with a noted skip unless it runs as root and `nft` is installed.
#[macro_export]
macro_rules! need_nat {
    () => {
        $crate::need_root!();
        if !$crate::lab::nat::available() {
            $crate::skip!("needs nft: tools/need nft=nftables")
        }
    };
}

/// Whether `nft` is there, which makes routers into NATs.
pub fn available() -> bool {
    let quiet = Command::new("nft").arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

/// A public network, a rendezvous in it and the sites that were joined to it. It all ends with this value.
#[derive(Debug)]
pub struct Internet {
    /// The machine that every site reaches, with two addresses of each family.
    pub rendezvous: Node,
    /// The rendezvous's cable. The first end is its own.
    pub cable: Cable,
    core: Node,
    sites: u8,
    lab: Lab,
}

/// Two sites on one internet. It all ends with this value.
#[derive(Debug)]
pub struct Pair {
    /// One side.
    pub first: Site,
    /// The other side.
    pub second: Site,
    /// What is between them.
    pub internet: Internet,
}

impl Internet {
    /// An internet with a rendezvous behind a line of that kind, and without sites.
    ///
    /// # Errors
    /// Without root.
    pub fn new(line: &Link) -> io::Result<Self> {
        let mut lab = Lab::new()?;
        let (core, rendezvous, net) = (lab.node("internet")?, lab.node("rendezvous")?, Net::RENDEZVOUS);
        let cable = lab.lay([net.end(2, &rendezvous, "eth0"), net.end(1, &core, "rendezvous")], line)?;
        core.forward()?;
        site::default_route(&rendezvous, net, "eth0")?;
        let mut devices = rendezvous.devices()?;
        let device = devices.device_index("eth0")?;
        for (second, via, bits) in
            [(IpAddr::V4(SECOND.0), net.v4(2).into(), 32), (SECOND.1.into(), net.v6(2).into(), 128)]
        {
            devices.add_address(device, (second, bits))?;
            core.route((second, bits), Some(via), "rendezvous")?;
        }
        rendezvous.await_address(SECOND.1)?;
        Ok(Self { rendezvous, cable, core, sites: 0, lab })
    }

    /// The two addresses of the rendezvous.
    pub fn addresses(&self, family: Family) -> [IpAddr; 2] {
        match family {
            Family::V4 => [Net::RENDEZVOUS.v4(2).into(), SECOND.0.into()],
            Family::V6 => [Net::RENDEZVOUS.v6(2).into(), SECOND.1.into()],
        }
    }

    /// Joins a site with one machine.
    ///
    /// # Errors
    /// Without `nft`, and when the kernel has no connection tracking.
    pub fn site(&mut self, plan: impl Into<Plan>) -> io::Result<Site> {
        let number = self.sites;
        self.sites = number.checked_add(1).ok_or_else(|| io::Error::other("an internet has 255 sites at the most"))?;
        let site = Site::build(&mut self.lab, &self.core, number, plan.into())?;
        let (line, device, (v4, v6)) = (Net::line(number), format!("site{number}"), of_site(number));
        self.core.route((v4.into(), 24), Some(line.v4(2).into()), &device)?;
        self.core.route((v6.into(), 48), Some(line.v6(2).into()), &device)?;
        Ok(site)
    }

    /// Joins another machine to the routers of a site.
    ///
    /// # Errors
    /// When the site has 63 already.
    pub fn machine<'a>(&mut self, site: &'a mut Site) -> io::Result<&'a Machine> {
        site.join(&mut self.lab)
    }
}

impl Lab {
    /// Two sites, a machine in each, on an internet of their own.
    ///
    /// # Errors
    /// As [`Internet::new`] and [`Internet::site`].
    pub fn pair(first: impl Into<Plan>, second: impl Into<Plan>) -> io::Result<Pair> {
        let mut internet = Internet::new(&Link::default())?;
        let (first, second) = (internet.site(first)?, internet.site(second)?);
        Ok(Pair { first, second, internet })
    }
}
