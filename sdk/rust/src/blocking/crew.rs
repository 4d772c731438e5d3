//! Several threads that serve: one more takes the calls, from memory and from HTTP, and the next thread that is free answers.

use std::future::Ready;
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::answering::{Visitor, visit};
use super::party::Party;
use super::unbroken;
use crate::environment::Environment;
use crate::error::Error;
use crate::message::{Request, Response};
use crate::server::{Server, fault};

impl Party {
    /// As [`Party::serve`], on so many threads, this one among them: as many calls run at once, and none waits while a thread is
    /// free. Each thread calls with a party of its own.
    ///
    /// # Errors
    /// As [`Party::serve`].
    pub fn serve_on(
        &mut self,
        threads: NonZeroUsize,
        handler: impl Fn(&mut Self, Request) -> Response + Sync,
    ) -> Result<(), Error> {
        self.serve_with(threads, handler, None::<Ready<()>>)
    }

    /// As [`Party::serve_on`], until the future ends instead of until a signal.
    ///
    /// # Errors
    /// As [`Party::serve`].
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
        let (environment, streams, visitors) = (self.environment.clone(), self.streams, Mutex::new(visitors));
        thread::scope(|scope| {
            let door = thread::Builder::new().name("nearpath-door".into());
            let door = door.spawn_scoped(scope, move || take(environment, streams, sender, end));
            let door = door.map_err(|error| fault(format!("no thread that takes calls: {error}")))?;
            for number in 1..threads.get() {
                let mut party = self.another();
                let (handler, visitors) = (&handler, &visitors);
                let worker = thread::Builder::new().name(format!("nearpath-{number}"));
                let worker = worker.spawn_scoped(scope, move || party.attend(visitors, handler));
                worker.map_err(|error| fault(format!("no thread that answers: {error}")))?;
            }
            self.attend(&visitors, &handler);
            door.join().unwrap_or_else(|_| Err(fault("the thread that takes calls has panicked".into())))
        })
    }

    /// Answers until no more is taken.
    fn attend(&mut self, visitors: &Mutex<Receiver<Visitor>>, handler: &impl Fn(&mut Self, Request) -> Response) {
        loop {
            let next = visitors.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(visitor) = next else { return };
            self.receive(visitor, &mut |party: &mut Self, request| handler(party, request));
        }
    }
}

/// Takes calls until it is time to stop, and waits for those that are open.
fn take(
    environment: Environment,
    streams: bool,
    sender: Sender<Visitor>,
    end: Option<impl Future<Output = ()>>,
) -> Result<(), Error> {
    unbroken::here();
    let handler = move |request| {
        let sender = sender.clone();
        visit(request, move |visitor| sender.send(visitor).is_ok())
    };
    let server = Server::new(handler).within(environment);
    let server = if streams { server.streaming() } else { server };
    match end {
        Some(end) => server.run_until(end),
        None => server.run(),
    }
}
