//! Payloads that are written where they go out, and those that are passed on: what is copied, and what is not.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;

use nearpath::blocking::ThreadEndpoint;
use nearpath::{
    BodyDraft, CallBody, CallOptions, Environment, Error, FunctionServer, Path, Request, Response,
};
use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket};
use nearpath_shm::copies;
use nearpath_testkit::{eventually, free_addr, within};
use nearpath_types::{FunctionId, InstanceId};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// `caller`, `front` and `back`, each of which calls the next one.
struct DraftChain {
    runtime: Runtime,
    hub: DomainHandle,
    folder: tempfile::TempDir,
    end: watch::Sender<bool>,
    functions: Vec<JoinHandle<Result<(), Error>>>,
}

impl DraftChain {
    fn new(settings: DomainSettings) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (hub, _faults) = runtime.block_on(async { DomainHandle::start(settings).unwrap() });
        let id = |name: &str| name.parse::<FunctionId>().unwrap();
        hub.declare_edges([(id("caller"), id("front")), (id("front"), id("back"))]);
        let (folder, end) = (tempfile::tempdir().unwrap(), watch::channel(false).0);
        Self {
            runtime,
            hub,
            folder,
            end,
            functions: Vec::new(),
        }
    }

    fn environment(&self, instance: u64, name: &str) -> Environment {
        let door: PathBuf = self.folder.path().join(name);
        self.hub.admit_instance(
            InstanceId(instance),
            name.parse().unwrap(),
            EndpointSocket::listen_at(&door).unwrap(),
        );
        Environment {
            dispatch_socket: Some(door),
            gateway: format!("http://{}", free_addr()),
            listen: free_addr(),
        }
    }

    /// Answers with what the handler makes; tells what its thread has copied so far, before each answer.
    fn serve(
        &mut self,
        instance: u64,
        name: &str,
        handler: impl AsyncFn(Request) -> Response + Copy + Send + 'static,
    ) -> mpsc::Receiver<u64> {
        let environment = self.environment(instance, name);
        let (mut end, (tell, told)) = (self.end.subscribe(), mpsc::channel());
        self.functions.push(std::thread::spawn(move || {
            let end = async move { drop(end.wait_for(|end| *end).await) };
            let handler = move |request| {
                let tell = tell.clone();
                async move {
                    let response = handler(request).await;
                    tell.send(copies::copied_bytes()).unwrap();
                    response
                }
            };
            FunctionServer::new(handler)
                .with_environment(environment)
                .run_until(end)
        }));
        told
    }

    fn stop(self) {
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

fn near() -> CallOptions {
    CallOptions::default().shm_only()
}

async fn until_near(name: &str) {
    eventually("it is near", async || {
        nearpath::call_with(name, "", near()).await.is_ok()
    })
    .await;
}

fn filled(bytes: usize) -> BodyDraft {
    let mut draft = nearpath::draft(bytes);
    assert!(draft.iter().all(|byte| *byte == 0));
    draft.fill(7);
    draft
}

#[test]
fn from_end_to_end_without_a_copy() {
    let mut chain = DraftChain::new(DomainSettings::named("drafts"));
    let back = chain.serve(1, "back", async |request: Request| {
        let mut draft = nearpath::draft(request.body().len());
        draft
            .iter_mut()
            .zip(request.body())
            .for_each(|(to, from)| *to = from + 1);
        Response::new(draft)
    });
    let front = chain.serve(2, "front", async |request: Request| {
        if request.body().is_empty() {
            until_near("back").await;
        }
        nearpath::call_with("back", request.into_body(), near())
            .await
            .unwrap()
    });
    nearpath::run_in(
        chain.environment(3, "caller"),
        within(async {
            until_near("front").await;
            let before = copies::copied_bytes();
            for bytes in [1, 1000, 65_536, 500_000] {
                let answer = nearpath::call_with("front", filled(bytes), near())
                    .await
                    .unwrap();
                assert!(
                    answer.body().len() == bytes && answer.body().iter().all(|byte| *byte == 8)
                );
                assert_eq!(answer.path(), Some(Path::Shm));
            }
            assert_eq!(copies::copied_bytes(), before);
        }),
    )
    .unwrap();
    assert!(
        [back, front]
            .iter()
            .all(|told| told.try_iter().all(|copied| copied == 0))
    );
    chain.stop();
}

#[test]
fn what_may_be_sent_twice_is_kept() {
    let mut chain = DraftChain::new(DomainSettings::named("drafts"));
    let _front = chain.serve(1, "front", async |request: Request| {
        Response::new(request.into_body())
    });
    nearpath::run_in(
        chain.environment(3, "caller"),
        within(async {
            until_near("front").await;
            let before = copies::copied_bytes();
            let answer = nearpath::call_with("front", filled(5000), near().idempotent())
                .await
                .unwrap();
            assert_eq!(
                (answer.body().len(), copies::copied_bytes() - before),
                (5000, 5000)
            );
        }),
    )
    .unwrap();
    chain.stop();
}

#[test]
fn where_memory_does_not_reach_a_draft_goes_over_http() {
    let callee = Environment {
        dispatch_socket: None,
        gateway: String::new(),
        listen: free_addr(),
    };
    let address = callee.listen;
    let (end, mut ended) = watch::channel(false);
    let served = std::thread::spawn(move || {
        let end = async move { drop(ended.wait_for(|end| *end).await) };
        FunctionServer::new(async |request: Request| request.into_body())
            .with_environment(callee)
            .run_until(end)
    });
    let chain = DraftChain::new(DomainSettings::named("drafts"));
    let environment = Environment {
        gateway: format!("http://{address}"),
        ..chain.environment(3, "caller")
    };
    nearpath::run_in(
        environment,
        within(async {
            let draft = nearpath::draft(5000);
            assert!(draft.is_in_slot(), "nobody knows yet where it goes");
            let answer = nearpath::call("elsewhere", draft).await.unwrap();
            assert_eq!(
                (answer.path(), answer.body().len()),
                (Some(Path::Http), 5000)
            );
        }),
    )
    .unwrap();
    end.send_replace(true);
    served.join().unwrap().unwrap();
    assert!(!nearpath::draft(10).is_in_slot(), "this thread is no party");
    chain.stop();
}

#[test]
fn in_a_strict_domain_only_the_receiver_copies() {
    const BYTES: usize = 100_000;
    let mut chain = DraftChain::new(DomainSettings::named("drafts").into_strict());
    let front = chain.serve(1, "front", async |request: Request| {
        let mut draft = nearpath::draft(request.body().len());
        assert!(draft.is_in_slot());
        draft.copy_from_slice(request.body());
        Response::new(draft)
    });
    nearpath::run_in(
        chain.environment(3, "caller"),
        within(async {
            until_near("front").await;
            let before = copies::copied_bytes();
            let answer = nearpath::call_with("front", filled(BYTES), near())
                .await
                .unwrap();
            let copied = (copies::copied_bytes() - before) as usize;
            assert!(
                answer.body().len() == BYTES && (BYTES..BYTES + 1024).contains(&copied),
                "{copied}"
            );
        }),
    )
    .unwrap();
    assert!(front.try_iter().last().unwrap() < 2 * BYTES as u64);
    chain.stop();
}

#[test]
fn a_thread_that_waits_drafts_and_passes_on() {
    let mut chain = DraftChain::new(DomainSettings::named("drafts"));
    let _front = chain.serve(1, "front", async |request: Request| {
        Response::new(request.into_body())
    });
    let mut party = ThreadEndpoint::new(chain.environment(3, "caller"));
    while party.call("front", "", &near()).is_err() {
        std::thread::yield_now(); // it is in flight into the domain
    }
    let before = copies::copied_bytes();
    let mut draft = party.draft_body(70_000);
    draft.fill(9);
    let answer = party.call("front", draft, &near()).unwrap();
    let again = party.call("front", answer.into_body(), &near()).unwrap();
    assert!(again.body().len() == 70_000 && again.body().iter().all(|byte| *byte == 9));
    assert_eq!(copies::copied_bytes(), before);
    let pending = party
        .begin_call("front", again.share_body(), &near())
        .unwrap();
    assert_eq!(
        party.wait_response(pending).unwrap().body(),
        again.body(),
        "what somebody looks at is copied"
    );
    assert_eq!(copies::copied_bytes() - before, 70_000);
    drop((again, party));
    chain.stop();
}

/// A slot is its endpoint's: another one copies what lies there, and the endpoint does not leave while somebody may write.
#[test]
fn a_draft_of_another_party() {
    let mut chain = DraftChain::new(DomainSettings::named("drafts"));
    let _front = chain.serve(1, "front", async |request: Request| {
        Response::new(request.into_body())
    });
    let environment = chain.environment(3, "caller");
    let mut party = ThreadEndpoint::new(environment.clone());
    let mut other = ThreadEndpoint::new(environment);
    let (mut first, mut second) = (party.draft_body(100), other.draft_body(100));
    assert!(first.is_in_slot() && second.is_in_slot());
    second.fill(2);
    drop(party);
    first.fill(1); // its slot is no other endpoint's
    while other.call("front", "", &near()).is_err() {
        std::thread::yield_now(); // it is in flight into the domain
    }
    for (draft, byte) in [(first, 1), (second, 2)] {
        let answer = other.call("front", CallBody::from(draft), &near()).unwrap();
        assert_eq!(answer.body().as_ref(), [byte; 100]);
    }
    drop(other);
    chain.stop();
}
