//! Exclusive resources of a server: its data directory, sockets and network.
//!
//! Every refusal comes from here: before anything is started, and before an old process is asked to
//! give up anything.

use std::net::TcpListener;

use nearpath_controller::DataDir;
use nearpath_gateway::GatewayListener;
use nearpath_kernel::sandbox::IsolationLevel;
use nearpath_node::RunLock;
use rustix::process::{Resource, getrlimit};

use crate::devices::DeviceSockets;
use crate::error::StartError;
use crate::handover::{InheritedSockets, OldProcess, SocketName};
use crate::listeners;
use crate::network::Network;
use crate::peers::PeerPort;
use crate::settings::ServerSettings;

/// Smallest number of open files: what an idle server needs besides its gateway threads, and as
/// many again for calls.
const BASE_OPEN_FILES: u64 = 128;
/// The same for each gateway thread.
const THREAD_OPEN_FILES: u64 = 16;

/// Checks that the limit of open files leaves some for calls. With fewer, the server starts and
/// never answers.
///
/// # Errors
/// [`StartError::OpenFiles`] names limit and need.
pub(crate) fn check_open_files(threads: usize) -> Result<(), StartError> {
    let needed = BASE_OPEN_FILES + THREAD_OPEN_FILES * threads as u64;
    // The soft limit: the kernel enforces this one. `None` means unlimited.
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(StartError::OpenFiles {
            limit,
            threads,
            needed,
        }),
        _ => Ok(()),
    }
}

/// Exclusive resources of a server: data directory, sockets and network.
pub(crate) struct Resources {
    pub(crate) data_dir: DataDir,
    pub(crate) run: RunLock,
    pub(crate) listeners: Vec<GatewayListener>,
    pub(crate) device_sockets: DeviceSockets,
    pub(crate) admin: TcpListener,
    /// Port for other nodes.
    pub(crate) peer_port: Option<PeerPort>,
    pub(crate) network: Option<Network>,
    /// The process to take over from; it exits once this one serves.
    pub(crate) old_process: Option<OldProcess>,
    /// Sockets that a later process will inherit from this one.
    pub(crate) for_successor: InheritedSockets,
}

impl Resources {
    /// Acquires all resources, from the old process where there is one.
    pub(crate) fn acquire(
        settings: &ServerSettings,
        isolation: IsolationLevel,
    ) -> Result<Self, StartError> {
        let (old_process, mut inherited) = match find_old_process(settings)? {
            Some((old_process, sockets)) => (Some(old_process), sockets),
            None => (None, InheritedSockets::default()),
        };
        // An old process holds the lock until `release`, so a successor takes it further below.
        let data_dir = if old_process.is_none() {
            Some(lock_data_dir(settings)?)
        } else {
            None
        };
        let mut for_successor = InheritedSockets::default();
        let mut listeners = listeners::public(settings, &mut inherited, &mut for_successor)?;
        let device_sockets = settings.devices.bind(&mut inherited, &mut for_successor)?;
        let addr = settings.admin_listen;
        let open = || TcpListener::bind(addr);
        let admin = inherited.take_or_open_one(SocketName::Admin, addr, &mut for_successor, open);
        let admin = admin.map_err(StartError::listen("--admin-listen", addr))?;
        let threads = settings.threads.get();
        let peer_port = settings.peers.as_ref();
        let peer_port = peer_port
            .map(|peers| PeerPort::open(peers, threads, &mut inherited, &mut for_successor))
            .transpose()?;
        let network = Network::create(isolation, settings.forward)?;
        listeners.extend(
            network
                .as_ref()
                .map(|network| network.inner_listener(threads))
                .transpose()?,
        );
        // The last step that can fail on this side lies behind: only now does the old process stop
        // taking changes.
        if let Some(old_process) = &old_process {
            old_process
                .release()
                .map_err(StartError::component("--take-over"))?;
        }
        let data_dir = data_dir.map_or_else(|| lock_data_dir(settings), Ok)?;
        let run = RunLock::claim_number(&settings.data_dir)
            .map_err(StartError::component("--data-dir"))?;
        Ok(Self {
            data_dir,
            run,
            listeners,
            device_sockets,
            admin,
            peer_port,
            network,
            old_process,
            for_successor,
        })
    }
}

fn find_old_process(
    settings: &ServerSettings,
) -> Result<Option<(OldProcess, InheritedSockets)>, StartError> {
    if !settings.take_over {
        return Ok(None);
    }
    OldProcess::connect(&settings.data_dir).map_err(StartError::component("--take-over"))
}

fn lock_data_dir(settings: &ServerSettings) -> Result<DataDir, StartError> {
    DataDir::claim(&settings.data_dir).map_err(StartError::component("--data-dir"))
}
