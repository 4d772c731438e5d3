//! The calls of the API, one function each.

use std::io::{BufRead, BufReader};

use http::{Method, Response, StatusCode};
use nearpath_types::missing_nodes::{MISSING_NODES_HEADER, parse_missing_nodes};
use nearpath_types::status::rfc3339;
use nearpath_types::{
    FunctionId, FunctionSpec, FunctionStatus, LogQuery, MissingNode, Namespace, NodeStatus,
    StatusQuery, StatusReport,
};
use serde::{Deserialize, Serialize};
use ureq::Body;

use super::client::{ApiClient, CALL_TIMEOUT};
use crate::exit::{CommandError, ExitStatus};

/// Effect of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DeployOutcome {
    Created,
    Updated,
}

/// OpenFaaS's `Info`, as far as it is shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GatewayInfo {
    pub(crate) provider: serde_json::Value,
    #[serde(default)]
    pub(crate) version: serde_json::Value,
    #[serde(default)]
    pub(crate) arch: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeleteRequest<'a> {
    function_name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScaleRequest<'a> {
    service_name: &'a str,
    namespace: &'a str,
    replicas: u64,
}

/// OpenFaaS's `SecretValue`, as it is listed.
#[derive(Deserialize)]
struct ListedSecret {
    name: String,
}

impl ApiClient {
    /// Lists the functions of a namespace.
    pub(crate) fn functions(
        &self,
        namespace: Option<&Namespace>,
    ) -> Result<(Vec<FunctionStatus>, Vec<MissingNode>), CommandError> {
        let query = namespace
            .map(|namespace| format!("?namespace={namespace}"))
            .unwrap_or_default();
        let path = format!("/system/functions{query}");
        let response = self.call("cannot list functions", Method::GET, &path, NO_BODY)?;
        let missing = missing_nodes(&response);
        Ok((self.read_json(response)?, missing))
    }

    /// Lists the nodes.
    pub(crate) fn nodes(&self) -> Result<(Vec<NodeStatus>, Vec<MissingNode>), CommandError> {
        let response = self.call("cannot list nodes", Method::GET, "/system/nodes", NO_BODY)?;
        let missing = missing_nodes(&response);
        Ok((self.read_json(response)?, missing))
    }

    /// Fetches the status of one function.
    pub(crate) fn function(&self, id: &FunctionId) -> Result<FunctionStatus, CommandError> {
        let path = format!(
            "/system/function/{}?namespace={}&usage=1",
            id.name, id.namespace
        );
        let response = self.exchange(Method::GET, &path, NO_BODY, Some(CALL_TIMEOUT))?;
        // Before the general error: a 404 here has a better text than the gateway's.
        match response.status() {
            StatusCode::NOT_FOUND => Err(no_function(id)),
            status if status.is_success() => self.read_json(response),
            _ => Err(self.error_of(&format!("cannot describe {id}"), response)),
        }
    }

    /// Updates a function or, if there is none, creates it. OpenFaaS's client uses the same order.
    pub(crate) fn deploy(&self, spec: &FunctionSpec) -> Result<DeployOutcome, CommandError> {
        let what = format!("cannot deploy {}", spec.service);
        match self.call(&what, Method::PUT, FUNCTIONS_PATH, Some(spec)) {
            Ok(_) => Ok(DeployOutcome::Updated),
            // PUT first: updates are the frequent case, and only a missing function costs a second
            // call.
            Err(error) if error.exit == ExitStatus::NotFound => self
                .call(&what, Method::POST, FUNCTIONS_PATH, Some(spec))
                .map(|_| DeployOutcome::Created),
            Err(error) => Err(error),
        }
    }

    /// Removes a function.
    pub(crate) fn remove(&self, id: &FunctionId) -> Result<(), CommandError> {
        let body = DeleteRequest {
            function_name: id.name.as_str(),
            namespace: id.namespace.as_str(),
        };
        let response = self.call(
            &format!("cannot remove {id}"),
            Method::DELETE,
            FUNCTIONS_PATH,
            Some(&body),
        );
        response
            .map(drop)
            .map_err(|error| explain_missing(error, id))
    }

    /// Sets the number of replicas.
    pub(crate) fn scale(&self, id: &FunctionId, replicas: u64) -> Result<(), CommandError> {
        let body = ScaleRequest {
            service_name: id.name.as_str(),
            namespace: id.namespace.as_str(),
            replicas,
        };
        let path = format!(
            "/system/scale-function/{}?namespace={}",
            id.name, id.namespace
        );
        let response = self.call(
            &format!("cannot scale {id}"),
            Method::POST,
            &path,
            Some(&body),
        );
        response
            .map(drop)
            .map_err(|error| explain_missing(error, id))
    }

    /// Streams lines of a function's log, each as JSON.
    pub(crate) fn logs(&self, query: &LogQuery) -> Result<impl BufRead + use<>, CommandError> {
        let id = &query.function;
        let mut path = format!(
            "/system/logs?name={}&namespace={}&follow={}",
            id.name, id.namespace, query.follow
        );
        path += &query
            .tail
            .map(|tail| format!("&tail={tail}"))
            .unwrap_or_default();
        path += &query
            .since
            .map(|since| format!("&since={}", rfc3339::format_time(since)))
            .unwrap_or_default();
        path += &query
            .instance
            .as_deref()
            .map(|id| format!("&instance={}", percent_encode(id)))
            .unwrap_or_default();
        let stream = self.stream(&format!("cannot read the log of {id}"), &path);
        let response = stream.map_err(|error| explain_missing(error, id))?;
        Ok(BufReader::new(
            response
                .into_body()
                .into_with_config()
                // A followed log has no end, so its size has no limit either.
                .limit(u64::MAX)
                .reader(),
        ))
    }

    /// Starts a backup; the body is the archive.
    pub(crate) fn backup(&self) -> Result<Response<Body>, CommandError> {
        self.stream("cannot make a backup", "/system/backup")
    }

    /// Lists the names of a namespace's secrets.
    pub(crate) fn secrets(&self, namespace: &Namespace) -> Result<Vec<String>, CommandError> {
        let path = format!("/system/secrets?namespace={namespace}");
        let all: Vec<ListedSecret> =
            self.read_json(self.call("cannot list secrets", Method::GET, &path, NO_BODY)?)?;
        Ok(all.into_iter().map(|secret| secret.name).collect())
    }

    /// Fetches the nodes' replies to a status query, for one namespace.
    pub(crate) fn status(
        &self,
        query: StatusQuery,
        namespace: &Namespace,
    ) -> Result<(StatusReport, Vec<MissingNode>), CommandError> {
        let name = query.name();
        let path = format!("/system/{name}?namespace={namespace}");
        let response = self.call(&format!("cannot show {name}"), Method::GET, &path, NO_BODY)?;
        let missing = missing_nodes(&response);
        let reply: serde_json::Value = self.read_json(response)?;
        // Read as a value first: the query decides which type the rows have.
        let report = query.read(reply).map_err(|error| self.not_json(&error))?;
        Ok((report, missing))
    }

    /// Fetches the gateway's name and version.
    pub(crate) fn info(&self) -> Result<GatewayInfo, CommandError> {
        self.read_json(self.call(
            "cannot read the gateway's version",
            Method::GET,
            "/system/info",
            NO_BODY,
        )?)
    }
}

const FUNCTIONS_PATH: &str = "/system/functions";
const NO_BODY: Option<&()> = None;

/// Returns the nodes that are missing in a response.
fn missing_nodes(response: &Response<Body>) -> Vec<MissingNode> {
    let value = response.headers().get(MISSING_NODES_HEADER);
    let value = value.and_then(|value| value.to_str().ok());
    value.map(parse_missing_nodes).unwrap_or_default()
}

fn no_function(id: &FunctionId) -> CommandError {
    CommandError::new(
        ExitStatus::NotFound,
        format!("there is no function {id}; `nearpath ls` lists functions"),
    )
}

fn explain_missing(error: CommandError, id: &FunctionId) -> CommandError {
    if error.exit == ExitStatus::NotFound {
        no_function(id)
    } else {
        error
    }
}

/// Percent-encodes for a query or path segment; RFC 3986's unreserved characters stay.
pub(crate) fn percent_encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte))
            }
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}
