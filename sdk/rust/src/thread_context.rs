//! This thread in its domain, and its connections to the gateway: what calls are made with.
//!
//! [`run_thread`] gives a thread its event loop and joins the domain, again after each restart of the node. A call on another thread
//! is outside of the domain and goes over HTTP.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_domain::endpoint::polled::{AsyncEndpoint, EndpointDriver};
use nearpath_domain::endpoint::{BodyDraft, CallBody, EndpointSettings, PublishReport};
use nearpath_path::Obstacle;
use nearpath_types::{FunctionId, topic};
use tokio::task::{LocalSet, spawn_local};

use crate::body_stream::MAX_BODY_BYTES;
use crate::body_stream::{AbortOnDrop, OwnStream, UploadTask};
use crate::call_options::CallOptions;
use crate::context::{CONTEXT, CallContext};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind};
use crate::handler_response::StreamingResponse;
use crate::http_client::{GatewayClient, GatewayMode, UploadBody};
use crate::message::{Path, Response};
use crate::{http_client, path_header, shm_client};

/// Time after joining in which peers may still be unknown: a call waits this long for its callee.
pub(crate) const JOIN_GRACE: Duration = Duration::from_millis(50);
const MIN_REJOIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_REJOIN_INTERVAL: Duration = Duration::from_secs(5);

thread_local! {
    static CURRENT_THREAD: RefCell<Option<Rc<ThreadContext>>> = const { RefCell::new(None) };
}

/// State of the SDK that belongs to one thread.
#[derive(Debug)]
pub(crate) struct ThreadContext {
    pub(crate) environment: Environment,
    client: GatewayClient,
    endpoint: RefCell<Option<AsyncEndpoint>>,
    joined_at: Cell<Option<Instant>>,
    /// True if an event loop runs tasks of this thread.
    has_event_loop: bool,
}

/// Role of a thread in its domain.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EndpointRole {
    /// Serves calls.
    pub(crate) serves: bool,
    /// Their bodies are handed over as they come.
    pub(crate) streams: bool,
}

/// This thread's.
pub(crate) fn current_thread() -> Rc<ThreadContext> {
    CURRENT_THREAD.with_borrow_mut(|here| {
        Rc::clone(
            here.get_or_insert_with(|| {
                Rc::new(ThreadContext::new(Environment::from_process(), false))
            }),
        )
    })
}

/// Runs a future with an event loop of this thread, as an endpoint where there is a door. `member` is what each endpoint does until
/// the node hangs up; `role` says whether it takes calls there.
///
/// # Errors
/// [`ErrorKind::Listen`] when the system gives no event loop.
pub(crate) fn run_thread<T>(
    environment: Environment,
    role: EndpointRole,
    member: impl AsyncFn(AsyncEndpoint) + 'static,
    inside: impl AsyncFnOnce() -> T,
) -> Result<T, Error> {
    let loops = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = loops.map_err(|error| {
        Error::new(
            "",
            None,
            ErrorKind::Listen(format!("no event loop: {error}")),
        )
    })?;
    let home = Rc::new(ThreadContext::new(environment, true));
    let before = CURRENT_THREAD.replace(Some(Rc::clone(&home)));
    let local = LocalSet::new();
    let result = local.block_on(&runtime, async {
        let first = home.join_domain(role).await;
        spawn_local(Rc::clone(&home).keep_joined(role, member, first));
        inside().await
    });
    drop(local); // with the endpoint's driver
    CURRENT_THREAD.replace(before);
    Ok(result)
}

/// Idles until the node closes the socket, for endpoints that only call.
pub(crate) async fn idle_until_hang_up(post: AsyncEndpoint) {
    while post.next_incoming().await.is_some() {}
}

impl ThreadContext {
    fn new(environment: Environment, inside: bool) -> Self {
        let client = GatewayClient::new(environment.gateway.clone());
        Self {
            environment,
            client,
            endpoint: RefCell::default(),
            joined_at: Cell::default(),
            has_event_loop: inside,
        }
    }

    /// Returns the endpoint, while the thread is in a domain.
    pub(crate) fn endpoint(&self) -> Option<AsyncEndpoint> {
        self.endpoint.borrow().clone()
    }

    /// Tries to join the domain. None without a dispatch socket, or when the node refuses.
    async fn join_domain(
        &self,
        EndpointRole { serves, streams }: EndpointRole,
    ) -> Option<EndpointDriver> {
        let door = self.environment.dispatch_socket.as_deref()?;
        let settings = EndpointSettings {
            serves,
            stream_calls: streams,
            max_body_bytes: MAX_BODY_BYTES,
            ..EndpointSettings::default()
        };
        match AsyncEndpoint::dial(door, settings).await {
            Ok((post, driver)) => {
                self.endpoint.replace(Some(post));
                self.joined_at.set(Some(Instant::now()));
                Some(driver)
            }
            Err(error) => {
                eprintln!("nearpath: no shared memory for now, calls go over HTTP: {error}");
                None
            }
        }
    }

    /// Stays in the domain while the thread lives, also across restarts of the node.
    async fn keep_joined(
        self: Rc<Self>,
        role: EndpointRole,
        member: impl AsyncFn(AsyncEndpoint),
        mut driver: Option<EndpointDriver>,
    ) {
        let mut pause = MIN_REJOIN_INTERVAL;
        while self.environment.dispatch_socket.is_some() {
            if let Some((driver, post)) = driver.take().zip(self.endpoint()) {
                let driving = spawn_local(driver); // goes on for the calls that are open when the node hangs up
                member(post).await;
                self.endpoint.replace(None);
                drop(driving);
                pause = MIN_REJOIN_INTERVAL;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(MAX_REJOIN_INTERVAL);
            driver = self.join_domain(role).await;
        }
    }

    pub(crate) fn draft_body(&self, bytes: usize) -> BodyDraft {
        self.endpoint().map_or_else(
            || BodyDraft::in_private_memory(bytes),
            |post| post.draft_body(bytes),
        )
    }

    pub(crate) async fn call(
        &self,
        name: &str,
        mut body: CallBody,
        ask: &CallOptions,
    ) -> Result<Response, Error> {
        let function = parse_function(name)?;
        let _twice = ask.idempotent.then(|| body.bytes().clone()); // what may be needed again is not handed over
        let context = CallContext::current().with_options(ask);
        let first = self
            .try_call(name, &function, &mut body, ask, context)
            .await;
        match &first {
            // Seldom, and so on the heap: a call's future is as large as the largest way that it can take.
            Err(error) if ask.idempotent && matches!(error.kind(), ErrorKind::Died(_)) => {
                Box::pin(self.try_call(name, &function, &mut body, ask, context)).await
            }
            _ => first,
        }
    }

    async fn try_call(
        &self,
        name: &str,
        function: &FunctionId,
        body: &mut CallBody,
        ask: &CallOptions,
        context: CallContext,
    ) -> Result<Response, Error> {
        if let Some(post) = self.endpoint_for(function).await {
            let bytes = body.len();
            let answer = shm_client::call_function(&post, name, function, body, ask, context).await;
            // A body that was handed over is gone: what did not run cannot be made again here.
            let again = |error: &Error| error.retry_is_safe() && body.len() == bytes;
            if ask.shm_only || !answer.as_ref().is_err_and(again) {
                return answer;
            }
        } else if ask.shm_only {
            return Err(unreachable_error(name));
        }
        let way = GatewayMode::Sync(self.shm_obstacle(function));
        Box::pin(self.client.call(way, name, body.bytes(), ask, context)).await // far larger than the near way
    }

    /// A call whose body goes, and whose answer comes, bit by bit.
    pub(crate) async fn stream_call(
        &self,
        name: &str,
        body: OwnStream,
        ask: &CallOptions,
    ) -> Result<StreamingResponse, Error> {
        let function = parse_function(name)?;
        let context = CallContext::current().with_options(ask);
        if let Some(post) = self.endpoint_for(&function).await {
            match shm_client::open_call(&post, &function, ask, context).await {
                Ok((call, writer)) => {
                    let write = shm_client::write_body(writer, body);
                    return self
                        .await_response(
                            name,
                            write,
                            shm_client::streaming_response(name, call, context),
                        )
                        .await;
                }
                Err(why) if ask.shm_only => return Err(Error::from_unsent(name, why)),
                Err(_) => {}
            }
        } else if ask.shm_only {
            return Err(unreachable_error(name));
        }
        let (sender, upload) = UploadBody::new();
        let way = GatewayMode::Sync(self.shm_obstacle(&function));
        let answer = self.client.stream_call(name, way, upload, ask, context);
        self.await_response(name, http_client::write_upload(sender, body), answer)
            .await
    }

    /// The beginning of an answer, while the call's body is sent; that goes on afterwards.
    async fn await_response(
        &self,
        name: &str,
        write: impl Future<Output = Result<(), String>> + 'static,
        answer: impl Future<Output = Result<StreamingResponse, Error>>,
    ) -> Result<StreamingResponse, Error> {
        let failure = Rc::new(RefCell::new(None));
        let mut sending = Some(self.start_upload(write, Rc::clone(&failure)));
        let mut answer = pin!(answer);
        let answered = poll_fn(|cx| {
            if sending
                .as_mut()
                .is_some_and(|sending| sending.poll_upload(cx).is_ready())
            {
                sending = None;
            }
            answer.as_mut().poll(cx)
        });
        let answered = answered.await.map_err(|error| match failure.take() {
            Some(why) => Error::new(
                name,
                error.path(),
                ErrorKind::Truncated(format!("the body of the call failed: {why}")),
            ),
            None => error,
        });
        answered.map(|StreamingResponse { response, body }| StreamingResponse {
            response,
            body: body.while_sending(sending),
        })
    }

    fn start_upload(
        &self,
        write: impl Future<Output = Result<(), String>> + 'static,
        failure: Rc<RefCell<Option<String>>>,
    ) -> UploadTask {
        let sending = CONTEXT.scope(CallContext::current(), async move {
            failure.replace(write.await.err());
        });
        match self.has_event_loop {
            true => UploadTask::Spawned(AbortOnDrop(spawn_local(sending))),
            false => UploadTask::Inline(Box::pin(sending)),
        }
    }

    /// Has the gateway queue a call. Returns its id.
    pub(crate) async fn call_later(
        &self,
        name: &str,
        body: &CallBody,
        ask: &CallOptions,
    ) -> Result<Option<String>, Error> {
        parse_function(name)?;
        let context = CallContext::current().with_options(ask);
        queued_call_id(
            name,
            self.client
                .call(GatewayMode::Async, name, body.bytes(), ask, context)
                .await?,
        )
    }

    /// Sends an event to the subscribers. Outside a domain there are none.
    pub(crate) async fn publish_event(
        &self,
        topic: &str,
        body: Bytes,
        ask: &CallOptions,
    ) -> Result<PublishReport, Error> {
        check_topic(topic)?;
        let context = CallContext::current().with_options(ask);
        loop {
            let Some(post) = self.endpoint() else {
                return Ok(PublishReport::default());
            };
            let published = shm_client::with_request(ask, &body, context, |request| {
                post.publish_event(topic, request)
            });
            if published != PublishReport::default() || !self.in_join_grace() {
                return Ok(published);
            }
            tokio::time::sleep(Duration::from_millis(1)).await; // no event reports that the last peer was notified
        }
    }

    pub(crate) async fn send_event(
        &self,
        name: &str,
        mut body: CallBody,
        ask: &CallOptions,
    ) -> Result<(), Error> {
        let function = parse_function(name)?;
        let context = CallContext::current().with_options(ask);
        if let Some(post) = self.endpoint_for(&function).await {
            let sent = shm_client::with_request(ask, &Bytes::new(), context, |request| {
                post.send_event_with(
                    nearpath_domain::CallDestination::Function(&function),
                    request,
                    &mut body,
                )
            });
            match sent {
                Err(why) if ask.shm_only || why == nearpath_domain::UnsentReason::BodyLost => {
                    return Err(Error::from_unsent(name, why));
                }
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        } else if ask.shm_only {
            return Err(unreachable_error(name));
        }
        queued_call_id(
            name,
            self.client
                .call(GatewayMode::Async, name, body.bytes(), ask, context)
                .await?,
        )
        .map(drop)
    }

    /// Returns the obstacle to shared memory.
    fn shm_obstacle(&self, function: &FunctionId) -> Obstacle {
        path_header::obstacle(self.endpoint().map(|post| post.has_function(function)))
    }

    /// Returns the endpoint, if the function can be called there.
    async fn endpoint_for(&self, function: &FunctionId) -> Option<AsyncEndpoint> {
        let post = self.endpoint()?;
        let reaches =
            post.has_function(function) || Box::pin(self.wait_for_function(&post, function)).await;
        reaches.then_some(post)
    }

    /// Waits shortly after joining for a function to become known.
    async fn wait_for_function(&self, post: &AsyncEndpoint, function: &FunctionId) -> bool {
        while !post.has_function(function) {
            if !self.in_join_grace() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await; // no event reports that the last peer was notified
        }
        true
    }

    fn in_join_grace(&self) -> bool {
        self.joined_at
            .get()
            .is_some_and(|joined| joined.elapsed() < JOIN_GRACE)
    }
}

pub(crate) fn check_topic(topic: &str) -> Result<(), Error> {
    let why =
        || format!("invalid topic {topic:?}: expected 1 to 65535 bytes without wildcards (+, #)");
    topic::is_topic(topic)
        .then_some(())
        .ok_or_else(|| Error::new("", None, ErrorKind::Name(why())))
}

pub(crate) fn parse_function(name: &str) -> Result<FunctionId, Error> {
    name.parse().map_err(|invalid| {
        Error::new(
            name,
            None,
            ErrorKind::Name(format!("invalid function name: {invalid}")),
        )
    })
}

pub(crate) fn unreachable_error(name: &str) -> Error {
    let why = "shared memory does not reach it, and shm_only permits no other path";
    Error::new(name, None, ErrorKind::Unsent(why.to_owned()))
}

/// The id that the gateway gave a call which it queued.
pub(crate) fn queued_call_id(name: &str, answer: Response) -> Result<Option<String>, Error> {
    if answer.is_success() {
        return Ok(answer.header("x-call-id").map(str::to_owned));
    }
    let text = String::from_utf8_lossy(answer.body()).trim_end().to_owned();
    let kind = ErrorKind::Platform {
        status: answer.status(),
        reason: None,
        text,
    };
    Err(Error::new(name, Some(Path::Http), kind))
}
