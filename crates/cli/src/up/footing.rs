//! What the house stands on: its folder, its sockets and its network. All that can be refused is refused here, before anything is started,
//! and before a predecessor is asked to let go of anything.

use std::net::TcpListener;

use nearpath_controller::DataDir;
use nearpath_gateway::Listener;
use nearpath_node::Run;

use super::adapters::Sockets;
use super::network::Network;
use super::plan::{Plan, UpError};
use super::sockets;
use super::succession::{Estate, Name, Predecessor};

/// See the module.
pub(super) struct Footing {
    pub(super) folder: DataDir,
    pub(super) run: Run,
    pub(super) listeners: Vec<Listener>,
    pub(super) adapters: Sockets,
    pub(super) admin: TcpListener,
    pub(super) network: Option<Network>,
    /// Who is to be told when this process serves.
    pub(super) predecessor: Option<Predecessor>,
    /// What a successor will get.
    pub(super) estate: Estate,
}

impl Footing {
    pub(super) fn find(plan: &Plan) -> Result<Self, UpError> {
        let (predecessor, mut inherited) = match predecessor(plan)? {
            Some((predecessor, estate)) => (Some(predecessor), estate),
            None => (None, Estate::default()),
        };
        let folder = if predecessor.is_none() { Some(claim(plan)?) } else { None };
        let mut estate = Estate::default();
        let mut listeners = sockets::public(plan, &mut inherited, &mut estate)?;
        let adapters = plan.adapters.bind(&mut inherited, &mut estate)?;
        let at = plan.admin_listen;
        let admin = inherited.one(Name::Admin, at, &mut estate, || TcpListener::bind(at));
        let admin = admin.map_err(UpError::listen("--admin-listen", at))?;
        let network = Network::create(plan)?;
        listeners.extend(network.as_ref().map(|network| network.inner(plan.threads)).transpose()?);
        if let Some(predecessor) = &predecessor {
            predecessor.release().map_err(UpError::part("--take-over"))?;
        }
        let folder = folder.map_or_else(|| claim(plan), Ok)?;
        let run = Run::claim(&plan.data_dir).map_err(UpError::part("--data-dir"))?;
        Ok(Self { folder, run, listeners, adapters, admin, network, predecessor, estate })
    }
}

fn predecessor(plan: &Plan) -> Result<Option<(Predecessor, Estate)>, UpError> {
    if !plan.take_over {
        return Ok(None);
    }
    Predecessor::ask(&plan.data_dir).map_err(UpError::part("--take-over"))
}

fn claim(plan: &Plan) -> Result<DataDir, UpError> {
    DataDir::claim(&plan.data_dir).map_err(UpError::part("--data-dir"))
}
