//! The thread with the endpoint.

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
use crate::types::{FinishedCall, JsCallOptions, JsRequest, JsResponse, Message};

/// Callback that passes messages to JavaScript. It does not keep the process alive; `index.js` does
/// while something is open.
pub(crate) type MessageCallback = ThreadsafeFunction<Message, (), Message, Status, false, true>;

/// Number of the message that reports the end of serving.
const SERVING_ENDED_ID: f64 = -1.0;

/// Command from JavaScript.
#[derive(Debug)]
pub(crate) enum RuntimeCommand {
    Call {
        id: f64,
        name: String,
        payload: Vec<u8>,
        options: JsCallOptions,
        kind: CallKind,
    },
    /// `pieces`: JavaScript writes the body.
    Respond {
        id: f64,
        response: JsResponse,
        pieces: bool,
    },
    /// A piece of a body; `None` ends it.
    WritePiece {
        body: BodyKey,
        piece: Option<BodyPiece>,
    },
    /// Requests the next part of a body.
    RequestPart {
        body: BodyKey,
    },
    /// Drops a body that is not read any more.
    CloseBody {
        body: BodyKey,
    },
    /// Cancels a call.
    CancelCall {
        id: f64,
    },
    StopServing,
}

/// Kind of an outgoing call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallKind {
    Event,
    Topic,
    Queued,
    /// `pieces`: JavaScript writes its body. `stream`: JavaScript reads its response as it arrives.
    Call {
        pieces: bool,
        stream: bool,
    },
}

/// Handle of the thread. Dropping it ends the thread after the open calls.
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

    pub(crate) fn send_command(&self, command: RuntimeCommand) -> bool {
        self.0.send(command).is_ok()
    }
}

/// State of the thread.
struct CallRuntime {
    callback: Arc<MessageCallback>,
    open_requests: RefCell<HashMap<u64, HandlerRequest>>,
    last_id: Cell<f64>,
    bodies: BodyTable,
    /// Abort handles of outgoing calls.
    outgoing_calls: RefCell<HashMap<u64, AbortHandle>>,
    /// Handlers run as soon as a request begins.
    is_streaming: bool,
}

/// A received call whose handler runs in JavaScript.
struct HandlerRequest {
    /// Options that the handler's own calls inherit.
    options: CallOptions,
    response_sender: oneshot::Sender<HandlerResponse>,
}

impl CallRuntime {
    fn run_thread(self, serves: bool, commands: UnboundedReceiver<RuntimeCommand>) {
        let runtime = Rc::new(self);
        let handler_runtime = Rc::clone(&runtime);
        let commands_done = async move {
            handle_commands(handler_runtime, commands).await;
        };
        // Without handlers no function server is needed: the thread only makes calls.
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
            .map(|()| FinishedCall::Response(Response::new("")));
        runtime.send_message(Message::for_outcome(SERVING_ENDED_ID, &served));
    }

    fn send_message(&self, message: Message) {
        // Non-blocking: a full queue of JavaScript must not stop the event loop.
        self.callback
            .call(message, ThreadsafeFunctionCallMode::NonBlocking);
    }

    /// Passes a call to JavaScript and waits for its response.
    async fn handle_request(self: Rc<Self>, mut request: Request) -> HandlerResponse {
        // Numbers of received and outgoing calls are separate, see `BodyKey`.
        let id = self.last_id.replace(self.last_id.get() + 1.0) + 1.0;
        let (response_sender, response_receiver) = oneshot::channel();
        self.open_requests.borrow_mut().insert(
            id_key(id),
            HandlerRequest {
                options: CallOptions::from_request(&request),
                response_sender,
            },
        );
        let guard = AbandonGuard { runtime: &self, id };
        if self.is_streaming {
            self.bodies
                .insert_incoming((true, id_key(id)), request.take_stream());
        }
        self.send_message(Message {
            request: Some(JsRequest::from_request(&request)),
            ..Message::new_for(id)
        });
        drop(request); // frees its slot
        let response = response_receiver.await;
        // The call has a response, so its caller was not lost.
        std::mem::forget(guard);
        response.unwrap_or_else(|_| {
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

/// Notifies JavaScript when the caller no longer waits: the future is dropped then.
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
            is_cancelled: Some(true),
            ..Message::new_for(self.id)
        });
    }
}

/// Converts a number of JavaScript, which is an integer below 2^53.
fn id_key(id: f64) -> u64 {
    // JavaScript has no other numbers; below 2^53 each integer is exact.
    id as u64
}

/// Handles commands until JavaScript stops. Without a server, outgoing calls are completed first.
async fn handle_commands(
    runtime: Rc<CallRuntime>,
    mut commands: UnboundedReceiver<RuntimeCommand>,
) {
    let mut calls = tokio::task::JoinSet::new();
    // Ends when the handle is dropped.
    while let Some(command) = commands.recv().await {
        match command {
            RuntimeCommand::StopServing => {
                // Handlers of open calls may still make calls, and their responses are sent.
                spawn_local(drain_commands(runtime, commands));
                return;
            }
            command => handle_command(&runtime, command, &mut calls),
        }
        // Frees the results of finished calls, which the set would keep.
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
            options,
            kind,
        } => {
            let runtime = Rc::clone(runtime);
            // Resolved now: the parent may have ended when the call starts.
            let inherited = options
                .parent
                .and_then(|parent| runtime.inherited_options(parent));
            let task_runtime = Rc::clone(&runtime);
            let abort_handle = calls.spawn_local(async move {
                let outcome = make_call(
                    &task_runtime,
                    id,
                    &name,
                    payload,
                    options.into_options(inherited.as_ref()),
                    kind,
                )
                .await;
                if outcome.is_err() || !matches!(kind, CallKind::Call { stream: true, .. }) {
                    // A streamed call may still send its body while the response is read.
                    task_runtime.bodies.finish_outgoing((false, id_key(id)));
                }
                task_runtime.outgoing_calls.borrow_mut().remove(&id_key(id));
                task_runtime.send_message(Message::for_outcome(id, &outcome));
            });
            runtime
                .outgoing_calls
                .borrow_mut()
                .insert(id_key(id), abort_handle);
        }
        RuntimeCommand::CancelCall { id } => abort_call(runtime, id),
        RuntimeCommand::WritePiece {
            body,
            piece: Some(piece),
        } => write_piece(runtime, body, piece),
        RuntimeCommand::WritePiece { body, piece: None } => runtime.bodies.finish_outgoing(body),
        RuntimeCommand::RequestPart { body } => read_part(runtime, body),
        RuntimeCommand::CloseBody { body } => runtime.bodies.drop_incoming(body),
        RuntimeCommand::Respond {
            id,
            response,
            pieces,
        } => {
            // A response to an unknown call is ignored: its caller has gone.
            if let Some(open) = runtime.open_requests.borrow_mut().remove(&id_key(id)) {
                let _ = open.response_sender.send(runtime.build_response(
                    id,
                    response.into_response(),
                    pieces,
                ));
            }
        }
        RuntimeCommand::StopServing => {}
    }
}

fn abort_call(runtime: &CallRuntime, id: f64) {
    if let Some(abort_handle) = runtime.outgoing_calls.borrow_mut().remove(&id_key(id)) {
        abort_handle.abort();
    }
    // Both directions end: the callee gets no more, and nothing is read.
    let body = (false, id_key(id));
    runtime.bodies.finish_outgoing(body);
    runtime.bodies.drop_incoming(body);
}

/// Writes a piece in the background, and reports to JavaScript whether the receiver wants more.
fn write_piece(runtime: &Rc<CallRuntime>, body: BodyKey, piece: BodyPiece) {
    let runtime = Rc::clone(runtime);
    spawn_local(async move {
        let wants_more = Some(runtime.bodies.write_piece(body, piece).await);
        runtime.send_message(Message {
            wants_more,
            ..Message::for_body(body)
        });
    });
}

/// Reads the next part in the background, and passes it to JavaScript.
fn read_part(runtime: &Rc<CallRuntime>, body: BodyKey) {
    let runtime = Rc::clone(runtime);
    spawn_local(async move {
        let part = runtime.bodies.next_part(body).await;
        runtime.send_message(Message::for_body_part(body, part));
    });
}

async fn make_call(
    runtime: &CallRuntime,
    id: f64,
    name: &str,
    payload: Vec<u8>,
    options: Result<CallOptions, Error>,
    kind: CallKind,
) -> Result<FinishedCall, Error> {
    let (options, body) = (options?, (false, id_key(id)));
    let streaming = match kind {
        CallKind::Event => {
            return nearpath::notify_with(name, payload, options)
                .await
                .map(|()| FinishedCall::Response(Response::new("")));
        }
        CallKind::Queued => {
            return nearpath::call_later(name, payload, options)
                .await
                .map(FinishedCall::Accepted);
        }
        CallKind::Topic => {
            return nearpath::publish_with(name, payload, options)
                .await
                .map(FinishedCall::Published);
        }
        CallKind::Call {
            pieces: false,
            stream: false,
        } => {
            return nearpath::call_with(name, payload, options)
                .await
                .map(FinishedCall::Response);
        }
        CallKind::Call { pieces: true, .. } => {
            nearpath::call_stream_with(name, runtime.bodies.open_outgoing(body), options).await?
        }
        CallKind::Call { .. } => {
            // A complete payload as a stream of one piece, so that the response can be streamed.
            let whole = futures_util::stream::iter([Ok::<_, Error>(payload)]);
            nearpath::call_stream_with(name, whole, options).await?
        }
    };
    if !matches!(kind, CallKind::Call { stream: true, .. }) {
        return streaming.collect_body().await.map(FinishedCall::Response);
    }
    let (response, rest) = streaming.into_parts();
    runtime.bodies.insert_incoming(body, rest);
    Ok(FinishedCall::Response(response))
}
