//! The node's network, and where in it the gateway's sockets are: in the switch or, with `--forward tc`, in a namespace of
//! their own that hangs on the switch as instances do.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use nearpath_gateway::{Listener, Zone};
use nearpath_kernel::bpf::Forwarder;
use nearpath_kernel::doorway::Doorway;
use nearpath_kernel::sandbox::Isolation;
use nearpath_kernel::station::{NEXT_HOP, Station};
use nearpath_kernel::switch::Switch;
use nearpath_node::EXIT;
use nearpath_types::Eip;

use super::args::Forward;
use super::plan::{Plan, UpError};

/// The gateway's address inside the node's network; instances know it as `gateway`.
pub(super) const GATEWAY_IP: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);
/// The gateway's port inside the node's network.
pub(super) const INNER_PORT: u16 = 8080;
/// The switch's end of the gateway's pair.
const DEVICE: &str = "gateway";
/// That of the pair at whose other end the node answers for destinations outside.
const EXIT_DEVICE: &str = "exit";

/// See the module. Clones are the same network.
#[derive(Debug, Clone)]
pub(super) struct Network {
    pub(super) switch: Arc<Switch>,
    /// Where the node answers for destinations outside.
    pub(super) doorway: Arc<Doorway>,
    apart: Option<Apart>,
}

/// A gateway that is not in the switch.
#[derive(Debug, Clone)]
struct Apart {
    station: Arc<Station>,
    forwarder: Arc<Forwarder>,
}

impl Network {
    /// Makes it; without isolation there is none.
    pub(super) fn create(plan: &Plan) -> Result<Option<Self>, UpError> {
        let network = match (plan.isolation, plan.forward) {
            (Isolation::None, _) => return Ok(None),
            (_, Forward::None) => Self::plain().map_err(UpError::part("the node's network")),
            (_, Forward::Tc) => Self::forwarded().map_err(UpError::part("--forward tc")),
        };
        network.map(Some)
    }

    fn plain() -> io::Result<Self> {
        let switch = Arc::new(Switch::create(GATEWAY_IP)?);
        let doorway = Arc::new(Doorway::in_switch(&switch)?);
        Ok(Self { switch, doorway, apart: None })
    }

    fn forwarded() -> io::Result<Self> {
        let forwarder = Arc::new(Forwarder::load()?);
        let switch = Arc::new(Switch::create(NEXT_HOP)?);
        let station = Arc::new(Station::create(&*switch, Eip(GATEWAY_IP), DEVICE, NEXT_HOP)?);
        let exit = Station::create(&*switch, EXIT, EXIT_DEVICE, NEXT_HOP)?;
        for station in [&*station, &exit] {
            forwarder.attach(&*switch, station.eip(), station.device())?;
        }
        let doorway = Arc::new(Doorway::in_station(&exit, Arc::clone(&forwarder))?);
        Ok(Self { switch, doorway, apart: Some(Apart { station, forwarder }) })
    }

    /// What moves packets between gateway and instances, if something has to.
    pub(super) fn forwarder(&self) -> Option<Arc<Forwarder>> {
        self.apart.as_ref().map(|apart| Arc::clone(&apart.forwarder))
    }

    /// The calling thread joins the gateway's place.
    pub(super) fn enter(&self) -> io::Result<()> {
        match &self.apart {
            None => self.switch.enter(),
            Some(apart) => apart.station.enter(),
        }
    }

    /// Where instances find the gateway: opened by a thread that joins the gateway's place for it.
    pub(super) fn inner(&self, threads: usize) -> Result<Listener, UpError> {
        let network = self.clone();
        let open = move || {
            network.enter()?;
            nearpath_wire::bind((GATEWAY_IP, INNER_PORT).into(), threads)
        };
        let opened = std::thread::spawn(open).join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
        let sockets = opened.map_err(UpError::part("the gateway's inner listener"))?;
        Ok(Listener { zone: Zone::Inner, tls: None, sockets, http3: None })
    }
}
