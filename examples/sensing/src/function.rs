//! Functions and their work on a request.

use std::time::{Duration, Instant};

use bytes::Bytes;
use sensing::motion::{self, Event, Sighting};
use sensing::parking::{self, Visit};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::{CallerError, FunctionClient};

/// Functions of the two examples.
pub(crate) enum FunctionRole {
    Sensor,
    Actuator,
    Detection,
    /// Station that a parked car passes.
    Station(String),
}

impl FunctionRole {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "sensor" => Self::Sensor,
            "actuator" => Self::Actuator,
            "detection" => Self::Detection,
            "search" | "index" | "persist" | "charging" => Self::Station(name.to_owned()),
            _ => return None,
        })
    }

    /// The answer to one call.
    pub(crate) async fn answer_call(
        &self,
        body: &[u8],
        calls: &FunctionClient,
    ) -> Result<Bytes, CallerError> {
        match self {
            Self::Sensor => {
                let sighting = parse_body::<Event>(body)?.sight();
                burn_cpu(motion::WORK);
                calls.call_function("actuator", to_json(&sighting)).await
            }
            Self::Actuator => {
                let decision = parse_body::<Sighting>(body)?.decide();
                burn_cpu(motion::WORK);
                Ok(to_json(&decision))
            }
            Self::Detection => {
                let visit = parking::detect(body)
                    .ok_or((400, "no picture of a parking spot".to_owned()))?;
                answer_station("detection", visit, calls).await
            }
            Self::Station(name) => answer_station(name, parse_body(body)?, calls).await,
        }
    }
}

async fn answer_station(
    name: &str,
    visit: Visit,
    calls: &FunctionClient,
) -> Result<Bytes, CallerError> {
    tokio::time::sleep(parking::work(name)).await;
    let visit = visit.seen_by(name);
    match visit.next(name) {
        Some(next) => calls.call_function(next, to_json(&visit)).await,
        None => Ok(to_json(&visit)),
    }
}

/// Computes for so long: a function that works, and not one that waits.
fn burn_cpu(time: Duration) {
    let since = Instant::now();
    while since.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, CallerError> {
    serde_json::from_slice(body).map_err(|error| (400, error.to_string()))
}

fn to_json(what: &impl Serialize) -> Bytes {
    serde_json::to_vec(what)
        .expect("plain fields become JSON")
        .into()
}
