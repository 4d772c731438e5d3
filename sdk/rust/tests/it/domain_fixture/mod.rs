//! A domain whose functions are threads of the test: a real hub, real sockets and memory.
#![allow(dead_code, reason = "no test uses all of it")]
#![allow(unused_macros)]

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use nearpath::blocking::ThreadEndpoint;
use nearpath::{CallOptions, Environment, Error, FunctionServer, Handler, Request, Response};
use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket};
use nearpath_domain::protocol::EdgeTerms;
use nearpath_domain::{CallResponse, endpoint};
use nearpath_testkit::{eventually, free_addr, within};
use nearpath_types::{FunctionId, InstanceId, Reason};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Each case in a shared domain and in a strict one: its argument makes a node for a list of edges.
macro_rules! in_each_kind {
    ($($case:ident),* $(,)?) => {
        mod shared {
            $( #[test] fn $case() { super::$case(super::TestDomain::new) } )*
        }
        mod strict {
            $( #[test] fn $case() { super::$case(super::TestDomain::strict) } )*
        }
    };
}

/// See [`TestDomain::new`].
pub(crate) type DomainFactory = fn(&[(&str, &str)]) -> TestDomain;

/// A domain whose functions are threads of this process.
pub(crate) struct TestDomain {
    runtime: Runtime,
    pub(crate) hub: DomainHandle,
    folder: tempfile::TempDir,
    end: watch::Sender<bool>,
    functions: Vec<JoinHandle<Result<(), Error>>>,
}

impl TestDomain {
    /// Edges, caller and callee; a callee whose name is `listens-` and a word wants events of that topic.
    pub(crate) fn new(edges: &[(&str, &str)]) -> Self {
        Self::within(DomainSettings::named("sdk"), edges)
    }

    /// The same in a domain where each endpoint writes in a pool of its own.
    pub(crate) fn strict(edges: &[(&str, &str)]) -> Self {
        Self::within(DomainSettings::named("sdk").into_strict(), edges)
    }

    fn within(settings: DomainSettings, edges: &[(&str, &str)]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (hub, _faults) = runtime.block_on(async { DomainHandle::start(settings).unwrap() });
        let id = |name: &str| name.parse::<FunctionId>().unwrap();
        let terms = |callee: &str| match callee.strip_prefix("listens-") {
            Some(topic) => EdgeTerms {
                topics: vec![topic.to_owned()],
                ..EdgeTerms::default()
            },
            None => EdgeTerms::default(),
        };
        hub.declare_edges_with(
            edges
                .iter()
                .map(|(caller, callee)| ((id(caller), id(callee)), terms(callee))),
        );
        let folder = tempfile::tempdir().unwrap();
        Self {
            runtime,
            hub,
            folder,
            end: watch::channel(false).0,
            functions: Vec::new(),
        }
    }

    pub(crate) fn environment(&self, instance: u64, name: &str) -> Environment {
        self.admit(instance, name, |hub, id, function, socket| {
            hub.admit_instance(id, function, socket)
        })
    }

    /// As [`Self::environment`], for an instance whose watchdog this process is.
    fn watchdog_environment(&self, instance: u64, name: &str) -> Environment {
        self.admit(instance, name, |hub, id, function, socket| {
            hub.admit_with_watchdog(id, function, std::process::id(), socket)
        })
    }

    fn admit(
        &self,
        instance: u64,
        name: &str,
        admit: impl FnOnce(&DomainHandle, InstanceId, FunctionId, EndpointSocket),
    ) -> Environment {
        let door: PathBuf = self.folder.path().join(format!("{instance}"));
        let socket = EndpointSocket::listen_at(&door).unwrap();
        admit(
            &self.hub,
            InstanceId(instance),
            name.parse().unwrap(),
            socket,
        );
        let nobody = format!("http://{}", free_addr());
        Environment {
            dispatch_socket: Some(door),
            gateway: nobody,
            listen: free_addr(),
        }
    }

    pub(crate) fn serve<H: Handler>(
        &mut self,
        instance: u64,
        name: &str,
        handler: impl FnOnce() -> H + Send + 'static,
    ) {
        self.serves(instance, name, move || FunctionServer::new(handler()));
    }

    /// A function whose handler reads bodies as they come.
    pub(crate) fn streams<H: Handler>(
        &mut self,
        instance: u64,
        name: &str,
        handler: impl FnOnce() -> H + Send + 'static,
    ) {
        self.serves(instance, name, move || {
            FunctionServer::new(handler()).streaming()
        });
    }

    fn serves<H: Handler>(
        &mut self,
        instance: u64,
        name: &str,
        server: impl FnOnce() -> FunctionServer<H> + Send + 'static,
    ) {
        let environment = self.environment(instance, name);
        let mut end = self.end.subscribe();
        self.functions.push(std::thread::spawn(move || {
            let end = async move { drop(end.wait_for(|end| *end).await) };
            server().with_environment(environment).run_until(end)
        }));
    }

    /// A function on a thread that waits; it ends with its first call to `/stop`.
    pub(crate) fn waits(
        &mut self,
        instance: u64,
        name: &str,
        handler: impl FnMut(&mut ThreadEndpoint, Request) -> Response + Send + 'static,
    ) -> SocketAddr {
        self.waiting(instance, name, ThreadEndpoint::new, handler)
    }

    /// As `waits`, with bodies read as they come.
    pub(crate) fn waits_streaming(
        &mut self,
        instance: u64,
        name: &str,
        handler: impl FnMut(&mut ThreadEndpoint, Request) -> Response + Send + 'static,
    ) -> SocketAddr {
        self.waiting(
            instance,
            name,
            |environment| ThreadEndpoint::new(environment).streaming(),
            handler,
        )
    }

    fn waiting(
        &mut self,
        instance: u64,
        name: &str,
        party: fn(Environment) -> ThreadEndpoint,
        mut handler: impl FnMut(&mut ThreadEndpoint, Request) -> Response + Send + 'static,
    ) -> SocketAddr {
        let environment = self.environment(instance, name);
        let address = environment.listen;
        self.functions.push(std::thread::spawn(move || {
            let on = Cell::new(true);
            let handler = |party: &mut ThreadEndpoint, request: Request| {
                on.set(request.path() != "/stop");
                if on.get() {
                    handler(party, request)
                } else {
                    Response::new("")
                }
            };
            party(environment).serve_while(false, handler, || on.get())
        }));
        address
    }

    /// A function whose platform says of every call that its code has not seen it.
    pub(crate) fn busy(&mut self, instance: u64, name: &str) {
        let environment = self.watchdog_environment(instance, name);
        let end = self.end.subscribe();
        self.functions.push(std::thread::spawn(move || {
            let settings = endpoint::EndpointSettings {
                serves: true,
                ..endpoint::EndpointSettings::default()
            };
            let mut post = endpoint::blocking::BlockingEndpoint::dial(
                &environment.dispatch_socket.unwrap(),
                settings,
            )
            .unwrap();
            post.announce_ready().unwrap();
            while !*end.borrow() {
                if let Some(incoming) = post.next_incoming(Some(Duration::from_millis(20))) {
                    post.send_response(
                        incoming,
                        CallResponse::platform_error(Reason::Overload, "full"),
                    );
                }
            }
            Ok(())
        }));
    }

    /// Runs what calls, as the function `name`.
    pub(crate) fn calls<T>(&self, instance: u64, name: &str, inside: impl AsyncFnOnce() -> T) -> T {
        nearpath::run_in(self.environment(instance, name), within(inside())).unwrap()
    }

    pub(crate) fn stop(self) {
        self.end.send_replace(true);
        self.functions
            .into_iter()
            .for_each(|function| function.join().unwrap().unwrap());
        self.runtime.block_on(async {
            eventually("all slots are back", async || {
                self.hub.read_usage().await.slots == 0
            })
            .await;
            self.hub.stop().await;
        });
    }
}

/// Calls once it is known: the callee may still be in flight into the domain.
pub(crate) async fn near(name: &str, body: impl Into<Bytes>) -> Response {
    let body = body.into();
    let mut answer = None;
    eventually("it is near", async || {
        answer = nearpath::call_with(name, body.clone(), CallOptions::default().shm_only())
            .await
            .ok();
        answer.is_some()
    })
    .await;
    answer.unwrap()
}

/// A function outside of any domain that is its own gateway: who is in its surroundings calls it, by any name, over HTTP.
pub(crate) struct StandaloneServer {
    pub(crate) surroundings: Environment,
    end: watch::Sender<bool>,
    server: JoinHandle<Result<(), Error>>,
}

impl StandaloneServer {
    /// Its handler reads bodies as they come.
    pub(crate) fn streaming<H: Handler>(handler: impl FnOnce() -> H + Send + 'static) -> Self {
        let listen = free_addr();
        let surroundings = Environment {
            dispatch_socket: None,
            gateway: format!("http://{listen}"),
            listen,
        };
        let (end, mut ended) = watch::channel(false);
        let environment = surroundings.clone();
        let server = std::thread::spawn(move || {
            let end = async move { drop(ended.wait_for(|end| *end).await) };
            FunctionServer::new(handler())
                .streaming()
                .with_environment(environment)
                .run_until(end)
        });
        Self {
            surroundings,
            end,
            server,
        }
    }

    pub(crate) fn stop(self) {
        self.end.send_replace(true);
        self.server.join().unwrap().unwrap();
    }
}
