//! This thread in its domain, and its connections to the gateway: what calls are made with.
//!
//! [`run`] gives a thread its event loop and makes it a party, again after the node has restarted. A call on another thread
//! finds no party there and goes over HTTP.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_domain::post::polled::{Driver, Post};
use nearpath_domain::post::{Draft, Payload, Published, Settings};
use nearpath_types::{FunctionId, topic};
use tokio::task::{LocalSet, spawn_local};

use crate::answer::Streaming;
use crate::ask::Ask;
use crate::body::{Own, Sending, Task};
use crate::context::{CONTEXT, Context};
use crate::environment::Environment;
use crate::error::{Error, Kind};
use crate::far::{Client, LARGEST_BODY, Upload, Way};
use crate::message::{Path, Response};
use crate::{far, near, way};

/// Peers are told of after the welcome: a call waits so long for its callee to come while the party is that young.
pub(crate) const YOUTH: Duration = Duration::from_millis(50);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

thread_local! {
    static HERE: RefCell<Option<Rc<Home>>> = const { RefCell::new(None) };
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) environment: Environment,
    client: Client,
    post: RefCell<Option<Post>>,
    joined: Cell<Option<Instant>>,
    /// It has an event loop that runs tasks of this thread.
    inside: bool,
}

/// How a thread is a party.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Role {
    /// It takes calls.
    pub(crate) serves: bool,
    /// Their bodies are handed over as they come.
    pub(crate) streams: bool,
}

/// This thread's.
pub(crate) fn here() -> Rc<Home> {
    HERE.with_borrow_mut(|here| Rc::clone(here.get_or_insert_with(|| Rc::new(Home::new(Environment::own(), false)))))
}

/// Runs a future with an event loop of this thread, as a party where there is a door. `member` is what each party does until
/// the node hangs up; `role` says whether it takes calls there.
///
/// # Errors
/// [`Kind::Listen`] when the system gives no event loop.
pub(crate) fn run<T>(
    environment: Environment,
    role: Role,
    member: impl AsyncFn(Post) + 'static,
    inside: impl AsyncFnOnce() -> T,
) -> Result<T, Error> {
    let loops = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = loops.map_err(|error| Error::new("", None, Kind::Listen(format!("no event loop: {error}"))))?;
    let home = Rc::new(Home::new(environment, true));
    let before = HERE.replace(Some(Rc::clone(&home)));
    let local = LocalSet::new();
    let result = local.block_on(&runtime, async {
        let first = home.join(role).await;
        spawn_local(Rc::clone(&home).keep(role, member, first));
        inside().await
    });
    drop(local); // with the party's driver
    HERE.replace(before);
    Ok(result)
}

/// What a party does that only calls: nothing comes, until the node hangs up.
pub(crate) async fn only_calls(post: Post) {
    while post.next().await.is_some() {}
}

impl Home {
    fn new(environment: Environment, inside: bool) -> Self {
        let client = Client::new(environment.gateway.clone());
        Self { environment, client, post: RefCell::default(), joined: Cell::default(), inside }
    }

    /// The party, while there is one.
    pub(crate) fn post(&self) -> Option<Post> {
        self.post.borrow().clone()
    }

    /// Tries to become a party; none without a door, or when the node lets nobody in now.
    async fn join(&self, Role { serves, streams }: Role) -> Option<Driver> {
        let door = self.environment.door.as_deref()?;
        let settings = Settings { serves, calls_stream: streams, largest_body: LARGEST_BODY, ..Settings::default() };
        match Post::dial(door, settings).await {
            Ok((post, driver)) => {
                self.post.replace(Some(post));
                self.joined.set(Some(Instant::now()));
                Some(driver)
            }
            Err(error) => {
                eprintln!("nearpath: no shared memory for now, calls go over HTTP: {error}");
                None
            }
        }
    }

    /// Stays a party for as long as the thread lives, also over restarts of the node.
    async fn keep(self: Rc<Self>, role: Role, member: impl AsyncFn(Post), mut driver: Option<Driver>) {
        let mut pause = FIRST_PAUSE;
        while self.environment.door.is_some() {
            if let Some((driver, post)) = driver.take().zip(self.post()) {
                let driving = spawn_local(driver); // goes on for the calls that are open when the node hangs up
                member(post).await;
                self.post.replace(None);
                drop(driving);
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LAST_PAUSE);
            driver = self.join(role).await;
        }
    }

    pub(crate) fn draft(&self, bytes: usize) -> Draft {
        self.post().map_or_else(|| Draft::private(bytes), |post| post.draft(bytes))
    }

    pub(crate) async fn call(&self, name: &str, mut body: Payload, ask: &Ask) -> Result<Response, Error> {
        let function = function(name)?;
        let _twice = ask.idempotent.then(|| body.bytes().clone()); // what may be needed again is not handed over
        let context = Context::current().narrowed(ask);
        let first = self.attempt(name, &function, &mut body, ask, context).await;
        match &first {
            // Seldom, and so on the heap: a call's future is as large as the largest way that it can take.
            Err(error) if ask.idempotent && matches!(error.kind(), Kind::Died(_)) => {
                Box::pin(self.attempt(name, &function, &mut body, ask, context)).await
            }
            _ => first,
        }
    }

    async fn attempt(
        &self,
        name: &str,
        function: &FunctionId,
        body: &mut Payload,
        ask: &Ask,
        context: Context,
    ) -> Result<Response, Error> {
        if let Some(post) = self.reaching(function).await {
            let bytes = body.len();
            let answer = near::call(&post, name, function, body, ask, context).await;
            // A body that was handed over is gone: what did not run cannot be made again here.
            let again = |error: &Error| error.retry_is_safe() && body.len() == bytes;
            if ask.near_only || !answer.as_ref().is_err_and(again) {
                return answer;
            }
        } else if ask.near_only {
            return Err(nobody(name));
        }
        let way = Way::Sync(self.obstacle(function));
        Box::pin(self.client.call(way, name, body.bytes(), ask, context)).await // far larger than the near way
    }

    /// A call whose body goes, and whose answer comes, bit by bit.
    pub(crate) async fn stream(&self, name: &str, body: Own, ask: &Ask) -> Result<Streaming, Error> {
        let function = function(name)?;
        let context = Context::current().narrowed(ask);
        if let Some(post) = self.reaching(&function).await {
            match near::open(&post, &function, ask, context).await {
                Ok((call, writer)) => {
                    let write = near::write(writer, body);
                    return self.answered(name, write, near::answer(name, call, context)).await;
                }
                Err(why) if ask.near_only => return Err(Error::unsent(name, why)),
                Err(_) => {}
            }
        } else if ask.near_only {
            return Err(nobody(name));
        }
        let (sender, upload) = Upload::new();
        let way = Way::Sync(self.obstacle(&function));
        let answer = self.client.stream(name, way, upload, ask, context);
        self.answered(name, far::write(sender, body), answer).await
    }

    /// The beginning of an answer, while the call's body is sent; that goes on afterwards.
    async fn answered(
        &self,
        name: &str,
        write: impl Future<Output = Result<(), String>> + 'static,
        answer: impl Future<Output = Result<Streaming, Error>>,
    ) -> Result<Streaming, Error> {
        let failure = Rc::new(RefCell::new(None));
        let mut sending = Some(self.sending(write, Rc::clone(&failure)));
        let mut answer = pin!(answer);
        let answered = poll_fn(|cx| {
            if sending.as_mut().is_some_and(|sending| sending.poll(cx).is_ready()) {
                sending = None;
            }
            answer.as_mut().poll(cx)
        });
        let answered = answered.await.map_err(|error| match failure.take() {
            Some(why) => Error::new(name, error.path(), Kind::Cut(format!("the body of the call failed: {why}"))),
            None => error,
        });
        answered.map(|Streaming { response, body }| Streaming { response, body: body.while_sending(sending) })
    }

    fn sending(
        &self,
        write: impl Future<Output = Result<(), String>> + 'static,
        failure: Rc<RefCell<Option<String>>>,
    ) -> Sending {
        let sending = CONTEXT.scope(Context::current(), async move {
            failure.replace(write.await.err());
        });
        match self.inside {
            true => Sending::Task(Task(spawn_local(sending))),
            false => Sending::Along(Box::pin(sending)),
        }
    }

    /// Has the gateway queue a call. Returns its id.
    pub(crate) async fn later(&self, name: &str, body: &Payload, ask: &Ask) -> Result<Option<String>, Error> {
        function(name)?;
        let context = Context::current().narrowed(ask);
        accepted(name, self.client.call(Way::Async, name, body.bytes(), ask, context).await?)
    }

    /// Sends an event to those who subscribe. Outside a domain nobody does.
    pub(crate) async fn publish(&self, topic: &str, body: Bytes, ask: &Ask) -> Result<Published, Error> {
        check_topic(topic)?;
        let context = Context::current().narrowed(ask);
        loop {
            let Some(post) = self.post() else { return Ok(Published::default()) };
            let published = near::asking(ask, &body, context, |request| post.publish(topic, request));
            if published != Published::default() || !self.is_young() {
                return Ok(published);
            }
            tokio::time::sleep(Duration::from_millis(1)).await; // nobody tells that the last peer was told
        }
    }

    pub(crate) async fn notify(&self, name: &str, mut body: Payload, ask: &Ask) -> Result<(), Error> {
        let function = function(name)?;
        let context = Context::current().narrowed(ask);
        if let Some(post) = self.reaching(&function).await {
            let sent = near::asking(ask, &Bytes::new(), context, |request| {
                post.notify_with(nearpath_domain::To::Function(&function), request, &mut body)
            });
            match sent {
                Err(why) if ask.near_only || why == nearpath_domain::Unsent::Lost => {
                    return Err(Error::unsent(name, why));
                }
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        } else if ask.near_only {
            return Err(nobody(name));
        }
        accepted(name, self.client.call(Way::Async, name, body.bytes(), ask, context).await?).map(drop)
    }

    /// What stood against shared memory.
    fn obstacle(&self, function: &FunctionId) -> &'static str {
        way::obstacle(self.post().map(|post| post.knows(function)))
    }

    /// The party, if the function can be called there.
    async fn reaching(&self, function: &FunctionId) -> Option<Post> {
        let post = self.post()?;
        let reaches = post.knows(function) || Box::pin(self.learns(&post, function)).await;
        reaches.then_some(post)
    }

    /// Waits while the party is so young that it may not have heard of the function.
    async fn learns(&self, post: &Post, function: &FunctionId) -> bool {
        while !post.knows(function) {
            if !self.is_young() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await; // nobody tells that the last peer was told
        }
        true
    }

    fn is_young(&self) -> bool {
        self.joined.get().is_some_and(|joined| joined.elapsed() < YOUTH)
    }
}

pub(crate) fn check_topic(topic: &str) -> Result<(), Error> {
    let why =
        || format!("no event can have that topic: {topic:?} is empty, longer than 65,535 bytes, or has a wildcard");
    topic::is_topic(topic).then_some(()).ok_or_else(|| Error::new("", None, Kind::Name(why())))
}

pub(crate) fn function(name: &str) -> Result<FunctionId, Error> {
    name.parse()
        .map_err(|invalid| Error::new(name, None, Kind::Name(format!("no function can have that name: {invalid}"))))
}

pub(crate) fn nobody(name: &str) -> Error {
    let why = "shared memory does not reach it, and the call may take no other path";
    Error::new(name, None, Kind::Unsent(why.to_owned()))
}

/// The id that the gateway gave a call which it queued.
pub(crate) fn accepted(name: &str, answer: Response) -> Result<Option<String>, Error> {
    if answer.is_success() {
        return Ok(answer.header("x-call-id").map(str::to_owned));
    }
    let text = String::from_utf8_lossy(answer.body()).trim_end().to_owned();
    let kind = Kind::Platform { status: answer.status(), reason: None, text };
    Err(Error::new(name, Some(Path::Http), kind))
}
