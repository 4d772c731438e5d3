//! What each function does with what it gets.

use std::time::{Duration, Instant};

use bytes::Bytes;
use sensing::motion::{self, Event, Sighting};
use sensing::parking::{self, Visit};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{Calls, Fault};

/// Which function this process is.
pub(crate) enum Role {
    Sensor,
    Actuator,
    Detection,
    /// One of those that a visit goes through.
    Station(String),
}

impl Role {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "sensor" => Self::Sensor,
            "actuator" => Self::Actuator,
            "detection" => Self::Detection,
            "search" | "index" | "persist" | "charging" => Self::Station(name.to_owned()),
            _ => return None,
        })
    }

    /// The answer to one call.
    pub(crate) async fn answer(&self, body: &[u8], calls: &Calls) -> Result<Bytes, Fault> {
        match self {
            Self::Sensor => {
                let sighting = read::<Event>(body)?.sight();
                busy(motion::WORK);
                calls.call("actuator", write(&sighting)).await
            }
            Self::Actuator => {
                let decision = read::<Sighting>(body)?.decide();
                busy(motion::WORK);
                Ok(write(&decision))
            }
            Self::Detection => {
                let visit = parking::detect(body)
                    .ok_or((400, "no picture of a parking spot".to_owned()))?;
                station("detection", visit, calls).await
            }
            Self::Station(name) => station(name, read(body)?, calls).await,
        }
    }
}

async fn station(name: &str, visit: Visit, calls: &Calls) -> Result<Bytes, Fault> {
    tokio::time::sleep(parking::work(name)).await;
    let visit = visit.seen_by(name);
    match visit.next(name) {
        Some(next) => calls.call(next, write(&visit)).await,
        None => Ok(write(&visit)),
    }
}

/// Computes for so long: a function that works, and not one that waits.
fn busy(time: Duration) {
    let since = Instant::now();
    while since.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body).map_err(|error| (400, error.to_string()))
}

fn write(what: &impl Serialize) -> Bytes {
    serde_json::to_vec(what)
        .expect("plain fields become JSON")
        .into()
}
