//! A domain whose functions are threads of the test: a real hub, real sockets and memory.
#![allow(dead_code, reason = "no test uses all of it")]
#![allow(unused_macros)]

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use nearpath::blocking::Party;
use nearpath::{Ask, Environment, Error, Handler, Request, Response, Server};
use nearpath_domain::hub::{Door, Hub, Settings};
use nearpath_domain::protocol::Terms;
use nearpath_domain::{Answer, post};
use nearpath_testkit::{eventually, free_addr, within};
use nearpath_types::{FunctionId, InstanceId, Reason};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Each case in a shared domain and in a strict one: it gets what makes a house for edges.
macro_rules! in_each_kind {
    ($($case:ident),* $(,)?) => {
        mod shared {
            $( #[test] fn $case() { super::$case(super::House::new) } )*
        }
        mod strict {
            $( #[test] fn $case() { super::$case(super::House::strict) } )*
        }
    };
}

/// See [`House::new`].
pub(crate) type New = fn(&[(&str, &str)]) -> House;

/// A domain whose functions are threads of this process.
pub(crate) struct House {
    runtime: Runtime,
    pub(crate) hub: Hub,
    folder: tempfile::TempDir,
    end: watch::Sender<bool>,
    functions: Vec<JoinHandle<Result<(), Error>>>,
}

impl House {
    /// Edges, caller and callee; a callee whose name is `listens-` and a word wants events of that topic.
    pub(crate) fn new(edges: &[(&str, &str)]) -> Self {
        Self::within(Settings::named("sdk"), edges)
    }

    /// The same in a domain where each party writes in a pool of its own.
    pub(crate) fn strict(edges: &[(&str, &str)]) -> Self {
        Self::within(Settings::named("sdk").strict(), edges)
    }

    fn within(settings: Settings, edges: &[(&str, &str)]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (hub, _faults) = runtime.block_on(async { Hub::start(settings).unwrap() });
        let id = |name: &str| name.parse::<FunctionId>().unwrap();
        let terms = |callee: &str| match callee.strip_prefix("listens-") {
            Some(topic) => Terms { topics: vec![topic.to_owned()], ..Terms::default() },
            None => Terms::default(),
        };
        hub.declare_with(edges.iter().map(|(caller, callee)| ((id(caller), id(callee)), terms(callee))));
        let folder = tempfile::tempdir().unwrap();
        Self { runtime, hub, folder, end: watch::channel(false).0, functions: Vec::new() }
    }

    pub(crate) fn environment(&self, instance: u64, name: &str) -> Environment {
        let door: PathBuf = self.folder.path().join(format!("{instance}"));
        self.hub.admit(InstanceId(instance), name.parse().unwrap(), Door::at(&door).unwrap());
        let nobody = format!("http://{}", free_addr());
        Environment { door: Some(door), gateway: nobody, listen: free_addr() }
    }

    pub(crate) fn serve<H: Handler>(
        &mut self,
        instance: u64,
        name: &str,
        handler: impl FnOnce() -> H + Send + 'static,
    ) {
        self.serves(instance, name, move || Server::new(handler()));
    }

    /// A function whose handler reads bodies as they come.
    pub(crate) fn streams<H: Handler>(
        &mut self,
        instance: u64,
        name: &str,
        handler: impl FnOnce() -> H + Send + 'static,
    ) {
        self.serves(instance, name, move || Server::new(handler()).streaming());
    }

    fn serves<H: Handler>(&mut self, instance: u64, name: &str, server: impl FnOnce() -> Server<H> + Send + 'static) {
        let environment = self.environment(instance, name);
        let mut end = self.end.subscribe();
        self.functions.push(std::thread::spawn(move || {
            let end = async move { drop(end.wait_for(|end| *end).await) };
            server().within(environment).run_until(end)
        }));
    }

    /// A function on a thread that waits; it ends with its first call to `/stop`.
    pub(crate) fn waits(
        &mut self,
        instance: u64,
        name: &str,
        handler: impl FnMut(&mut Party, Request) -> Response + Send + 'static,
    ) -> SocketAddr {
        self.waiting(instance, name, Party::new, handler)
    }

    /// As `waits`, with bodies read as they come.
    pub(crate) fn waits_streaming(
        &mut self,
        instance: u64,
        name: &str,
        handler: impl FnMut(&mut Party, Request) -> Response + Send + 'static,
    ) -> SocketAddr {
        self.waiting(instance, name, |environment| Party::new(environment).streaming(), handler)
    }

    fn waiting(
        &mut self,
        instance: u64,
        name: &str,
        party: fn(Environment) -> Party,
        mut handler: impl FnMut(&mut Party, Request) -> Response + Send + 'static,
    ) -> SocketAddr {
        let environment = self.environment(instance, name);
        let address = environment.listen;
        self.functions.push(std::thread::spawn(move || {
            let on = Cell::new(true);
            let handler = |party: &mut Party, request: Request| {
                on.set(request.path() != "/stop");
                if on.get() { handler(party, request) } else { Response::new("") }
            };
            party(environment).serve_while(false, handler, || on.get())
        }));
        address
    }

    /// A function whose platform says of every call that its code has not seen it.
    pub(crate) fn busy(&mut self, instance: u64, name: &str) {
        let (environment, end) = (self.environment(instance, name), self.end.subscribe());
        self.functions.push(std::thread::spawn(move || {
            let settings = post::Settings { serves: true, ..post::Settings::default() };
            let mut post = post::blocking::Post::dial(&environment.door.unwrap(), settings).unwrap();
            post.ready().unwrap();
            while !*end.borrow() {
                if let Some(incoming) = post.next(Some(Duration::from_millis(20))) {
                    post.answer(incoming, Answer::platform(Reason::Overload, "full"));
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
        self.functions.into_iter().for_each(|function| function.join().unwrap().unwrap());
        self.runtime.block_on(async {
            eventually("all slots are back", async || self.hub.usage().await.slots == 0).await;
            self.hub.stop().await;
        });
    }
}

/// Calls once it is known: the callee may still be on its way into the domain.
pub(crate) async fn near(name: &str, body: impl Into<Bytes>) -> Response {
    let body = body.into();
    let mut answer = None;
    eventually("it is near", async || {
        answer = nearpath::call_with(name, body.clone(), Ask::default().near_only()).await.ok();
        answer.is_some()
    })
    .await;
    answer.unwrap()
}

/// A function outside of any domain that is its own gateway: who is in its surroundings calls it, by any name, over HTTP.
pub(crate) struct Alone {
    pub(crate) surroundings: Environment,
    end: watch::Sender<bool>,
    server: JoinHandle<Result<(), Error>>,
}

impl Alone {
    /// Its handler reads bodies as they come.
    pub(crate) fn streaming<H: Handler>(handler: impl FnOnce() -> H + Send + 'static) -> Self {
        let listen = free_addr();
        let surroundings = Environment { door: None, gateway: format!("http://{listen}"), listen };
        let (end, mut ended) = watch::channel(false);
        let environment = surroundings.clone();
        let server = std::thread::spawn(move || {
            let end = async move { drop(ended.wait_for(|end| *end).await) };
            Server::new(handler()).streaming().within(environment).run_until(end)
        });
        Self { surroundings, end, server }
    }

    pub(crate) fn stop(self) {
        self.end.send_replace(true);
        self.server.join().unwrap().unwrap();
    }
}
