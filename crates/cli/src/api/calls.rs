//! The calls of the API, one function each.

use std::io::{BufRead, BufReader};

use http::{Method, StatusCode};
use nearpath_types::chain::{EdgeStatus, MemoryStatus, PathStatus};
use nearpath_types::pool::PoolStatus;
use nearpath_types::{FunctionId, FunctionSpec, FunctionStatus, LogQuery, Namespace, status::rfc3339};
use serde::{Deserialize, Serialize};

use super::client::{CALL, Client};
use crate::exit::{Exit, Failure};

/// Whether a deployed function was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Deployed {
    Created,
    Updated,
}

/// OpenFaaS's `Info`, as far as it is shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Info {
    pub(crate) provider: serde_json::Value,
    #[serde(default)]
    pub(crate) version: serde_json::Value,
    #[serde(default)]
    pub(crate) arch: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Delete<'a> {
    function_name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Scale<'a> {
    service_name: &'a str,
    namespace: &'a str,
    replicas: u64,
}

/// OpenFaaS's `Secret`, as it is listed.
#[derive(Deserialize)]
struct Secret {
    name: String,
}

impl Client {
    /// Every function of a namespace.
    pub(crate) fn functions(&self, namespace: Option<&Namespace>) -> Result<Vec<FunctionStatus>, Failure> {
        let query = namespace.map(|namespace| format!("?namespace={namespace}")).unwrap_or_default();
        self.json(self.ask("cannot list functions", Method::GET, &format!("/system/functions{query}"), NOTHING)?)
    }

    /// One function.
    pub(crate) fn function(&self, id: &FunctionId) -> Result<FunctionStatus, Failure> {
        let path = format!("/system/function/{}?namespace={}&usage=1", id.name, id.namespace);
        let response = self.exchange(Method::GET, &path, NOTHING, Some(CALL))?;
        match response.status() {
            StatusCode::NOT_FOUND => Err(missing(id)),
            status if status.is_success() => self.json(response),
            _ => Err(self.refused(&format!("cannot describe {id}"), response)),
        }
    }

    /// Updates a function or, when there is none, creates it: the order in which OpenFaaS's client does it.
    pub(crate) fn deploy(&self, spec: &FunctionSpec) -> Result<Deployed, Failure> {
        let what = format!("cannot deploy {}", spec.service);
        match self.ask(&what, Method::PUT, FUNCTIONS, Some(spec)) {
            Ok(_) => Ok(Deployed::Updated),
            Err(failure) if failure.exit == Exit::NotFound => {
                self.ask(&what, Method::POST, FUNCTIONS, Some(spec)).map(|_| Deployed::Created)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Removes a function.
    pub(crate) fn remove(&self, id: &FunctionId) -> Result<(), Failure> {
        let body = Delete { function_name: id.name.as_str(), namespace: id.namespace.as_str() };
        let asked = self.ask(&format!("cannot remove {id}"), Method::DELETE, FUNCTIONS, Some(&body));
        asked.map(drop).map_err(|failure| missing_or(failure, id))
    }

    /// Sets how many instances are wanted.
    pub(crate) fn scale(&self, id: &FunctionId, replicas: u64) -> Result<(), Failure> {
        let body = Scale { service_name: id.name.as_str(), namespace: id.namespace.as_str(), replicas };
        let path = format!("/system/scale-function/{}?namespace={}", id.name, id.namespace);
        let asked = self.ask(&format!("cannot scale {id}"), Method::POST, &path, Some(&body));
        asked.map(drop).map_err(|failure| missing_or(failure, id))
    }

    /// Lines of a function's log, each as JSON.
    pub(crate) fn logs(&self, query: &LogQuery) -> Result<impl BufRead + use<>, Failure> {
        let id = &query.function;
        let mut path = format!("/system/logs?name={}&namespace={}&follow={}", id.name, id.namespace, query.follow);
        path += &query.tail.map(|tail| format!("&tail={tail}")).unwrap_or_default();
        path += &query.since.map(|since| format!("&since={}", rfc3339::format(since))).unwrap_or_default();
        path += &query.instance.as_deref().map(|id| format!("&instance={}", escape(id))).unwrap_or_default();
        let stream = self.stream(&format!("cannot read the log of {id}"), &path);
        let response = stream.map_err(|failure| missing_or(failure, id))?;
        Ok(BufReader::new(response.into_body().into_with_config().limit(u64::MAX).reader()))
    }

    /// Names of a namespace's secrets.
    pub(crate) fn secrets(&self, namespace: &Namespace) -> Result<Vec<String>, Failure> {
        let path = format!("/system/secrets?namespace={namespace}");
        let all: Vec<Secret> = self.json(self.ask("cannot list secrets", Method::GET, &path, NOTHING)?)?;
        Ok(all.into_iter().map(|secret| secret.name).collect())
    }

    /// What the edges of a namespace counted.
    pub(crate) fn edges(&self, namespace: &Namespace) -> Result<Vec<EdgeStatus>, Failure> {
        let path = format!("/system/edges?namespace={namespace}");
        self.json(self.ask("cannot list edges", Method::GET, &path, NOTHING)?)
    }

    /// Who holds how much of the memory of a namespace's chains.
    pub(crate) fn memory(&self, namespace: &Namespace) -> Result<Vec<MemoryStatus>, Failure> {
        let path = format!("/system/memory?namespace={namespace}");
        self.json(self.ask("cannot show memory", Method::GET, &path, NOTHING)?)
    }

    /// Which paths the calls of a namespace's functions take.
    pub(crate) fn paths(&self, namespace: &Namespace) -> Result<Vec<PathStatus>, Failure> {
        let path = format!("/system/paths?namespace={namespace}");
        self.json(self.ask("cannot show paths", Method::GET, &path, NOTHING)?)
    }

    /// How the connections of a namespace's functions to destinations outside stand.
    pub(crate) fn pool(&self, namespace: &Namespace) -> Result<Vec<PoolStatus>, Failure> {
        let path = format!("/system/pool?namespace={namespace}");
        self.json(self.ask("cannot show connections", Method::GET, &path, NOTHING)?)
    }

    /// Who answers.
    pub(crate) fn info(&self) -> Result<Info, Failure> {
        self.json(self.ask("cannot ask for the version", Method::GET, "/system/info", NOTHING)?)
    }
}

const FUNCTIONS: &str = "/system/functions";
const NOTHING: Option<&()> = None;

fn missing(id: &FunctionId) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no function {id}; `nearpath ls` lists those that there are"))
}

fn missing_or(failure: Failure, id: &FunctionId) -> Failure {
    if failure.exit == Exit::NotFound { missing(id) } else { failure }
}

/// Percent-encodes what may not stand in a query or path segment (RFC 3986, unreserved characters stay).
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}
