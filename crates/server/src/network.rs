//! The node's network, and the namespace of the gateway in it.
//!
//! The gateway's sockets are in the hub namespace. With [`ForwardMode::Tc`] they are in a namespace
//! of their own, which is attached to the hub as instances are.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use nearpath_gateway::{GatewayListener, ListenerZone};
use nearpath_kernel::attached_netns::{AttachedNetns, NEXT_HOP};
use nearpath_kernel::bpf::Forwarder;
use nearpath_kernel::egress_listener::EgressListener;
use nearpath_kernel::hub_netns::HubNetns;
use nearpath_kernel::sandbox::IsolationLevel;
use nearpath_node::EGRESS_PROXY_EIP;
use nearpath_types::Eip;

use crate::error::StartError;
use crate::settings::ForwardMode;

/// The gateway's address inside the node's network; instances know it as `gateway`.
pub(crate) const GATEWAY_IP: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);
/// The gateway's port inside the node's network.
pub(crate) const INNER_PORT: u16 = 8080;
/// The hub's end of the gateway's veth pair.
const GATEWAY_DEVICE: &str = "gateway";
/// The hub's end of the egress proxy's veth pair.
const EGRESS_DEVICE: &str = "exit";

/// The hub namespace with what is attached to it. Clones refer to the same network.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    pub(crate) hub: Arc<HubNetns>,
    /// Listens for connections to destinations outside.
    pub(crate) egress_listener: Arc<EgressListener>,
    gateway: Option<AttachedGateway>,
}

/// A gateway in a namespace of its own.
#[derive(Debug, Clone)]
struct AttachedGateway {
    netns: Arc<AttachedNetns>,
    forwarder: Arc<Forwarder>,
}

impl Network {
    /// Creates the network; without isolation there is none.
    pub(crate) fn create(
        isolation: IsolationLevel,
        forward: ForwardMode,
    ) -> Result<Option<Self>, StartError> {
        let network = match (isolation, forward) {
            (IsolationLevel::None, _) => return Ok(None),
            (_, ForwardMode::None) => {
                Self::in_hub().map_err(StartError::component("the node's network"))
            }
            (_, ForwardMode::Tc) => {
                Self::forwarded().map_err(StartError::component("--forward tc"))
            }
        };
        network.map(Some)
    }

    fn in_hub() -> io::Result<Self> {
        let hub = Arc::new(HubNetns::create(GATEWAY_IP)?);
        let egress_listener = Arc::new(EgressListener::in_hub(&hub)?);
        Ok(Self {
            hub,
            egress_listener,
            gateway: None,
        })
    }

    fn forwarded() -> io::Result<Self> {
        let forwarder = Arc::new(Forwarder::load_program()?);
        let hub = Arc::new(HubNetns::create(NEXT_HOP)?);
        let netns = Arc::new(AttachedNetns::create(
            &*hub,
            Eip(GATEWAY_IP),
            GATEWAY_DEVICE,
            NEXT_HOP,
        )?);
        let egress = AttachedNetns::create(&*hub, EGRESS_PROXY_EIP, EGRESS_DEVICE, NEXT_HOP)?;
        // A device that the forwarder does not know gets no packets.
        for netns in [&*netns, &egress] {
            forwarder.attach_device(&*hub, netns.eip(), netns.device())?;
        }
        let egress_listener = Arc::new(EgressListener::in_attached_netns(
            &egress,
            Arc::clone(&forwarder),
        )?);
        Ok(Self {
            hub,
            egress_listener,
            gateway: Some(AttachedGateway { netns, forwarder }),
        })
    }

    /// The program that moves packets between gateway and instances, where they do not share a
    /// pair.
    pub(crate) fn forwarder(&self) -> Option<Arc<Forwarder>> {
        self.gateway
            .as_ref()
            .map(|gateway| Arc::clone(&gateway.forwarder))
    }

    /// Moves the calling thread into the gateway's namespace.
    pub(crate) fn enter(&self) -> io::Result<()> {
        match &self.gateway {
            // Without a namespace of its own the gateway lives in the hub.
            None => self.hub.enter(),
            Some(gateway) => gateway.netns.enter(),
        }
    }

    /// Opens the gateway's listener for instances.
    pub(crate) fn inner_listener(&self, threads: usize) -> Result<GatewayListener, StartError> {
        let network = self.clone();
        let open = move || {
            network.enter()?;
            nearpath_wire::bind_tcp((GATEWAY_IP, INNER_PORT).into(), threads)
        };
        // setns(2) moves a thread, and a socket stays where it was made: a short-lived thread keeps
        // this one outside.
        let opened = std::thread::spawn(open)
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the network thread panicked")));
        let sockets = opened.map_err(StartError::component("the gateway's inner listener"))?;
        Ok(GatewayListener {
            zone: ListenerZone::Internal,
            tls: None,
            sockets,
            http3: None,
            node_quic: None,
            handed_over: None,
        })
    }
}
