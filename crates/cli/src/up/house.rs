//! Builds the parts in the order in which they depend on each other, lives until a signal, and takes them down in the
//! opposite order.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use nearpath_controller::{Auth, Controller, DataDir};
use nearpath_daemon::admin::Admin;
use nearpath_daemon::drain;
use nearpath_daemon::metrics::Registry;
use nearpath_daemon::ready::Readiness;
use nearpath_gateway::{Gateway, Listener, Serving, Settings, Zone};
use nearpath_kernel::sandbox::Isolation;
use nearpath_kernel::switch::Switch;
use nearpath_node::{Node, Settle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::desk::{FrontDesk, Machine};
use super::plan::{Plan, UpError};

/// The gateway's address inside the node's network; instances know it as `gateway`.
const GATEWAY_IP: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);
/// The gateway's port inside the node's network.
const INNER_PORT: u16 = 8080;

/// Everything that lives until the end.
struct House {
    gateway: drain::Trigger,
    admin: drain::Trigger,
    serving: Serving,
    node: Arc<Node>,
    controller: Controller,
}

/// Builds the house, lives in it until SIGTERM or SIGINT, and takes it down.
pub(super) fn live(plan: Plan) -> Result<(), UpError> {
    let control =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("control").enable_all().build();
    let control = control.map_err(UpError::part("the control runtime"))?;
    control.block_on(async {
        let house = House::build(plan).await?;
        until_told().await.map_err(UpError::part("signals"))?;
        house.take_down().await
    })
}

impl House {
    async fn build(plan: Plan) -> Result<Self, UpError> {
        let readiness = Readiness::default();
        let pending = readiness.pending("node");
        let folder = DataDir::claim(&plan.data_dir).map_err(UpError::part("--data-dir"))?;
        let mut listeners = public_listeners(&plan)?;
        let admin_socket = TcpListener::bind(plan.admin_listen).map_err(listen("--admin-listen", plan.admin_listen))?;
        let switch = switch(plan.isolation)?;
        listeners.extend(inner_listener(switch.as_ref(), plan.threads)?);

        let registry = Registry::default();
        let desk = FrontDesk::new(tokio::runtime::Handle::current());
        let gateway = gateway(&plan, desk.clone(), &registry)?;
        let (settle, published) = settle();
        let node = Node::start(node_config(&plan, switch.clone(), settle.clone())?, &registry).await;
        let node = Arc::new(node.map_err(UpError::part("node"))?);
        tokio::spawn(forward_snapshots(node.clone(), gateway.clone(), published));

        let control = tokio::runtime::Handle::current();
        let fleet = Arc::new(Machine { node: node.clone(), gateway: gateway.clone(), settle, control });
        let controller = Controller::open_in(folder, controller_config(&plan), fleet).await;
        let controller = controller.map_err(UpError::part("controller"))?;
        desk.seat(controller.clone());

        let (trigger, drain) = drain::channel();
        let enter = Arc::new(move || switch.as_ref().map_or(Ok(()), |switch| switch.enter()));
        let serving = gateway.serve(listeners, plan.threads, enter, drain).map_err(UpError::part("gateway"))?;
        let (admin, admin_drain) = drain::channel();
        Admin { registry, readiness }.serve(admin_socket, admin_drain).map_err(UpError::part("--admin-listen"))?;
        drop(pending);
        announce(&plan, &controller);
        Ok(Self { gateway: trigger, admin, serving, node, controller })
    }

    /// Callers first, so that nothing new comes in; then instances; the store last.
    async fn take_down(self) -> Result<(), UpError> {
        tracing::info!("draining: new connections are refused, running requests go on");
        self.gateway.drain().await;
        let served = tokio::task::spawn_blocking(|| self.serving.join()).await;
        self.node.stop().await;
        self.controller.close().await;
        self.admin.drain().await;
        tracing::info!("down");
        served.unwrap_or_else(|_| Err(io::Error::other("its end panicked"))).map_err(UpError::part("gateway"))
    }
}

fn listen(what: &'static str, addr: SocketAddr) -> impl FnOnce(io::Error) -> UpError {
    move |error| UpError::Listen { what, addr, error }
}

/// Opened in the host's network namespace, in which they stay wherever their threads go.
fn public_listeners(plan: &Plan) -> Result<Vec<Listener>, UpError> {
    let bind = |what, addr| nearpath_wire::bind(addr, plan.threads).map_err(listen(what, addr));
    let mut listeners = vec![Listener { zone: Zone::Public, tls: None, sockets: bind("--listen", plan.listen)? }];
    if let Some(tls) = &plan.tls {
        let config = nearpath_wire::tls::load(&tls.cert, &tls.key).map_err(UpError::part("TLS"))?;
        let sockets = bind("--tls-listen", tls.listen)?;
        listeners.push(Listener { zone: Zone::Public, tls: Some(config), sockets });
    }
    Ok(listeners)
}

fn switch(isolation: Isolation) -> Result<Option<Arc<Switch>>, UpError> {
    match isolation {
        Isolation::None => Ok(None),
        _ => {
            Switch::create(GATEWAY_IP).map(|switch| Some(Arc::new(switch))).map_err(UpError::part("the node's network"))
        }
    }
}

/// Opened by a thread that joins the node's network for it.
fn inner_listener(switch: Option<&Arc<Switch>>, threads: usize) -> Result<Option<Listener>, UpError> {
    let Some(switch) = switch.cloned() else { return Ok(None) };
    let open = move || {
        switch.enter()?;
        nearpath_wire::bind((GATEWAY_IP, INNER_PORT).into(), threads)
    };
    let opened = std::thread::spawn(open).join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
    let sockets = opened.map_err(UpError::part("the gateway's inner listener"))?;
    Ok(Some(Listener { zone: Zone::Inner, tls: None, sockets }))
}

fn gateway(plan: &Plan, desk: Arc<FrontDesk>, registry: &Registry) -> Result<Gateway, UpError> {
    let settings = Settings { drain_timeout: plan.drain_timeout, ..Settings::default() };
    let gateway = Gateway::new(settings, desk, registry);
    let Some(path) = &plan.access_log else { return Ok(gateway) };
    let out = access_log(path).map_err(UpError::part("--access-log"))?;
    gateway.with_access_log(out).map_err(UpError::part("--access-log"))
}

fn access_log(path: &Path) -> io::Result<Box<dyn io::Write + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.map(|file| Box::new(file) as Box<dyn io::Write + Send>)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn node_config(plan: &Plan, switch: Option<Arc<Switch>>, settle: Settle) -> Result<nearpath_node::Config, UpError> {
    let node = node_id(&plan.data_dir).map_err(UpError::part("--data-dir"))?;
    let config = nearpath_node::Config::new(plan.data_dir.clone(), plan.watchdog.clone());
    let (isolation, gateway_url) = (plan.isolation, gateway_url(plan));
    Ok(nearpath_node::Config { node, isolation, gateway_ip: GATEWAY_IP, gateway_url, switch, settle, ..config })
}

/// Where instances call each other: at the inner listener by name or, without a network of their own, where everybody does.
fn gateway_url(plan: &Plan) -> String {
    match plan.isolation {
        Isolation::None => format!("http://{}", reachable(plan.listen)),
        Isolation::Root | Isolation::UserNamespace => format!("http://gateway:{INNER_PORT}"),
    }
}

/// An address to call from this machine: one that listens everywhere does on loopback too.
fn reachable(listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, listen.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, listen.port()).into(),
        _ => listen,
    }
}

/// Names what the node leaves on the machine (its cgroups), so that a later process on the same data directory finds it
/// and no other process touches it.
fn node_id(data_dir: &Path) -> io::Result<String> {
    let file = data_dir.join("node-id");
    match std::fs::read_to_string(&file) {
        Ok(id) if !id.trim().is_empty() => Ok(id.trim().to_owned()),
        Ok(_) => write_node_id(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => write_node_id(&file),
        Err(error) => Err(error),
    }
}

fn write_node_id(file: &Path) -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned();
    std::fs::write(file, &id)?;
    std::fs::File::open(file)?.sync_all()?;
    Ok(id)
}

fn controller_config(plan: &Plan) -> nearpath_controller::Config {
    let auth = match (&plan.secret_mount_path, plan.insecure) {
        (_, true) => Auth::Off,
        (Some(folder), false) => Auth::Files(folder.clone()),
        (None, false) => Auth::Generated,
    };
    nearpath_controller::Config { auth, ..nearpath_controller::Config::new(&plan.data_dir) }
}

/// The node tells instances to stop only after the gateway has taken over the snapshot that withdraws them.
fn settle() -> (Settle, watch::Sender<u64>) {
    let published = watch::Sender::new(0);
    let seen = published.clone();
    let hook = Settle::when(move |version| {
        let mut seen = seen.subscribe();
        Box::pin(async move {
            let _ = seen.wait_for(|last| *last >= version).await; // the sender is gone: nobody routes any more
        })
    });
    (hook, published)
}

async fn forward_snapshots(node: Arc<Node>, gateway: Gateway, published: watch::Sender<u64>) {
    let mut snapshots = node.snapshots();
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        gateway.publish(&snapshot);
        published.send_replace(snapshot.version);
        if snapshots.changed().await.is_err() {
            return;
        }
    }
}

/// What a person who typed `nearpath up` wants to know first.
fn announce(plan: &Plan, controller: &Controller) {
    let isolation = match plan.isolation {
        Isolation::Root => "namespaces, cgroups, seccomp",
        Isolation::UserNamespace => "user namespaces (`nearpath doctor` says what is lost without root)",
        Isolation::None => "none (--no-sandbox): functions run with your rights; edges between them are not enforced",
    };
    eprintln!("nearpath {} is up", env!("CARGO_PKG_VERSION"));
    eprintln!("  gateway  http://{}", plan.listen);
    if let Some(tls) = &plan.tls {
        eprintln!("           https://{}", tls.listen);
    }
    eprintln!("  metrics  http://{}/metrics", plan.admin_listen);
    eprintln!("  state    {}", plan.data_dir.display());
    match (controller.credentials(), &plan.secret_mount_path) {
        (None, _) => eprintln!("  password none (--insecure)"),
        (Some(_), folder) => {
            let folder = folder.as_ref().unwrap_or(&plan.data_dir);
            eprintln!("  password in {}", folder.join("basic-auth-password").display());
        }
    }
    eprintln!("  sandbox  {isolation}");
    eprintln!("try: nearpath deploy -f examples/echo/stack.yml && nearpath invoke echo -d hello");
}

/// Returns at the first SIGTERM or SIGINT; the second one ends the process at once.
async fn until_told() -> io::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        std::process::exit(130);
    });
    Ok(())
}
