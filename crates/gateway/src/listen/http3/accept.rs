//! Lets clients in, as many as there is room for.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nearpath_wire::h3::{Door, Verdict, code};
use quinn::{Endpoint, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Port;
use super::connection::serve_connection;
use super::half_open::HalfOpen;
use crate::listen::ListenContext;

/// For the last packets to leave.
const FAREWELL: Duration = Duration::from_millis(250);

/// The endpoints of a thread.
#[derive(Default)]
pub(crate) struct Ends(RefCell<Vec<Endpoint>>);

impl Ends {
    /// Ends all connections that there still are.
    pub(crate) async fn close(&self) {
        for end in self.0.take() {
            farewell(&end).await;
        }
    }
}

async fn farewell(end: &Endpoint) {
    end.close(code::NO_ERROR, b"the gateway is stopping");
    let _ = tokio::time::timeout(FAREWELL, end.wait_idle()).await; // after that the client learns it by its silence
}

/// Accepts until the drain begins. Connections that there are then are told by their [`Lives`](crate::listen::conn_state::Lives).
pub(crate) async fn accept(context: Rc<ListenContext>, port: Port, ends: Rc<Ends>) -> io::Result<()> {
    let end = port.site.endpoint(port.socket.try_clone()?, port.thread)?;
    ends.0.borrow_mut().push(end.clone());
    let room = Arc::new(Semaphore::new(port.connections));
    let (all, drain, over) = (port.connections, port.drain.clone(), port.over.clone());
    let door = Rc::new(Cell::new(Door::new(port.retry_above)));
    let port = Rc::new(port);
    tokio::select! {
        () = accept_all(&context, &port, &end, &room, &door) => {}
        () = drain.signaled() => {}
    }
    context.worker.spawn(async move {
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let none_left = async {
            let _mine = room.acquire_many(all).await;
            over.wait().await;
        };
        tokio::select! {
            () = none_left => {}
            () = refuse_all(&end) => {}
        }
        farewell(&end).await;
    });
    Ok(())
}

/// Newcomers need not wait in vain: they are told.
async fn refuse_all(end: &Endpoint) {
    while let Some(incoming) = end.accept().await {
        incoming.refuse();
    }
}

async fn accept_all(
    context: &Rc<ListenContext>,
    port: &Rc<Port>,
    end: &Endpoint,
    room: &Arc<Semaphore>,
    door: &Rc<Cell<Door>>,
) {
    while let Some(incoming) = end.accept().await {
        let place = room.clone().try_acquire_owned().ok();
        let mut now = door.get();
        let verdict = now.knock(incoming.remote_address_validated(), place.is_some());
        door.set(now);
        carry_out(context, port, incoming, verdict, place, door);
    }
}

fn carry_out(
    context: &Rc<ListenContext>,
    port: &Rc<Port>,
    incoming: Incoming,
    verdict: Verdict,
    place: Option<OwnedSemaphorePermit>,
    door: &Rc<Cell<Door>>,
) {
    let lane = &context.worker;
    let counts = &lane.totals.http3;
    match (verdict, place) {
        (Verdict::Admit, Some(place)) => {
            lane.totals.connections.fetch_add(1, Ordering::Relaxed);
            counts.connections.fetch_add(1, Ordering::Relaxed);
            lane.spawn(serve_connection(context.clone(), port.clone(), incoming, HalfOpen(door.clone()), place));
        }
        (Verdict::Prove, _) => {
            counts.retries.fetch_add(1, Ordering::Relaxed);
            let _ = incoming.retry(); // it fails only for who has proved its address
        }
        _ => {
            counts.refused.fetch_add(1, Ordering::Relaxed);
            incoming.refuse();
        }
    }
}
