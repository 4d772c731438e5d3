//! Several threads that serve: one more takes the calls, from memory and from HTTP, and the next thread that is free answers.

use std::future::Ready;
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::active_response::{HttpRequest, hand_to_thread};
use super::sigpipe;
use super::thread_endpoint::ThreadEndpoint;
use crate::environment::Environment;
use crate::error::Error;
use crate::message::{Request, Response};
use crate::server::{FunctionServer, setup_error};

impl ThreadEndpoint {
    /// As [`ThreadEndpoint::serve_calls`], on so many threads, this one among them: as many calls run at once, and none waits while a thread is
    /// free. Each thread calls with an endpoint of its own.
    ///
    /// # Errors
    /// As [`ThreadEndpoint::serve_calls`].
    pub fn serve_on(
        &mut self,
        threads: NonZeroUsize,
        handler: impl Fn(&mut Self, Request) -> Response + Sync,
    ) -> Result<(), Error> {
        self.serve_with(threads, handler, None::<Ready<()>>)
    }

    /// As [`ThreadEndpoint::serve_on`], until the future ends instead of until a signal.
    ///
    /// # Errors
    /// As [`ThreadEndpoint::serve_calls`].
    pub fn serve_on_until(
        &mut self,
        threads: NonZeroUsize,
        handler: impl Fn(&mut Self, Request) -> Response + Sync,
        end: impl Future<Output = ()> + Send,
    ) -> Result<(), Error> {
        self.serve_with(threads, handler, Some(end))
    }

    fn serve_with(
        &mut self,
        threads: NonZeroUsize,
        handler: impl Fn(&mut Self, Request) -> Response + Sync,
        end: Option<impl Future<Output = ()> + Send>,
    ) -> Result<(), Error> {
        let (sender, visitors) = channel();
        let (environment, streams, visitors) =
            (self.environment.clone(), self.streams, Mutex::new(visitors));
        thread::scope(|scope| {
            let door = thread::Builder::new().name("nearpath-door".into());
            let door = door.spawn_scoped(scope, move || {
                receive_calls(environment, streams, sender, end)
            });
            let door =
                door.map_err(|error| setup_error(format!("no thread that takes calls: {error}")))?;
            for number in 1..threads.get() {
                let mut party = self.clone_for_thread();
                let (handler, visitors) = (&handler, &visitors);
                let worker = thread::Builder::new().name(format!("nearpath-{number}"));
                let worker =
                    worker.spawn_scoped(scope, move || party.run_worker(visitors, handler));
                worker.map_err(|error| setup_error(format!("no thread that answers: {error}")))?;
            }
            self.run_worker(&visitors, &handler);
            door.join().unwrap_or_else(|_| {
                Err(setup_error(
                    "the thread that takes calls has panicked".into(),
                ))
            })
        })
    }

    /// Answers until no more is taken.
    fn run_worker(
        &mut self,
        visitors: &Mutex<Receiver<HttpRequest>>,
        handler: &impl Fn(&mut Self, Request) -> Response,
    ) {
        loop {
            let next = visitors
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv();
            let Ok(visitor) = next else { return };
            self.handle_http(visitor, &mut |party: &mut Self, request| {
                handler(party, request)
            });
        }
    }
}

/// Takes calls until it is time to stop, and waits for those that are open.
fn receive_calls(
    environment: Environment,
    streams: bool,
    sender: Sender<HttpRequest>,
    end: Option<impl Future<Output = ()>>,
) -> Result<(), Error> {
    sigpipe::block_sigpipe();
    let handler = move |request| {
        let sender = sender.clone();
        hand_to_thread(request, move |visitor| sender.send(visitor).is_ok())
    };
    let server = FunctionServer::new(handler).with_environment(environment);
    let server = if streams { server.streaming() } else { server };
    match end {
        Some(end) => server.run_until(end),
        None => server.run(),
    }
}
