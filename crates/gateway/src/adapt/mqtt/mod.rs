//! MQTT 3.1.1 and 5: a message is an invocation, its answer a message.
//!
//! Not a broker: clients cannot speak to each other, nothing is retained, and no session outlives its connection.
//! [`packet`] is the language, [`codec`] its spelling, [`session`] decides, [`hub`] knows who wants which results, and
//! [`client`] is the task of one connection ([`line`]), which makes [`calls`].

mod calls;
mod client;
mod codec;
pub(super) mod fuzz;
mod hub;
mod line;
mod packet;
mod session;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nearpath_daemon::drain;
use tokio::net::{TcpListener, TcpStream};

use super::rules::Rules;
use super::{Doorkeeper, Mqtt, MqttCounts, MqttLimits};
use crate::lane::Lane;
use hub::Hub;
use packet::End;

/// Connections above the limit that are still told why they cannot stay; more are closed at once.
const UNSEATED: usize = 64;

/// What all clients share.
struct House {
    lane: Rc<Lane>,
    limits: MqttLimits,
    doorkeeper: Option<Doorkeeper>,
    counts: Arc<MqttCounts>,
    rules: RefCell<Rules>,
    hub: Hub,
    drain: drain::Watch,
    /// Connections, also those that only wait for their last answers.
    open: Cell<usize>,
}

/// Accepts clients until the drain begins.
pub(super) async fn serve(lane: Rc<Lane>, mqtt: Mqtt, counts: Arc<MqttCounts>, drain: drain::Watch) -> io::Result<()> {
    mqtt.socket.set_nonblocking(true)?;
    let socket = TcpListener::from_std(mqtt.socket)?;
    let house = Rc::new(House {
        rules: Rules::new(lane.table.clone()).into(),
        hub: Hub::new(mqtt.limits.queue, counts.clone()),
        limits: mqtt.limits,
        doorkeeper: mqtt.doorkeeper,
        open: Cell::new(0),
        drain: drain.clone(),
        lane,
        counts,
    });
    loop {
        let accepted = tokio::select! {
            () = drain.signaled() => return Ok(()),
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, addr)) => welcome(&house, stream, addr.ip()),
            Err(error) => {
                tracing::warn!(%error, "mqtt: cannot accept a connection; pausing");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn welcome(house: &Rc<House>, stream: TcpStream, addr: std::net::IpAddr) {
    let _ = stream.set_nodelay(true); // slower without it, but not wrong
    if house.open.get() >= house.limits.clients + UNSEATED {
        return house.counts.ended(End::Busy.name());
    }
    let place = Place::take(house);
    let room = house.open.get() <= house.limits.clients;
    house.lane.spawn(client::serve(house.clone(), stream, addr, room, place));
}

/// One connection's place among all.
struct Place(Rc<House>);

impl Place {
    fn take(house: &Rc<House>) -> Self {
        house.open.set(house.open.get() + 1);
        Self(house.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
    }
}
