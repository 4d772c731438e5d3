//! An internet with NATs: sites behind routers of every kind, and a rendezvous that all of them
//! reach.
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
//! Every box is a [`LabNode`], every line a [`LabLink`], whose delay and loss can be set. Routers
//! are Linux with nftables rules (`nft_rules`), so `nft` of Debian's package `nftables` must be
//! installed ([`crate::need_nat!`]). `tests/it/nat` measures from outside that each [`NatKind`]
//! behaves as documented.
//!
//! ```no_run
//! use nearpath_testkit::lab::NetworkLab;
//! use nearpath_testkit::lab::nat::{NatKind, NatPlan};
//!
//! # fn main() -> std::io::Result<()> {
//! let pair = NetworkLab::nat_pair(NatKind::Symmetric, NatPlan { hairpin: true, ..NatKind::FullCone.into() })?;
//! let near = pair.first.first_machine().node.enter(|| std::net::UdpSocket::bind("0.0.0.0:0"))?;
//! # Ok(())
//! # }
//! ```

mod addresses;
mod flows;
mod kind;
mod nft_rules;
mod site;

use std::io;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use super::{LabLink, LabNode, LinkConditions, NetworkLab};
use addresses::{LinkNetwork, SECOND_ADDRESSES, site_networks};
pub use kind::{IpFamily, LabFiltering, LabMapping, NatKind, NatPlan};
pub use site::{NatSite, SiteMachine};

/// Returns from the test with a noted skip unless it runs as root and `nft` is installed.
#[macro_export]
macro_rules! need_nat {
    () => {
        $crate::need_root!();
        if !$crate::lab::nat::check_available() {
            $crate::skip!("needs nft: tools/need nft=nftables")
        }
    };
}

/// Returns true if `nft` is installed, which the routers need.
pub fn check_available() -> bool {
    let quiet = Command::new("nft")
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    quiet.is_ok_and(|status| status.success())
}

/// A public network, a rendezvous in it and the sites that were joined to it. Everything ends with
/// this value.
#[derive(Debug)]
pub struct LabInternet {
    /// The machine that every site reaches, with two addresses of each family.
    pub rendezvous: LabNode,
    /// Link of the rendezvous. The first end is its own.
    pub link: LabLink,
    core: LabNode,
    sites: u8,
    lab: NetworkLab,
}

/// Two sites on one internet. Everything ends with this value.
#[derive(Debug)]
pub struct NatPair {
    /// The first site.
    pub first: NatSite,
    /// The second site.
    pub second: NatSite,
    /// The internet between them.
    pub internet: LabInternet,
}

impl LabInternet {
    /// Creates an internet with a rendezvous behind a link with these conditions, and without
    /// sites.
    ///
    /// # Errors
    /// Without root.
    pub fn new(conditions: &LinkConditions) -> io::Result<Self> {
        let mut lab = NetworkLab::new()?;
        let (core, rendezvous, net) = (
            lab.add_node("internet")?,
            lab.add_node("rendezvous")?,
            LinkNetwork::RENDEZVOUS,
        );
        let lab_link = lab.add_link(
            [
                net.link_end(2, &rendezvous, "eth0"),
                net.link_end(1, &core, "rendezvous"),
            ],
            conditions,
        )?;
        core.enable_forwarding()?;
        site::default_route(&rendezvous, net, "eth0")?;
        let mut devices = rendezvous.open_devices()?;
        let device = devices.device_index("eth0")?;
        for (second, via, bits) in [
            (IpAddr::V4(SECOND_ADDRESSES.0), net.host_v4(2).into(), 32),
            (SECOND_ADDRESSES.1.into(), net.host_v6(2).into(), 128),
        ] {
            devices.add_address(device, (second, bits))?;
            core.add_route((second, bits), Some(via), "rendezvous")?;
        }
        rendezvous.await_address(SECOND_ADDRESSES.1)?;
        Ok(Self {
            rendezvous,
            link: lab_link,
            core,
            sites: 0,
            lab,
        })
    }

    /// Both addresses of the rendezvous.
    pub fn rendezvous_addresses(&self, family: IpFamily) -> [IpAddr; 2] {
        match family {
            IpFamily::V4 => [
                LinkNetwork::RENDEZVOUS.host_v4(2).into(),
                SECOND_ADDRESSES.0.into(),
            ],
            IpFamily::V6 => [
                LinkNetwork::RENDEZVOUS.host_v6(2).into(),
                SECOND_ADDRESSES.1.into(),
            ],
        }
    }

    /// Adds a site with one machine.
    ///
    /// # Errors
    /// Without `nft`, and when the kernel has no connection tracking.
    pub fn add_site(&mut self, plan: impl Into<NatPlan>) -> io::Result<NatSite> {
        let number = self.sites;
        self.sites = number
            .checked_add(1)
            .ok_or_else(|| io::Error::other("an internet has at most 255 sites"))?;
        let site = NatSite::build_site(&mut self.lab, &self.core, number, plan.into())?;
        let (network, device, (v4, v6)) = (
            LinkNetwork::provider_line(number),
            format!("site{number}"),
            site_networks(number),
        );
        self.core
            .add_route((v4.into(), 24), Some(network.host_v4(2).into()), &device)?;
        self.core
            .add_route((v6.into(), 48), Some(network.host_v6(2).into()), &device)?;
        Ok(site)
    }

    /// Adds another machine to a site.
    ///
    /// # Errors
    /// When the site has 63 machines already.
    pub fn add_machine<'a>(&mut self, site: &'a mut NatSite) -> io::Result<&'a SiteMachine> {
        site.join_machine(&mut self.lab)
    }
}

impl NetworkLab {
    /// Creates two sites with a machine each, on an internet of their own.
    ///
    /// # Errors
    /// See [`LabInternet::new`] and [`LabInternet::add_site`].
    pub fn nat_pair(first: impl Into<NatPlan>, second: impl Into<NatPlan>) -> io::Result<NatPair> {
        let mut internet = LabInternet::new(&LinkConditions::default())?;
        let (first, second) = (internet.add_site(first)?, internet.add_site(second)?);
        Ok(NatPair {
            first,
            second,
            internet,
        })
    }
}
