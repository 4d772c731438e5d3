//! The thread that is the party.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use napi::Status;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use nearpath::{
    CallOptions, Error, FunctionServer, HandlerResponse, Request, Response, StreamingResponse,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, spawn_local};

use crate::bodies::{BodyKey, BodyPiece, BodyTable};
use crate::types::{AskOfJs, FinishedCall, Message, RequestOfJs, ResponseOfJs};

/// What tells JavaScript; it does not keep the process alive, `index.js` does while something is open.
pub(crate) type MessageCallback = ThreadsafeFunction<Message, (), Message, Status, false, true>;

/// Number of the message that serving has ended.
const SERVING_ENDED_ID: f64 = -1.0;

/// What JavaScript wants.
#[derive(Debug)]
pub(crate) enum RuntimeCommand {
    Call {
        id: f64,
        name: String,
        payload: Vec<u8>,
        options: AskOfJs,
        kind: CallKind,
    },
    /// `pieces`: its body is written.
    Answer {
        id: f64,
        response: ResponseOfJs,
        pieces: bool,
    },
    /// A piece of a body; nothing when it is complete.
    Push {
        body: BodyKey,
        piece: Option<BodyPiece>,
    },
    /// The next part of a body is wanted.
    Pull {
        body: BodyKey,
    },
    /// Nobody reads it any more.
    Leave {
        body: BodyKey,
    },
    /// Nobody waits for it any more.
    GiveUp {
        id: f64,
    },
    Stop,
}

/// What a call is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallKind {
    Event,
    Topic,
    Queued,
    /// `pieces`: its body is written. `stream`: its answer is read as it comes.
    Call {
        pieces: bool,
        stream: bool,
    },
}

/// The way to the thread. Dropping it ends the thread, after the calls that are open.
pub(crate) struct RuntimeHandle(UnboundedSender<RuntimeCommand>);

impl RuntimeHandle {
    pub(crate) fn start(
        callback: MessageCallback,
        serves: bool,
        streams: bool,
    ) -> io::Result<Self> {
        let (sender, commands) = unbounded_channel();
        let work = move || {
            let (open, last, bodies) = (RefCell::default(), Cell::new(0.0), BodyTable::default());
            let runtime = CallRuntime {
                callback: Arc::new(callback),
                open_requests: open,
                last_id: last,
                bodies,
                outgoing_calls: RefCell::default(),
                is_streaming: streams,
            };
            runtime.run_thread(serves, commands);
        };
        thread::Builder::new().name("nearpath".into()).spawn(work)?;
        Ok(Self(sender))
    }

    pub(crate) fn send_command(&self, order: RuntimeCommand) -> bool {
        self.0.send(order).is_ok()
    }
}

/// What the thread knows.
struct CallRuntime {
    callback: Arc<MessageCallback>,
    open_requests: RefCell<HashMap<u64, HandlerRequest>>,
    last_id: Cell<f64>,
    bodies: BodyTable,
    /// What ends a call that was made.
    outgoing_calls: RefCell<HashMap<u64, AbortHandle>>,
    /// Handlers are called when a request begins.
    is_streaming: bool,
}

/// A call whose handler runs in JavaScript.
struct HandlerRequest {
    /// What the calls of its handler begin with.
    options: CallOptions,
    answer: oneshot::Sender<HandlerResponse>,
}

impl CallRuntime {
    fn run_thread(self, serves: bool, commands: UnboundedReceiver<RuntimeCommand>) {
        let runtime = Rc::new(self);
        let handler_runtime = Rc::clone(&runtime);
        let commands_done = async move {
            handle_commands(handler_runtime, commands).await;
        };
        if !serves {
            return drop(nearpath::run(commands_done));
        }
        let server = Rc::clone(&runtime);
        let handler = move |request: Request| {
            let runtime = Rc::clone(&server);
            async move { runtime.handle_request(request).await }
        };
        let server = FunctionServer::new(handler);
        let server = if runtime.is_streaming {
            server.streaming()
        } else {
            server
        };
        let served = server
            .run_until(commands_done)
            .map(|()| FinishedCall::Answer(Response::new("")));
        runtime.send_message(Message::for_outcome(SERVING_ENDED_ID, &served));
    }

    fn send_message(&self, message: Message) {
        self.callback
            .call(message, ThreadsafeFunctionCallMode::NonBlocking);
    }

    /// Has a call answered by JavaScript.
    async fn handle_request(self: Rc<Self>, mut request: Request) -> HandlerResponse {
        let id = self.last_id.replace(self.last_id.get() + 1.0) + 1.0;
        let (answer, answered) = oneshot::channel();
        self.open_requests.borrow_mut().insert(
            id_key(id),
            HandlerRequest {
                options: CallOptions::from_request(&request),
                answer,
            },
        );
        let guard = AbandonGuard { runtime: &self, id };
        if self.is_streaming {
            self.bodies
                .insert_incoming((true, id_key(id)), request.take_stream());
        }
        self.send_message(Message {
            request: Some(RequestOfJs::from_request(&request)),
            ..Message::new_for(id)
        });
        drop(request); // its slot is free
        let answered = answered.await;
        std::mem::forget(guard);
        answered.unwrap_or_else(|_| {
            Response::new("the function is stopping\n")
                .with_status(503)
                .into()
        })
    }

    fn build_response(&self, id: f64, response: Response, pieces: bool) -> HandlerResponse {
        if !pieces {
            return response.into();
        }
        let body = self.bodies.open_outgoing((true, id_key(id)));
        StreamingResponse::new(body)
            .with_status(response.status())
            .with_head(response.head().clone())
            .into()
    }

    fn inherited_options(&self, id: f64) -> Option<CallOptions> {
        self.open_requests
            .borrow()
            .get(&id_key(id))
            .map(|open| open.options.clone())
    }
}

/// Tells JavaScript when the caller no longer waits: the future is dropped then.
struct AbandonGuard<'a> {
    runtime: &'a Rc<CallRuntime>,
    id: f64,
}

impl Drop for AbandonGuard<'_> {
    fn drop(&mut self) {
        self.runtime
            .open_requests
            .borrow_mut()
            .remove(&id_key(self.id));
        self.runtime.bodies.drop_incoming((true, id_key(self.id)));
        self.runtime.send_message(Message {
            given_up: Some(true),
            ..Message::new_for(self.id)
        });
    }
}

/// Numbers are whole and below 2^53.
fn id_key(id: f64) -> u64 {
    id as u64
}

/// Until JavaScript wants no more. The calls that it has made end first when nobody serves.
async fn handle_commands(
    runtime: Rc<CallRuntime>,
    mut commands: UnboundedReceiver<RuntimeCommand>,
) {
    let mut calls = tokio::task::JoinSet::new();
    while let Some(command) = commands.recv().await {
        match command {
            RuntimeCommand::Stop => {
                // Calls that are open still call others and are answered.
                spawn_local(drain_commands(runtime, commands));
                return;
            }
            command => handle_command(&runtime, command, &mut calls),
        }
        while calls.try_join_next().is_some() {}
    }
    while calls.join_next().await.is_some() {}
}

async fn drain_commands(runtime: Rc<CallRuntime>, mut commands: UnboundedReceiver<RuntimeCommand>) {
    let mut calls = tokio::task::JoinSet::new();
    while let Some(command) = commands.recv().await {
        handle_command(&runtime, command, &mut calls);
    }
}

fn handle_command(
    runtime: &Rc<CallRuntime>,
    command: RuntimeCommand,
    calls: &mut tokio::task::JoinSet<()>,
) {
    match command {
        RuntimeCommand::Call {
            id,
            name,
            payload,
            options: ask,
            kind,
        } => {
            let runtime = Rc::clone(runtime);
            let following = ask
                .parent
                .and_then(|parent| runtime.inherited_options(parent));
            let task_runtime = Rc::clone(&runtime);
            let abort_handle = calls.spawn_local(async move {
                let outcome = make_call(
                    &task_runtime,
                    id,
                    &name,
                    payload,
                    ask.into_options(following.as_ref()),
                    kind,
                )
                .await;
                if outcome.is_err() || !matches!(kind, CallKind::Call { stream: true, .. }) {
                    task_runtime.bodies.finish_outgoing((false, id_key(id))); // else it may go on while the answer is read
                }
                task_runtime.outgoing_calls.borrow_mut().remove(&id_key(id));
                task_runtime.send_message(Message::for_outcome(id, &outcome));
            });
            runtime
                .outgoing_calls
                .borrow_mut()
                .insert(id_key(id), abort_handle);
        }
        RuntimeCommand::GiveUp { id } => {
            if let Some(abort_handle) = runtime.outgoing_calls.borrow_mut().remove(&id_key(id)) {
                abort_handle.abort();
            }
            let body = (false, id_key(id));
            runtime.bodies.finish_outgoing(body);
            runtime.bodies.drop_incoming(body);
        }
        RuntimeCommand::Push {
            body,
            piece: Some(piece),
        } => {
            let runtime = Rc::clone(runtime);
            spawn_local(async move {
                let room = Some(runtime.bodies.write_piece(body, piece).await);
                runtime.send_message(Message {
                    room,
                    ..Message::for_body(body)
                });
            });
        }
        RuntimeCommand::Push { body, piece: None } => runtime.bodies.finish_outgoing(body),
        RuntimeCommand::Pull { body } => {
            let runtime = Rc::clone(runtime);
            spawn_local(async move {
                let part = runtime.bodies.next_part(body).await;
                runtime.send_message(Message::for_body_part(body, part));
            });
        }
        RuntimeCommand::Leave { body } => runtime.bodies.drop_incoming(body),
        RuntimeCommand::Answer {
            id,
            response,
            pieces,
        } => {
            if let Some(open) = runtime.open_requests.borrow_mut().remove(&id_key(id)) {
                let _ =
                    open.answer
                        .send(runtime.build_response(id, response.into_response(), pieces));
            }
        }
        RuntimeCommand::Stop => {}
    }
}

async fn make_call(
    runtime: &CallRuntime,
    id: f64,
    name: &str,
    payload: Vec<u8>,
    options: Result<CallOptions, Error>,
    kind: CallKind,
) -> Result<FinishedCall, Error> {
    let (ask, body) = (options?, (false, id_key(id)));
    let streaming = match kind {
        CallKind::Event => {
            return nearpath::notify_with(name, payload, ask)
                .await
                .map(|()| FinishedCall::Answer(Response::new("")));
        }
        CallKind::Queued => {
            return nearpath::call_later(name, payload, ask)
                .await
                .map(FinishedCall::Accepted);
        }
        CallKind::Topic => {
            return nearpath::publish_with(name, payload, ask)
                .await
                .map(FinishedCall::Published);
        }
        CallKind::Call {
            pieces: false,
            stream: false,
        } => {
            return nearpath::call_with(name, payload, ask)
                .await
                .map(FinishedCall::Answer);
        }
        CallKind::Call { pieces: true, .. } => {
            nearpath::call_stream_with(name, runtime.bodies.open_outgoing(body), ask).await?
        }
        CallKind::Call { .. } => {
            let whole = futures_util::stream::iter([Ok::<_, Error>(payload)]);
            nearpath::call_stream_with(name, whole, ask).await?
        }
    };
    if !matches!(kind, CallKind::Call { stream: true, .. }) {
        return streaming.collect_body().await.map(FinishedCall::Answer);
    }
    let (response, rest) = streaming.into_parts();
    runtime.bodies.insert_incoming(body, rest);
    Ok(FinishedCall::Answer(response))
}
